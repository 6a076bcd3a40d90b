//! Verifies the signature of a request, without its body and without the store.

use http::HeaderMap;

pub use super::canonical::RequestHead;
use super::canonical::strings_to_sign;
use super::chunks::ChunkSigner;
use super::key::{Scope, SecretSource, SigningKeys};
use super::payload::{PayloadHash, UNSIGNED_PAYLOAD};
use super::{header as authorization, presigned};
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::{HEADERS_MAX, header};
use crate::request::query::QueryParameters;

/// Headers in S3's namespace that need no signature: those of the body, whose claims are checked against its bytes.
const UNSIGNED: &[&str] = &[
    "x-amz-content-sha256",
    "x-amz-decoded-content-length",
    "x-amz-trailer",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-checksum-*",
];

/// A signature with everything that it was made of, except the request.
pub(super) struct Claim<'a> {
    pub(super) credential: &'a str,
    pub(super) signed_headers: &'a str,
    pub(super) signature: [u8; 32],
    /// The moment of signing, as it is signed.
    pub(super) moment: String,
    /// The hash of the body, as it is signed.
    pub(super) payload: &'a str,
    pub(super) is_presigned: bool,
}

/// A request whose signature is right, or that has none.
#[derive(Debug)]
pub struct Verified {
    /// The id of the key that signed; `None` for an anonymous request.
    pub id: Option<String>,
    /// The signature is in the query: its parameters count as headers (`headers::with_presigned`).
    pub is_presigned: bool,
    /// The announced hash of the body.
    pub payload: PayloadHash,
    /// The signer of the body's chunks, if they are signed.
    pub chunks: Option<ChunkSigner>,
}

/// Verifies a request. `query` is the parsed form of the head's query, and `now_s` the time in seconds since the Unix epoch.
///
/// # Errors
/// 400 for malformed signatures, 403 for wrong ones.
pub fn verify(
    head: &RequestHead<'_>,
    query: &QueryParameters,
    keys: &SigningKeys,
    secrets: &dyn SecretSource,
    now_s: u64,
) -> S3Result<Verified> {
    let in_header = header(head.headers, "authorization")?;
    let has = |name: &str| query.iter().any(|(found, _)| found.eq_ignore_ascii_case(name));
    let in_query = ["X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature"].iter().any(|name| has(name));
    if has("X-Amz-Security-Token") || head.headers.contains_key("x-amz-security-token") {
        return Err(ErrorCode::InvalidToken.into());
    }
    let claim = match (in_header, in_query) {
        (Some(_), true) => {
            let why = "A request has one signature: in the Authorization header or in the query.";
            return Err(S3Error::new(ErrorCode::InvalidArgument, why));
        }
        (Some(value), false) => authorization::claim(head.headers, value, now_s)?,
        (None, true) => presigned::claim(head.headers, query, now_s)?,
        (None, false) if has("Signature") && has("AWSAccessKeyId") => {
            return Err(S3Error::new(
                ErrorCode::InvalidRequest,
                "Signature version 2 is not supported. Please use version 4 (aws-cli: s3.signature_version s3v4).",
            ));
        }
        (None, false) => return anonymous(head.headers),
    };
    let scope = scope_of(&claim, keys.region())?;
    check_signed_headers(head.headers, claim.signed_headers)?;
    let texts = strings_to_sign(head, query, claim.signed_headers, claim.payload, &claim.moment, &scope);
    let pair = secrets.secrets(scope.id);
    let key = keys.key_for(&scope, &pair, &texts, &claim.signature);
    let Some(key) = key else {
        let is_known = pair.iter().any(Option::is_some);
        let code = if is_known { ErrorCode::SignatureDoesNotMatch } else { ErrorCode::InvalidAccessKeyId };
        return Err(S3Error::from(code).with("AWSAccessKeyId", scope.id));
    };
    // A presigned URL usually leaves the body open; then the header is a claim of its user.
    let announced = match header(head.headers, "x-amz-content-sha256")? {
        Some(hash) if claim.payload == UNSIGNED_PAYLOAD => hash,
        _ => claim.payload,
    };
    let payload = PayloadHash::parse(announced)?;
    let chunks = match payload {
        PayloadHash::Chunked { is_signed: true, .. } => {
            Some(ChunkSigner::new(key, &claim.moment, &scope.signed(), &claim.signature))
        }
        _ => None,
    };
    Ok(Verified { id: Some(scope.id.to_owned()), is_presigned: claim.is_presigned, payload, chunks })
}

fn anonymous(headers: &HeaderMap) -> S3Result<Verified> {
    let payload = header(headers, "x-amz-content-sha256")?.map(PayloadHash::parse).transpose()?;
    let payload = payload.unwrap_or(PayloadHash::Unsigned);
    if matches!(payload, PayloadHash::Chunked { is_signed: true, .. }) {
        return Err(S3Error::new(ErrorCode::InvalidRequest, "Signed chunks need a signed request."));
    }
    Ok(Verified { id: None, is_presigned: false, payload, chunks: None })
}

/// The scope of a claim: its date is that of signing, and its region and service are ours.
fn scope_of<'a>(claim: &Claim<'a>, region: &str) -> S3Result<Scope<'a>> {
    let code = match claim.is_presigned {
        true => ErrorCode::AuthorizationQueryParametersError,
        false => ErrorCode::AuthorizationHeaderMalformed,
    };
    let malformed = |why: String| Err(S3Error::new(code, why));
    let Some(scope) = Scope::parse(claim.credential) else {
        return malformed("The credential must be ID/DATE/REGION/s3/aws4_request.".to_owned());
    };
    if !claim.moment.starts_with(&format!("{}T", scope.date)) {
        return malformed("The date of the credential is not that of the request.".to_owned());
    }
    if scope.region != region {
        let why = format!("The region '{}' is wrong; expecting '{region}'", scope.region);
        return malformed(why).map_err(|error| error.with("Region", region));
    }
    if scope.service != "s3" {
        return malformed(format!("The service '{}' is wrong; expecting 's3'", scope.service));
    }
    Ok(scope)
}

/// Refuses a request with a header that matters and is not signed: somebody between client and server may have added it.
/// Several SDKs do not sign Content-Type, and S3 takes it from them.
fn check_signed_headers(headers: &HeaderMap, signed: &str) -> S3Result<()> {
    let names: Vec<&str> = signed.split(';').collect();
    let is_ordered = names.windows(2).all(|pair| pair[0] < pair[1]);
    if !is_ordered
        || names.len() > HEADERS_MAX
        || names.iter().any(|name| name.contains(|c: char| c.is_uppercase()))
    {
        return Err(S3Error::new(
            ErrorCode::SignatureDoesNotMatch,
            "SignedHeaders must be lower case and sorted.",
        ));
    }
    let is_exempt = |name: &str| {
        UNSIGNED.iter().any(|exempt| match exempt.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == *exempt,
        })
    };
    let must_be_signed = |name: &&str| name.starts_with("x-amz-") && !is_exempt(name);
    let sent = headers.keys().map(http::HeaderName::as_str).filter(must_be_signed);
    let missing: Vec<&str> = sent.chain(["host"]).filter(|name| !names.contains(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let error = S3Error::new(ErrorCode::AccessDenied, "The request has headers that are not signed.");
    Err(error.with("HeadersNotSigned", missing.join(", ")))
}
