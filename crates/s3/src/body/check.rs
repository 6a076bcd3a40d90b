//! One pass over the bytes of a body: framing, all hashes, and at the end the verdict and the attributes to store.

use md5::{Digest, Md5};
use ring::digest;
use shoal_base::limits::VALUE_BYTES_MAX;

use super::checksum::{ChecksumAlgorithm, ChecksumHasher, ChecksumValue};
use super::chunked::ChunkDecoder;
use super::claims::BodyClaims;
use crate::object::etag::ObjectEtag;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::sign::chunks::ChunkSigner;

/// The way in which the ETags of a bucket's objects are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EtagScheme {
    /// The MD5 of the value, as clients expect it.
    #[default]
    Md5,
    /// A CRC-64/NVME and the length: a fiftieth of the work.
    Crc,
}

/// A body that fulfils its claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedBody {
    /// Bytes of the value.
    pub bytes: u64,
    /// The object's ETag.
    pub etag: ObjectEtag,
    /// The checksum to store.
    pub checksum: Option<ChecksumValue>,
}

/// Checks one body.
#[derive(Debug)]
pub struct BodyCheck {
    claims: BodyClaims,
    chunks: Option<ChunkDecoder>,
    hashes: Hashes,
}

struct Hashes {
    bytes: u64,
    md5: Option<Md5>,
    sha256: Option<digest::Context>,
    crc: Option<ChecksumHasher>,
    checksum: Option<ChecksumHasher>,
}

impl std::fmt::Debug for Hashes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hashes").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Hashes {
    fn update(&mut self, data: &[u8]) {
        self.bytes += data.len() as u64;
        if let Some(md5) = &mut self.md5 {
            md5.update(data);
        }
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(data);
        }
        for hasher in self.crc.iter_mut().chain(&mut self.checksum) {
            hasher.update(data);
        }
    }
}

impl BodyCheck {
    /// A check of a body with these claims. `signer` is that of the request's signature. `stored` is the checksum that is
    /// computed for a request without one.
    #[must_use]
    pub fn new(
        claims: BodyClaims,
        signer: Option<ChunkSigner>,
        scheme: EtagScheme,
        stored: Option<ChecksumAlgorithm>,
    ) -> Self {
        let hashes = Hashes {
            bytes: 0,
            md5: (scheme == EtagScheme::Md5 || claims.md5.is_some()).then(Md5::new),
            sha256: claims.sha256.is_some().then(|| digest::Context::new(&digest::SHA256)),
            crc: (scheme == EtagScheme::Crc).then(|| ChecksumHasher::new(ChecksumAlgorithm::Crc64Nvme)),
            checksum: claims.algorithm().or(stored).map(ChecksumHasher::new),
        };
        let chunks = claims.is_chunked.then(|| ChunkDecoder::new(signer));
        Self { claims, chunks, hashes }
    }

