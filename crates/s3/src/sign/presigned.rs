//! The signature in the query: a URL that its holder may use until it expires.

use http::HeaderMap;

use ring::hmac;

use super::canonical::{ALGORITHM, RequestHead, strings_to_sign};
use super::header::SKEW_S;
use super::key::{Scope, SigningKeys};
use super::payload::UNSIGNED_PAYLOAD;
use super::verify::Claim;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::request::query::QueryParameters;
use crate::text::{hex, percent_encode, percent_encode_path, unhex};
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

/// The URL of a GET that the key `id` with this secret signs at `now_s`, for `seconds`.
pub(crate) fn presigned_url(
    (keys, id, secret): (&SigningKeys, &str, &str),
    endpoint: &str,
    (bucket, key): (&str, &[u8]),
    (now_s, seconds): (u64, u32),
) -> String {
    let moment = basic_of(now_s);
    let date = moment.get(..8).unwrap_or_default();
    let scope = Scope { id, date, region: keys.region(), service: "s3" };
    let mut path = format!("/{bucket}/");
    percent_encode_path(&mut path, key);
    let mut query = format!("X-Amz-Algorithm={ALGORITHM}&X-Amz-Credential=");
    percent_encode(&mut query, format!("{id}/{}", scope.signed()).as_bytes());
    query += &format!("&X-Amz-Date={moment}&X-Amz-Expires={seconds}&X-Amz-SignedHeaders=host");
    let host = endpoint.split_once("://").map_or(endpoint, |(_, host)| host);
    let mut headers = HeaderMap::new();
    if let Ok(host) = http::HeaderValue::from_str(host) {
        headers.insert(http::header::HOST, host);
    }
    let head = RequestHead { method: "GET", path: &path, query: Some(&query), headers: &headers };
    let parsed = QueryParameters::parse(Some(&query)).unwrap_or_default();
    let texts = strings_to_sign(&head, &parsed, "host", UNSIGNED_PAYLOAD, &moment, &scope);
    let text = texts.first().map_or("", String::as_str);
    let signature = hmac::sign(&keys.derive(date, secret), text.as_bytes());
    format!("{endpoint}{path}?{query}&X-Amz-Signature={}", hex(signature.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::key::SecretPair;
    use crate::sign::verify::verify;
    use crate::testing::headers_of;

    #[test]
    fn a_url_that_is_signed_here_is_accepted_until_its_end() {
        let (keys, now_s) = (SigningKeys::new("here"), 1_800_000_000);
        let url =
            presigned_url((&keys, "SHKA", "secret"), "http://h:1", ("bkt", b"a b/+%?\xff"), (now_s, 60));
        let (path, query) = url.strip_prefix("http://h:1").unwrap().split_once('?').unwrap();
        assert_eq!(path, "/bkt/a%20b/%2B%25%3F%FF");
        let headers = headers_of(&[("host", "h:1")]);
        let head = RequestHead { method: "GET", path, query: Some(query), headers: &headers };
        let parsed = QueryParameters::parse(Some(query)).unwrap();
        let secrets = |id: &str| -> SecretPair { [(id == "SHKA").then(|| "secret".into()), None] };
        let verified = |now_s| verify(&head, &parsed, &keys, &secrets, now_s);
        assert_eq!(verified(now_s + 60).unwrap().id.as_deref(), Some("SHKA"));
        assert_eq!(verified(now_s + 61).unwrap_err().code, ErrorCode::AccessDenied);
        let other = RequestHead { path: "/bkt/other", ..head };
        assert!(verify(&other, &parsed, &keys, &secrets, now_s).is_err());
    }
}
