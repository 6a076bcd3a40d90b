//! The headers of a request: limits, single values, user metadata, and headers that a presigned URL carries as parameters.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use shoal_base::limits::USER_METADATA_BYTES_MAX;

use super::error::{ErrorCode, S3Error, S3Result};
use super::query::QueryParameters;
use super::words;
use crate::body::checksum::ChecksumAlgorithm;

/// Most headers of a request.
pub const HEADERS_MAX: usize = 100;

/// Most bytes of all names and values: user metadata and a long signature take a tenth.
pub const HEADER_BYTES_MAX: usize = 32 << 10;

/// Longest value of a content header that is stored with an object.
pub const STORED_HEADER_BYTES_MAX: usize = 2 << 10;

/// Longest encoded value of user metadata: an escaped byte takes three.
const ENCODED_BYTES_MAX: usize = 4 * USER_METADATA_BYTES_MAX;

/// The start of the names of user metadata.
pub const USER_METADATA_PREFIX: &str = "x-amz-meta-";

/// Refuses a request with too many headers or header bytes.
///
/// # Errors
/// `HeadersTooLarge`.
pub fn check_headers(headers: &HeaderMap) -> S3Result<()> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let fits = headers.len() <= HEADERS_MAX && bytes <= HEADER_BYTES_MAX;
    if fits { Ok(()) } else { Err(ErrorCode::HeadersTooLarge.into()) }
}

/// The value of a header that occurs at most once, as text without spaces around it.
///
/// # Errors
/// `InvalidArgument` if it occurs twice, or is not visible ASCII.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> S3Result<Option<&'a str>> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let wrong = || S3Error::argument(name, "", "The header must occur once, with a value of ASCII.");
    if values.next().is_some() {
        return Err(wrong());
    }
    value.to_str().map(|text| Some(text.trim())).map_err(|_| wrong())
}

/// The user metadata of a request: names in lower case without their prefix, each once, in the order of the request.
///
/// # Errors
/// `MetadataTooLarge`.
pub fn user_metadata(headers: &HeaderMap) -> S3Result<Vec<(String, Bytes)>> {
    let mut found: Vec<(String, Bytes)> = Vec::new();
    let mut bytes = 0;
    for name in headers.keys() {
        let Some(short) = name.as_str().strip_prefix(USER_METADATA_PREFIX) else { continue };
        let values: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        let value = values.join(&b","[..]);
        if value.len() > ENCODED_BYTES_MAX {
            return Err(ErrorCode::MetadataTooLarge.into());
        }
        let value = words::decode(value.trim_ascii());
        bytes += short.len() + value.len();
        found.push((short.to_owned(), Bytes::from(value)));
    }
    if bytes > USER_METADATA_BYTES_MAX { Err(ErrorCode::MetadataTooLarge.into()) } else { Ok(found) }
}

/// Checks that the bucket has the owner that the request expects, if it names one.
///
/// # Errors
/// `AccessDenied`.
pub fn check_expected_owner(headers: &HeaderMap, owner: &str) -> S3Result<()> {
    match header(headers, "x-amz-expected-bucket-owner")? {
        Some(expected) if expected != owner => Err(ErrorCode::AccessDenied.into()),
        _ => Ok(()),
    }
}