    /// Takes the next piece of the body, and passes the bytes of the value in it to `sink`, without a copy. They may be
    /// written, but not published before [`Self::finish`].
    ///
    /// # Errors
    /// Those of [`ChunkDecoder::feed`], `IncompleteBody`, `EntityTooLarge`.
    pub fn feed<'a>(&mut self, piece: &'a [u8], sink: &mut dyn FnMut(&'a [u8])) -> S3Result<()> {
        let Self { claims, chunks, hashes } = self;
        let mut take = |data: &'a [u8]| {
            hashes.update(data);
            sink(data);
        };
        match chunks {
            Some(chunks) => chunks.feed(piece, &mut take)?,
            None => take(piece),
        }
        if claims.value_bytes.is_some_and(|bytes| hashes.bytes > bytes) {
            return Err(ErrorCode::IncompleteBody.into());
        }
        if hashes.bytes > VALUE_BYTES_MAX { Err(ErrorCode::EntityTooLarge.into()) } else { Ok(()) }
    }

    /// Bytes of the whole value, if the request claims a number.
    pub(crate) fn value_bytes(&self) -> Option<u64> {
        self.claims.value_bytes
    }

    /// Bytes of the value so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.hashes.bytes
    }

    /// Finishes the body, and judges all claims.
    ///
    /// # Errors
    /// `IncompleteBody`, `XAmzContentSHA256Mismatch`, `BadDigest`, `MalformedTrailerError`, those of
    /// [`ChunkDecoder::finish`].
    pub fn finish(self) -> S3Result<CheckedBody> {
        let Self { claims, chunks, hashes } = self;
        let trailers = chunks.map_or(Ok(Vec::new()), ChunkDecoder::finish)?;
        if claims.value_bytes.is_some_and(|bytes| hashes.bytes != bytes) {
            return Err(ErrorCode::IncompleteBody.into());
        }
        let sha256 = hashes.sha256.map(digest::Context::finish);
        if claims.sha256.is_some_and(|wanted| sha256.is_none_or(|found| found.as_ref() != wanted)) {
            return Err(ErrorCode::XAmzContentSHA256Mismatch.into());
        }
        let md5 = hashes.md5.map(|md5| -> [u8; 16] { md5.finalize().into() });
        if claims.md5.is_some_and(|wanted| md5 != Some(wanted)) {
            return Err(S3Error::new(
                ErrorCode::BadDigest,
                "The Content-MD5 you specified did not match what we received.",
            ));
        }
        let trailer = trailer_value(claims.trailer, &trailers)?;
        let checksum = hashes.checksum.map(ChecksumHasher::finish);
        for wanted in claims.checksum.iter().chain(&trailer) {
            if checksum != Some(*wanted) {
                let name = wanted.algorithm().name();
                let why = format!("The {name} you specified did not match the calculated checksum.");
                return Err(S3Error::new(ErrorCode::BadDigest, why));
            }
        }
        let etag = match (hashes.crc.map(ChecksumHasher::finish), md5) {
            (Some(crc), _) => ObjectEtag::of_crc(&crc, hashes.bytes),
            (None, Some(md5)) => ObjectEtag::Md5(md5),
            (None, None) => return Err(ErrorCode::InternalError.into()),
        };
        Ok(CheckedBody { bytes: hashes.bytes, etag, checksum })
    }
}

