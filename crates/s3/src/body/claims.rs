//! The claims that a request makes about its body, read from its headers before the body arrives.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use shoal_base::limits::VALUE_BYTES_MAX;

use super::checksum::{ChecksumAlgorithm, ChecksumValue};
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::sign::payload::PayloadHash;

/// The start of the names of all headers and trailers about checksums.
const CHECKSUM: &str = "x-amz-checksum-";

/// Everything that a body must fulfil.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyClaims {
    /// The body is framed in chunks.
    pub is_chunked: bool,
    /// The length of the value: of the body without framing. `None` if the request does not announce it.
    pub value_bytes: Option<u64>,
    /// SHA-256 of the body.
    pub(super) sha256: Option<[u8; 32]>,
    /// Content-MD5.
    pub(super) md5: Option<[u8; 16]>,
    /// A checksum in a header.
    pub(super) checksum: Option<ChecksumValue>,
    /// The checksum that a trailer has.
    pub(super) trailer: Option<ChecksumAlgorithm>,
}

impl BodyClaims {
    /// Reads the claims of a request whose signature announces `payload`.
    ///
    /// # Errors
    /// `MissingContentLength`, `EntityTooLarge`, `InvalidDigest`, `BadDigest`, `InvalidRequest`.
    pub fn of(headers: &HeaderMap, payload: PayloadHash) -> S3Result<Self> {
        Self::with_checksum(headers, payload, checksum_of(headers)?)
    }

    /// The claims of CompleteMultipartUpload: a checksum in its headers is that of the object, and not of its document.
    ///
    /// # Errors
    /// Those of [`Self::of`].
    pub(crate) fn of_completion(headers: &HeaderMap, payload: PayloadHash) -> S3Result<Self> {
        Self::with_checksum(headers, payload, None)
    }

    fn with_checksum(
        headers: &HeaderMap,
        payload: PayloadHash,
        checksum: Option<ChecksumValue>,
    ) -> S3Result<Self> {
        let body_bytes = length(headers, "content-length")?;
        let decoded_bytes = length(headers, "x-amz-decoded-content-length")?;
        let is_named = header(headers, "content-encoding")?.is_some_and(is_aws_chunked);
        let is_streaming = matches!(payload, PayloadHash::Chunked { .. });
        let is_chunked =
            is_streaming || (payload == PayloadHash::Unsigned && is_named && decoded_bytes.is_some());
        let has_length = match is_chunked {
            true => decoded_bytes.is_some(),
            false => body_bytes.is_some() || headers.contains_key("transfer-encoding"),
        };
        if !has_length {
            return Err(ErrorCode::MissingContentLength.into());
        }
        let value_bytes = decoded_bytes.or(body_bytes);
        if value_bytes.is_some_and(|bytes| bytes > VALUE_BYTES_MAX) {
            let error = S3Error::from(ErrorCode::EntityTooLarge);
            return Err(error.with("MaxSizeAllowed", VALUE_BYTES_MAX.to_string()));
        }
        let sha256 = if let PayloadHash::Sha256(hash) = payload { Some(hash) } else { None };
        let trailer = trailer_of(headers, is_chunked)?;
        if checksum.is_some() && trailer.is_some() {
            return Err(several());
        }
        Ok(Self { is_chunked, value_bytes, sha256, md5: md5_of(headers)?, checksum, trailer })
    }

    /// The claims about a value of this length that the store has.
    pub(crate) fn of_bytes(bytes: u64) -> Self {
        Self { value_bytes: Some(bytes), ..Self::none() }
    }

    /// The claims of a POST form, from the fields that are headers of a put.
    ///
    /// # Errors
    /// `InvalidDigest`, `BadDigest`, `InvalidRequest`.
    pub(crate) fn of_form(headers: &HeaderMap) -> S3Result<Self> {
        Ok(Self { md5: md5_of(headers)?, checksum: checksum_of(headers)?, ..Self::none() })
    }

    /// The algorithm of the checksum that the request sends.
    pub(crate) fn algorithm(&self) -> Option<ChecksumAlgorithm> {
        self.checksum.map(|value| value.algorithm()).or(self.trailer)
    }

    fn none() -> Self {
        Self { is_chunked: false, value_bytes: None, sha256: None, md5: None, checksum: None, trailer: None }
    }
}

fn length(headers: &HeaderMap, name: &str) -> S3Result<Option<u64>> {
    let Some(text) = header(headers, name)? else { return Ok(None) };
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.map(Some).ok_or_else(|| S3Error::argument(name, text, "The length is no number."))
}

fn md5_of(headers: &HeaderMap) -> S3Result<Option<[u8; 16]>> {
    let Some(text) = header(headers, "content-md5")? else { return Ok(None) };
    let bytes = STANDARD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.map(Some).ok_or_else(|| ErrorCode::InvalidDigest.into())
}

/// The checksum in a header. Headers with an algorithm, a type or a mode have none.
fn checksum_of(headers: &HeaderMap) -> S3Result<Option<ChecksumValue>> {
    let mut found = None;
    for algorithm in ChecksumAlgorithm::ALL {
        let Some(text) = header(headers, algorithm.header())? else { continue };
        let why = format!("Value for {} header is invalid.", algorithm.header());
        let value = ChecksumValue::parse(algorithm, text);
        let value = value.ok_or_else(|| S3Error::new(ErrorCode::BadDigest, why))?;
        if found.replace(value).is_some() {
            return Err(several());
        }
    }
    Ok(found)
}

