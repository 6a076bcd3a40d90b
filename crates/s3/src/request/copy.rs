//! The source of a copy, and the directives about its metadata.

use http::HeaderMap;

use super::error::{ErrorCode, S3Error, S3Result};
use super::headers::header;
use super::target::BucketAndKey;

/// The source of a copy, and the parts that are taken from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySource {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: Vec<u8>,
    /// The metadata is that of the request instead of the source's.
    pub replaces_metadata: bool,
    /// The tags are those of the request instead of the source's.
    pub replaces_tags: bool,
}

impl CopySource {
    /// Reads `x-amz-copy-source` and the directives.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidBucketName`, `KeyTooLongError`; `NotImplemented` for versions and access points.
    pub fn parse(headers: &HeaderMap) -> S3Result<Self> {
        let text = header(headers, "x-amz-copy-source")?.unwrap_or("");
        if text.starts_with("arn:") {
            return Err(S3Error::not_implemented("A copy source with an access point"));
        }
        // A question mark of the key is escaped.
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        match query.strip_prefix("versionId=") {
            None | Some("null") => {}
            Some(_) => return Err(S3Error::not_implemented("Versioning (versionId of a copy source)")),
        }
        // Some clients escape the slash between bucket and key as well.
        let path = path.strip_prefix('/').unwrap_or(path);
        let path = if path.contains('/') {
            path.to_owned()
        } else {
            path.replacen("%2F", "/", 1).replacen("%2f", "/", 1)
        };
        let target = BucketAndKey::parse(&format!("/{path}"), None, &[])
            .map_err(|error| if error.code == ErrorCode::InvalidURI { wrong(text) } else { error })?;
        let BucketAndKey::Object(bucket, key) = target else { return Err(wrong(text)) };
        let replaces_metadata = directive(headers, "x-amz-metadata-directive")?;
        let replaces_tags = directive(headers, "x-amz-tagging-directive")?;
        Ok(Self { bucket, key, replaces_metadata, replaces_tags })
    }

    /// Refuses a copy of an object onto itself that changes nothing.
    ///
    /// # Errors
    /// `InvalidRequest`.
    pub fn check_onto(&self, bucket: &str, key: &[u8]) -> S3Result<()> {
        let changes = self.replaces_metadata || self.replaces_tags;
        if changes || self.bucket != bucket || self.key != key {
            return Ok(());
        }
        let why = "This copy request is illegal because it is trying to copy an object to itself without changing \
            the object's metadata, storage class, website redirect location or encryption attributes.";
        Err(S3Error::new(ErrorCode::InvalidRequest, why))
    }
}

fn directive(headers: &HeaderMap, name: &str) -> S3Result<bool> {
    match header(headers, name)? {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(other) => Err(S3Error::argument(name, other, "The directive is COPY or REPLACE.")),
    }
}

fn wrong(text: &str) -> S3Error {
    let why = "Copy Source must mention the source bucket and key: sourcebucket/sourcekey";
    S3Error::argument("x-amz-copy-source", text, why)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::headers_of;

    fn parse(source: &str, directive: &str) -> Result<CopySource, ErrorCode> {
        let headers = headers_of(&[("x-amz-copy-source", source), ("x-amz-metadata-directive", directive)]);
        CopySource::parse(&headers).map_err(|error| error.code)
    }

    #[test]
    fn a_source_is_decoded_once() {
        for (source, key) in [
            ("/b/a%3Fb+c%2525", &b"a?b+c%25"[..]),
            ("b/a/b?versionId=null", b"a/b"),
            ("b%2Fk", b"k"),
            ("/b//k", b"/k"),
        ] {
            let found = parse(source, "COPY").unwrap();
            assert_eq!((found.bucket.as_str(), found.key.as_slice()), ("b", key), "{source}");
        }
        for (source, code) in [
            ("", ErrorCode::InvalidArgument),
            ("b", ErrorCode::InvalidArgument),
            ("b/", ErrorCode::InvalidArgument),
            ("b/%4", ErrorCode::InvalidArgument),
            ("B/k", ErrorCode::InvalidBucketName),
            ("b/k?versionId=1", ErrorCode::NotImplemented),
            ("arn:aws:s3:us-east-1:1:accesspoint/a/object/k", ErrorCode::NotImplemented),
        ] {
            assert_eq!(parse(source, "COPY"), Err(code), "{source}");
        }
        assert_eq!(parse("b/k", "MOVE"), Err(ErrorCode::InvalidArgument));
    }

    #[test]
    fn a_copy_onto_itself_changes_something() {
        let copy = parse("b/k", "COPY").unwrap();
        assert_eq!(copy.check_onto("b", b"k").unwrap_err().code, ErrorCode::InvalidRequest);
        assert!(copy.check_onto("b", b"l").is_ok() && copy.check_onto("c", b"k").is_ok());
        assert!(parse("b/k", "REPLACE").unwrap().check_onto("b", b"k").is_ok());
    }

    proptest! {
        #[test]
        fn any_source_is_read_or_refused(source in "[ -~]{0,40}") {
            if let Ok(copy) = parse(&source, "COPY") {
                prop_assert!(!copy.bucket.is_empty() && !copy.key.is_empty());
            }
        }
    }
}
