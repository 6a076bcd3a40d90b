//! The signature in the Authorization header.

use http::HeaderMap;

use super::canonical::ALGORITHM;
use super::verify::Claim;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::text::unhex;
use crate::time::{basic_of, parse_basic, parse_http_date};

/// The largest difference between the clocks of client and server, in seconds.
pub(super) const SKEW_S: u64 = 15 * 60;

/// The claim in the Authorization header with this value.
pub(super) fn claim<'a>(headers: &'a HeaderMap, value: &'a str, now_s: u64) -> S3Result<Claim<'a>> {
    let (algorithm, fields) = value.split_once(' ').unwrap_or((value, ""));
    if algorithm != ALGORITHM {
        let why = format!("The authorization mechanism is not supported. Please use {ALGORITHM}.");
        return Err(S3Error::new(ErrorCode::InvalidRequest, why));
    }
    let field = |name: &str| {
        let mut found =
            fields.split(',').filter_map(|field| field.trim().strip_prefix(name)?.strip_prefix('='));
        let malformed =
            |why: &str| S3Error::new(ErrorCode::AuthorizationHeaderMalformed, format!("{why} {name}."));
        let value = found.next().ok_or_else(|| malformed("The authorization header has no"))?;
        if found.next().is_some() {
            Err(malformed("The authorization header has a second"))
        } else {
            Ok(value)
        }
    };
    let (credential, signed_headers) = (field("Credential")?, field("SignedHeaders")?);
    let signature = unhex(field("Signature")?.as_bytes()).ok_or(ErrorCode::SignatureDoesNotMatch)?;
    let Some(payload) = header(headers, "x-amz-content-sha256")? else {
        let why = "The request needs the header x-amz-content-sha256.";
        return Err(S3Error::new(ErrorCode::InvalidRequest, why));
    };
    let signed_s = moment(headers)?;
    if signed_s.abs_diff(now_s) > SKEW_S {
        let error = S3Error::from(ErrorCode::RequestTimeTooSkewed).with("RequestTime", basic_of(signed_s));
        let error = error.with("ServerTime", basic_of(now_s));
        return Err(error.with("MaxAllowedSkewMilliseconds", (SKEW_S * 1_000).to_string()));
    }
    Ok(Claim {
        credential,
        signed_headers,
        signature,
        moment: basic_of(signed_s),
        payload,
        is_presigned: false,
    })
}

/// The moment of signing.
fn moment(headers: &HeaderMap) -> S3Result<u64> {
    let parsed = match header(headers, "x-amz-date")? {
        Some(date) => parse_basic(date).or_else(|| parse_http_date(date)),
        None => header(headers, "date")?.and_then(parse_http_date),
    };
    let why = "A signed request needs a valid Date or x-amz-date header.";
    parsed.ok_or_else(|| S3Error::new(ErrorCode::AccessDenied, why))
}