fn trailer_of(headers: &HeaderMap, is_chunked: bool) -> S3Result<Option<ChecksumAlgorithm>> {
    let Some(names) = header(headers, "x-amz-trailer")? else { return Ok(None) };
    let mut found = None;
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let algorithm = name.to_ascii_lowercase().strip_prefix(CHECKSUM).and_then(ChecksumAlgorithm::of_name);
        let why = "The value specified in the x-amz-trailer header is not supported";
        let algorithm =
            algorithm.filter(|_| is_chunked).ok_or_else(|| S3Error::new(ErrorCode::InvalidRequest, why))?;
        if found.replace(algorithm).is_some() {
            return Err(several());
        }
    }
    Ok(found)
}

fn several() -> S3Error {
    let why = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.";
    S3Error::new(ErrorCode::InvalidRequest, why)
}

fn is_aws_chunked(encoding: &str) -> bool {
    encoding.split(',').any(|word| word.trim().eq_ignore_ascii_case("aws-chunked"))
}

/// The content encoding that is stored: without that of the transfer.
#[must_use]
pub fn stored_encoding(encoding: &str) -> Option<String> {
    let words = || encoding.split(',').map(str::trim).filter(|word| !word.is_empty());
    let text = match words().any(is_aws_chunked) {
        true => words().filter(|word| !is_aws_chunked(word)).collect::<Vec<_>>().join(","),
        false => encoding.trim().to_owned(),
    };
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::headers_of;

    const STREAMING: PayloadHash = PayloadHash::Chunked { is_signed: true, has_trailer: false };

    fn of(payload: PayloadHash, headers: &[(&str, &str)]) -> Result<BodyClaims, ErrorCode> {
        BodyClaims::of(&headers_of(headers), payload).map_err(|error| error.code)
    }

    #[test]
    fn the_length_of_the_value_is_decided_by_framing() {
        let length = ("content-length", "100");
        let decoded = ("x-amz-decoded-content-length", "10");
        let encoding = ("content-encoding", "gzip, aws-chunked");
        for (payload, headers, is_chunked, bytes) in [
            (PayloadHash::Unsigned, &[length][..], false, Some(100)),
            (PayloadHash::Unsigned, &[("transfer-encoding", "chunked")], false, None),
            (STREAMING, &[length, decoded], true, Some(10)),
            (PayloadHash::Unsigned, &[length, decoded, encoding], true, Some(10)),
            // Without a decoded length the framing would be guessed.
            (PayloadHash::Unsigned, &[length, encoding], false, Some(100)),
            (PayloadHash::Sha256([0; 32]), &[length, decoded, encoding], false, Some(10)),
        ] {
            let claims = of(payload, headers).unwrap();
            assert_eq!((claims.is_chunked, claims.value_bytes), (is_chunked, bytes), "{headers:?}");
        }
        for (payload, headers, code) in [
            (PayloadHash::Unsigned, &[][..], ErrorCode::MissingContentLength),
            (STREAMING, &[length], ErrorCode::MissingContentLength),
            (PayloadHash::Unsigned, &[("content-length", "5368709121")], ErrorCode::EntityTooLarge),
            (PayloadHash::Unsigned, &[("content-length", "+1")], ErrorCode::InvalidArgument),
        ] {
            assert_eq!(of(payload, headers), Err(code), "{headers:?}");
        }
    }

    #[test]
    fn checksums_are_well_formed_and_at_most_one() {
        let crc = ("x-amz-checksum-crc32", "y/Q5Jg==");
        let announced = ("x-amz-trailer", "x-amz-checksum-crc64nvme");
        let with = |payload, headers: &[(&str, &str)]| {
            let mut all = vec![("content-length", "9"), ("x-amz-decoded-content-length", "9")];
            all.extend(headers);
            of(payload, &all)
        };
        let claims = with(STREAMING, &[crc, ("x-amz-checksum-type", "FULL_OBJECT")]).unwrap();
        assert_eq!(claims.checksum.unwrap().text(), crc.1);
        assert_eq!(with(STREAMING, &[announced]).unwrap().trailer, Some(ChecksumAlgorithm::Crc64Nvme));
        for (payload, headers, code) in [
            (STREAMING, &[crc, announced][..], ErrorCode::InvalidRequest),
            (
                STREAMING,
                &[crc, ("x-amz-checksum-sha1", "2jmj7l5rSw0yVb/vlWAYkK/YBwk=")],
                ErrorCode::InvalidRequest,
            ),
            (STREAMING, &[("x-amz-checksum-sha256", "bad")], ErrorCode::BadDigest),
            (STREAMING, &[("x-amz-trailer", "x-amz-meta-a")], ErrorCode::InvalidRequest),
            (PayloadHash::Unsigned, &[announced], ErrorCode::InvalidRequest),
            (STREAMING, &[("content-md5", "AAAA")], ErrorCode::InvalidDigest),
            (STREAMING, &[("content-md5", "!")], ErrorCode::InvalidDigest),
        ] {
            assert_eq!(with(payload, headers), Err(code), "{headers:?}");
        }
    }

    #[test]
    fn framing_is_not_stored_as_an_encoding() {
        for (encoding, stored) in [
            ("aws-chunked", None),
            ("AWS-Chunked, gzip", Some("gzip")),
            ("gzip , br", Some("gzip , br")),
            ("", None),
        ] {
            assert_eq!(stored_encoding(encoding).as_deref(), stored, "{encoding}");
        }
    }

    proptest! {
        #[test]
        fn any_headers_are_read_or_refused(values in prop::collection::vec("[ -~]{0,20}", 6)) {
            let names = ["content-length", "x-amz-decoded-content-length", "content-encoding", "content-md5", "x-amz-trailer", "x-amz-checksum-sha1"];
            let pairs: Vec<(&str, &str)> = names.into_iter().zip(values.iter().map(String::as_str)).collect();
            for count in 0..=pairs.len() {
                let _ = (of(PayloadHash::Unsigned, &pairs[..count]), of(STREAMING, &pairs[count..]));
            }
        }
    }
}
