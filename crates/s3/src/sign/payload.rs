//! The header `x-amz-content-sha256`: the hash of the body, or the form in which the body's chunks carry signatures.

use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::text::unhex;

/// The value for a body that the signature does not cover.
pub const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

/// The hash of a body, as the request announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadHash {
    /// The body is not covered.
    Unsigned,
    /// The SHA-256 of the whole body.
    Sha256([u8; 32]),
    /// The body is framed in chunks (`aws-chunked`).
    Chunked {
        /// Each chunk has a signature.
        is_signed: bool,
        /// Trailers follow the last chunk.
        has_trailer: bool,
    },
}

impl PayloadHash {
    /// Reads the header's value.
    ///
    /// # Errors
    /// `InvalidArgument`; `NotImplemented` for signatures with elliptic curves.
    pub fn parse(text: &str) -> S3Result<Self> {
        let chunked = |is_signed, has_trailer| Ok(Self::Chunked { is_signed, has_trailer });
        match text {
            UNSIGNED_PAYLOAD => Ok(Self::Unsigned),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => chunked(true, false),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => chunked(true, true),
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => chunked(false, true),
            text if text.starts_with("STREAMING-AWS4-ECDSA") => {
                Err(S3Error::not_implemented("Signature version 4A"))
            }
            text => unhex(text.as_bytes()).map(Self::Sha256).ok_or_else(|| {
                let why =
                    "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a STREAMING form, or a SHA-256 in hex.";
                S3Error::new(ErrorCode::InvalidArgument, why)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_known_and_others_are_refused() {
        assert_eq!(PayloadHash::parse("UNSIGNED-PAYLOAD"), Ok(PayloadHash::Unsigned));
        assert_eq!(PayloadHash::parse(&"0a".repeat(32)), Ok(PayloadHash::Sha256([10; 32])));
        let trailer = PayloadHash::Chunked { is_signed: false, has_trailer: true };
        assert_eq!(PayloadHash::parse("STREAMING-UNSIGNED-PAYLOAD-TRAILER"), Ok(trailer));
        for (text, code) in [
            ("", ErrorCode::InvalidArgument),
            (&"0a".repeat(31), ErrorCode::InvalidArgument),
            ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", ErrorCode::NotImplemented),
        ] {
            assert_eq!(PayloadHash::parse(text).unwrap_err().code, code, "{text}");
        }
    }
}
