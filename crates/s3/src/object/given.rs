//! The metadata that a put, a copy, a POST form or a new upload sends along.

use http::HeaderMap;
use shoal_base::limits::CONTENT_TYPE_BYTES_MAX;
use shoal_engine::Metadata;

use super::metadata::{S3Metadata, attribute};
use super::tags::TagSet;
use crate::access::acl::CannedAcl;
use crate::body::claims::stored_encoding;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::{STORED_HEADER_BYTES_MAX, header, user_metadata};

/// The metadata in the headers of a request. Tags are read by [`tags_in`], since a copy decides on them separately.
///
/// # Errors
/// `MetadataTooLarge`, `InvalidArgument`.
pub fn metadata_in(headers: &HeaderMap) -> S3Result<Metadata> {
    let content_type = header(headers, "content-type")?.unwrap_or("");
    if content_type.len() > CONTENT_TYPE_BYTES_MAX {
        let why = format!("A content type has at most {CONTENT_TYPE_BYTES_MAX} bytes.");
        return Err(S3Error::argument("content-type", "", why));
    }
    let content_type = content_type.to_owned();
    let mut metadata = Metadata { content_type, user: user_metadata(headers)?, ..Metadata::default() };
    for (tag, name) in attribute::HEADERS {
        let Some(value) = headers.get(name) else { continue };
        let value = match tag {
            attribute::CONTENT_ENCODING => {
                header(headers, name)?.and_then(stored_encoding).map(String::into_bytes)
            }
            attribute::REDIRECT => Some(redirect(header(headers, name)?.unwrap_or(""))?.into()),
            _ => Some(value.as_bytes().to_vec()),
        };
        if value.as_ref().is_some_and(|value| value.len() > STORED_HEADER_BYTES_MAX) {
            let why = format!("The header has at most {STORED_HEADER_BYTES_MAX} bytes.");
            return Err(S3Error::argument(name, "", why));
        }
        metadata.attributes.set(tag, value.filter(|value| !value.is_empty()).as_deref());
    }
    metadata.set_acl(CannedAcl::in_headers(headers)?.unwrap_or_default());
    Ok(metadata)
}

/// The tags in the headers of a request.
///
/// # Errors
/// `InvalidTag`, `InvalidArgument`.
pub fn tags_in(headers: &HeaderMap) -> S3Result<TagSet> {
    header(headers, "x-amz-tagging")?.map_or(Ok(TagSet::default()), TagSet::parse_header)
}

fn redirect(location: &str) -> S3Result<String> {
    let is_location = ["/", "http://", "https://"].iter().any(|start| location.starts_with(start));
    if is_location {
        return Ok(location.to_owned());
    }
    let why = "The website redirect location must have a prefix of 'http://' or 'https://' or '/'.";
    Err(S3Error::new(ErrorCode::InvalidArgument, why))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::testing::headers_of;

    #[test]
    fn headers_become_attributes() {
        let headers = headers_of(&[
            ("content-type", "text/plain"),
            ("content-encoding", "aws-chunked"),
            ("cache-control", "no-cache"),
            ("content-disposition", "attachment; filename=\"é\""),
            ("expires", "any text"),
            ("x-amz-website-redirect-location", "/other"),
            ("x-amz-acl", "public-read"),
            ("x-amz-meta-k", "v"),
            ("x-amz-tagging", "a=1"),
        ]);
        let metadata = metadata_in(&headers).unwrap();
        assert_eq!(metadata.content_type, "text/plain");
        assert_eq!(metadata.attributes.get(attribute::CONTENT_ENCODING), None);
        assert_eq!(metadata.header(attribute::CONTENT_DISPOSITION), Some("attachment; filename=\"é\""));
        assert_eq!(metadata.header(attribute::REDIRECT), Some("/other"));
        assert_eq!(metadata.acl(), CannedAcl::PublicRead);
        assert_eq!(metadata.user, [("k".to_owned(), Bytes::from_static(b"v"))]);
        assert_eq!(tags_in(&headers).unwrap().pairs().len(), 1);
        assert_eq!(tags_in(&HeaderMap::new()), Ok(TagSet::default()));
    }

    #[test]
    fn long_and_wrong_headers_are_refused() {
        for (name, value) in [
            ("content-type", &*"a".repeat(256)),
            ("cache-control", &*"a".repeat(2_049)),
            ("x-amz-website-redirect-location", "ftp://a"),
            ("x-amz-acl", "secret"),
        ] {
            assert_eq!(
                metadata_in(&headers_of(&[(name, value)])).unwrap_err().code,
                ErrorCode::InvalidArgument,
                "{name}"
            );
        }
        assert!(metadata_in(&headers_of(&[("cache-control", &"a".repeat(2_048))])).is_ok());
    }
}
