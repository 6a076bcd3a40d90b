//! The signature in the query: a URL that its holder may use until it expires.

use http::HeaderMap;

use super::canonical::ALGORITHM;
use super::header::SKEW_S;
use super::payload::UNSIGNED_PAYLOAD;
use super::verify::Claim;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::request::query::QueryParameters;
use crate::text::unhex;
use crate::time::{SECOND_NS, basic_of, iso_of, parse_basic};

/// The longest life of a presigned URL, in seconds: 7 days.
const LIFE_S_MAX: u64 = 7 * 86_400;

/// The claim in a query.
pub(super) fn claim<'a>(
    headers: &'a HeaderMap,
    query: &'a QueryParameters,
    now_s: u64,
) -> S3Result<Claim<'a>> {
    let field = |name: &str| {
        let mut found = query.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
        let value = found.next().and_then(|(_, value)| str::from_utf8(value).ok());
        let is_once = found.next().is_none();
        value.filter(|_| is_once).ok_or_else(|| malformed(&format!("The query must have {name} once.")))
    };
    if field("X-Amz-Algorithm")? != ALGORITHM {
        return Err(malformed(&format!("X-Amz-Algorithm must be {ALGORITHM}.")));
    }
    let (credential, signed_headers) = (field("X-Amz-Credential")?, field("X-Amz-SignedHeaders")?);
    let signature = unhex(field("X-Amz-Signature")?.as_bytes()).ok_or(ErrorCode::SignatureDoesNotMatch)?;
    let signed_s = parse_basic(field("X-Amz-Date")?).ok_or_else(|| malformed("X-Amz-Date is no date."))?;
    let life = field("X-Amz-Expires")?;
    let why = "X-Amz-Expires must be 1 to 604800 seconds.";
    let life_s = life.parse::<i64>().map_err(|_| malformed(why))?;
    // A number outside of the range is a URL that is never valid.
    let life_s = u64::try_from(life_s).ok().filter(|life_s| (1..=LIFE_S_MAX).contains(life_s));
    let life_s = life_s.ok_or_else(|| S3Error::new(ErrorCode::AccessDenied, why))?;
    if signed_s > now_s + SKEW_S {
        return Err(S3Error::new(ErrorCode::AccessDenied, "Request is not valid yet"));
    }
    let end_s = signed_s + life_s;
    if now_s > end_s {
        let error = S3Error::new(ErrorCode::AccessDenied, "Request has expired").with("X-Amz-Expires", life);
        let error = error.with("Expires", iso_of(end_s * SECOND_NS));
        return Err(error.with("ServerTime", iso_of(now_s * SECOND_NS)));
    }
    let is_signed = signed_headers.split(';').any(|name| name == "x-amz-content-sha256");
    let hash = if is_signed { header(headers, "x-amz-content-sha256")? } else { None };
    let in_query = query.text("X-Amz-Content-Sha256")?;
    let payload = in_query.or(hash).unwrap_or(UNSIGNED_PAYLOAD);
    Ok(Claim {
        credential,
        signed_headers,
        signature,
        moment: basic_of(signed_s),
        payload,
        is_presigned: true,
    })
}

fn malformed(why: &str) -> S3Error {
    S3Error::new(ErrorCode::AuthorizationQueryParametersError, why)
}