/// The value of the announced trailer: there must be exactly those announced.
fn trailer_value(
    announced: Option<ChecksumAlgorithm>,
    trailers: &[(String, String)],
) -> S3Result<Option<ChecksumValue>> {
    match (announced, trailers) {
        (None, []) => Ok(None),
        (Some(algorithm), [(name, text)]) if name == algorithm.header() => {
            let why = format!("Value for {name} trailing header is invalid.");
            let value = ChecksumValue::parse(algorithm, text);
            value.map(Some).ok_or_else(|| S3Error::new(ErrorCode::InvalidRequest, why))
        }
        _ => Err(ErrorCode::MalformedTrailerError.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sign::payload::PayloadHash;
    use crate::testing::headers_of;
    use crate::text::unhex;

    const PLAIN: PayloadHash = PayloadHash::Unsigned;
    const TRAILER: PayloadHash = PayloadHash::Chunked { is_signed: false, has_trailer: true };

    fn check(payload: PayloadHash, headers: &[(&str, &str)], body: &[u8]) -> Result<CheckedBody, ErrorCode> {
        check_by(EtagScheme::Md5, payload, headers, body)
    }

    fn check_by(
        scheme: EtagScheme,
        payload: PayloadHash,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<CheckedBody, ErrorCode> {
        let run = || -> S3Result<CheckedBody> {
            let claims = BodyClaims::of(&headers_of(headers), payload)?;
            let mut check = BodyCheck::new(claims, None, scheme, None);
            let mut bytes = 0;
            for piece in body.chunks(7) {
                check.feed(piece, &mut |data| bytes += data.len() as u64)?;
            }
            let checked = check.finish()?;
            assert_eq!(checked.bytes, bytes);
            Ok(checked)
        };
        run().map_err(|error| error.code)
    }

    const LENGTH: (&str, &str) = ("content-length", "9");
    const BODY: &[u8] = b"123456789";

    #[test]
    fn a_body_has_its_md5_as_etag_and_its_checksum() {
        let checked = check(PLAIN, &[LENGTH, ("x-amz-checksum-crc32c", "4waSgw==")], BODY).unwrap();
        assert_eq!(checked.etag.to_string(), "\"25f9e794323b453885f5181f1b624d0b\"");
        assert_eq!(checked.checksum.unwrap().text(), "4waSgw==");
        assert_eq!(check(PLAIN, &[LENGTH], BODY).unwrap().checksum, None);
        let crc = check_by(EtagScheme::Crc, PLAIN, &[LENGTH], BODY).unwrap();
        assert_eq!(crc.etag.to_string(), "\"ae8b14860a7998880000000000000009-0\"");
        let empty = check(PLAIN, &[("content-length", "0")], b"").unwrap();
        assert_eq!(empty.etag.to_string(), "\"d41d8cd98f00b204e9800998ecf8427e\"");
    }

    #[test]
    fn a_claim_that_does_not_hold_is_refused() {
        let sha256 = unhex(b"15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225").unwrap();
        assert!(
            check(PayloadHash::Sha256(sha256), &[LENGTH, ("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==")], BODY)
                .is_ok()
        );
        for (payload, headers, body, code) in [
            (PayloadHash::Sha256([0; 32]), &[LENGTH][..], BODY, ErrorCode::XAmzContentSHA256Mismatch),
            (PLAIN, &[LENGTH, ("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")], BODY, ErrorCode::BadDigest),
            (PLAIN, &[LENGTH, ("x-amz-checksum-crc32", "AAAAAA==")], BODY, ErrorCode::BadDigest),
            (
                PLAIN,
                &[LENGTH, ("x-amz-checksum-sha1", "2jmj7l5rSw0yVb/vlWAYkK/YBwk=")],
                BODY,
                ErrorCode::BadDigest,
            ),
            (PLAIN, &[LENGTH], b"1234567890", ErrorCode::IncompleteBody),
            (PLAIN, &[LENGTH], b"12345678", ErrorCode::IncompleteBody),
        ] {
            assert_eq!(check(payload, headers, body), Err(code), "{headers:?}");
        }
    }

    #[test]
    fn a_trailer_is_the_one_announced_and_right() {
        let with = |announced: &str, trailers: &str| {
            let body = format!("9\r\n123456789\r\n0\r\n{trailers}\r\n");
            let headers = [("x-amz-decoded-content-length", "9"), ("x-amz-trailer", announced)];
            check(TRAILER, &headers, body.as_bytes())
                .map(|checked| checked.checksum.map(|value| value.text()))
        };
        let crc = "x-amz-checksum-crc64nvme";
        assert_eq!(with(crc, &format!("{crc}:rosUhgp5mIg=\r\n")), Ok(Some("rosUhgp5mIg=".to_owned())));
        assert_eq!(with(crc, &format!("{crc}:AAAAAAAAAAA=\r\n")), Err(ErrorCode::BadDigest));
        assert_eq!(with(crc, &format!("{crc}:AAAA\r\n")), Err(ErrorCode::InvalidRequest));
        assert_eq!(with(crc, ""), Err(ErrorCode::MalformedTrailerError));
        assert_eq!(with(crc, "x-amz-checksum-crc32:y/Q5Jg==\r\n"), Err(ErrorCode::MalformedTrailerError));
        assert_eq!(with("", &format!("{crc}:rosUhgp5mIg=\r\n")), Err(ErrorCode::MalformedTrailerError));
        assert_eq!(with("", ""), Ok(None));
    }

    /// Java's second SDK: framed, although the header names no streaming form.
    #[test]
    fn unsigned_payload_with_framing_and_decoded_length_is_decoded() {
        let headers = [
            ("content-encoding", "aws-chunked"),
            ("x-amz-decoded-content-length", "9"),
            ("content-length", "19"),
        ];
        assert_eq!(check(PLAIN, &headers, b"9\r\n123456789\r\n0\r\n\r\n").unwrap().bytes, 9);
        let lie = [("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", "8")];
        assert_eq!(check(PLAIN, &lie, b"9\r\n123456789\r\n0\r\n\r\n"), Err(ErrorCode::IncompleteBody));
    }

    proptest! {
        #[test]
        fn any_body_is_checked_or_refused(body: Vec<u8>) {
            let length = body.len().to_string();
            let checked = check(PLAIN, &[("content-length", &length)], &body);
            prop_assert_eq!(checked.map(|checked| checked.bytes), Ok(body.len() as u64));
            let _ = check(TRAILER, &[("x-amz-decoded-content-length", "5")], &body);
        }
    }
}