/// The headers of a presigned request: all that arrived, and the `x-amz-` parameters of the query, which its signature
/// covers. A client that signs a URL may put headers there.
///
/// Checksums do not count: some clients sign that of an empty body into every URL, because the body is not known yet, and S3
/// ignores it.
///
/// # Errors
/// `InvalidArgument` if a parameter cannot be a header, or differs from the header of its name.
pub fn with_presigned(headers: &HeaderMap, query: &QueryParameters) -> S3Result<HeaderMap> {
    const OF_SIGNATURES: &str = "algorithm content-sha256 credential date expires sdk-checksum-algorithm security-token signature signedheaders";
    let mut all = headers.clone();
    for (name, value) in query.iter() {
        let name = name.to_ascii_lowercase();
        let Some(short) = name.strip_prefix("x-amz-") else { continue };
        let is_checksum = ChecksumAlgorithm::ALL.iter().any(|algorithm| algorithm.header() == name);
        if is_checksum || OF_SIGNATURES.split(' ').any(|own| own == short) {
            continue;
        }
        let wrong = || S3Error::argument(&name, "", "The parameter is no valid header.");
        let (key, value) = (HeaderName::try_from(&name), HeaderValue::from_bytes(value));
        let (key, value) = (key.map_err(|_| wrong())?, value.map_err(|_| wrong())?);
        if all.get(&key).is_some_and(|found| found != value) {
            return Err(wrong());
        }
        all.insert(key, value);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::headers_of as map;

    #[test]
    fn number_and_bytes_of_headers_are_bounded() {
        let mut headers = HeaderMap::new();
        for index in 0..HEADERS_MAX {
            headers.insert(HeaderName::try_from(format!("h{index}")).unwrap(), HeaderValue::from_static("v"));
        }
        assert!(check_headers(&headers).is_ok());
        headers.append("h0", HeaderValue::from_static("v"));
        assert_eq!(check_headers(&headers).unwrap_err().code.status().as_u16(), 431);
        assert!(check_headers(&map(&[("h", &"v".repeat(HEADER_BYTES_MAX))])).is_err());
    }

    #[test]
    fn a_header_occurs_once() {
        let headers = map(&[("a", " x "), ("b", "1"), ("b", "1"), ("c", "é")]);
        assert_eq!(header(&headers, "a"), Ok(Some("x")));
        assert_eq!(header(&headers, "d"), Ok(None));
        assert!(header(&headers, "b").is_err() && header(&headers, "c").is_err());
    }

    #[test]
    fn user_metadata_is_decoded_joined_and_bounded() {
        let headers = map(&[
            ("x-amz-meta-A", " 1 "),
            ("x-amz-meta-a", "2"),
            ("x-amz-meta-b", "=?UTF-8?B?w6k=?="),
            ("x-amz-metal", "no"),
        ]);
        let expected = [("a", "1 ,2"), ("b", "é")].map(|(name, value)| (name.to_owned(), Bytes::from(value)));
        assert_eq!(user_metadata(&headers).unwrap(), expected);
        assert!(user_metadata(&map(&[("x-amz-meta-a", &"v".repeat(2047))])).is_ok());
        let error = user_metadata(&map(&[("x-amz-meta-a", &"v".repeat(2048))])).unwrap_err();
        assert_eq!(error.code, ErrorCode::MetadataTooLarge);
    }

    #[test]
    fn the_owner_is_the_expected_one() {
        let headers = map(&[("x-amz-expected-bucket-owner", "A")]);
        assert!(
            check_expected_owner(&headers, "A").is_ok()
                && check_expected_owner(&HeaderMap::new(), "A").is_ok()
        );
        assert_eq!(check_expected_owner(&headers, "B").unwrap_err().code, ErrorCode::AccessDenied);
    }

    #[test]
    fn parameters_of_a_presigned_url_count_as_headers() {
        let query =
            QueryParameters::parse(Some("X-Amz-Date=1&x-amz-acl=public-read&x-amz-meta-k=v&x-id=GetObject&x-amz-checksum-crc32=AAAAAA%3D%3D"))
                .unwrap();
        let all = with_presigned(&map(&[("host", "h")]), &query).unwrap();
        // The checksum is that of the empty body, which JavaScript's SDK signs into each URL.
        assert_eq!(all.len(), 3);
        assert_eq!(all["x-amz-acl"], "public-read");
        assert!(with_presigned(&map(&[("x-amz-acl", "private")]), &query).is_err());
        let query = QueryParameters::parse(Some("x-amz-acl=a%0D%0Ab")).unwrap();
        assert!(with_presigned(&HeaderMap::new(), &query).is_err());
    }
}
