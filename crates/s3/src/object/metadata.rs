//! The attributes that S3 stores with an object, beside its content type and its user metadata. The store keeps them as they are
//! (`shoal_engine::Attributes`). Their bytes: `docs/format/s3.md`.

use shoal_base::limits::{CONTENT_TYPE_BYTES_MAX, METADATA_BYTES_MAX};
use shoal_engine::Metadata;

use super::etag::ObjectEtag;
use super::tags::TagSet;
use crate::access::acl::CannedAcl;
use crate::body::checksum::{ChecksumAlgorithm, ChecksumValue};
use crate::request::error::{ErrorCode, S3Error, S3Result};

/// The tags of attributes.
pub mod attribute {
    use shoal_engine::Attributes;

    /// The ETag.
    pub const ETAG: u8 = Attributes::ETAG;
    /// The checksum.
    pub const CHECKSUM: u8 = Attributes::CHECKSUM;
    /// Cache-Control.
    pub const CACHE_CONTROL: u8 = 3;
    /// Content-Disposition.
    pub const CONTENT_DISPOSITION: u8 = 4;
    /// Content-Encoding.
    pub const CONTENT_ENCODING: u8 = 5;
    /// Content-Language.
    pub const CONTENT_LANGUAGE: u8 = 6;
    /// Expires.
    pub const EXPIRES: u8 = 7;
    /// The website's redirect location.
    pub const REDIRECT: u8 = 8;
    /// Tags.
    pub const TAGS: u8 = 9;
    /// A canned ACL.
    pub const ACL: u8 = 12;

    /// The stored headers, with their names.
    pub const HEADERS: [(u8, &str); 6] = [
        (CACHE_CONTROL, "cache-control"),
        (CONTENT_DISPOSITION, "content-disposition"),
        (CONTENT_ENCODING, "content-encoding"),
        (CONTENT_LANGUAGE, "content-language"),
        (EXPIRES, "expires"),
        (REDIRECT, "x-amz-website-redirect-location"),
    ];
}

/// A checksum as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredChecksum {
    /// The value.
    pub value: ChecksumValue,
    /// The number of parts of a composite checksum; `None` for one of the whole value.
    pub parts: Option<u16>,
}

impl StoredChecksum {
    /// The value of a header: a composite one has the number of parts after a hyphen.
    #[must_use]
    pub fn text(&self) -> String {
        match self.parts {
            Some(parts) => format!("{}-{parts}", self.value.text()),
            None => self.value.text(),
        }
    }

    /// The name of the type.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        if self.parts.is_some() { "COMPOSITE" } else { "FULL_OBJECT" }
    }

    pub(crate) fn attribute(&self) -> Vec<u8> {
        let mut out = vec![self.value.algorithm() as u8, u8::from(self.parts.is_none())];
        out.extend_from_slice(self.value.as_bytes());
        out.extend(self.parts.into_iter().flat_map(u16::to_le_bytes));
        out
    }

    /// Reads the stored attribute.
    pub(crate) fn of_attribute(bytes: &[u8]) -> Option<Self> {
        let [algorithm, kind, rest @ ..] = bytes else { return None };
        let algorithm = ChecksumAlgorithm::of_number(*algorithm)?;
        let (value, rest) = rest.split_at_checked(algorithm.bytes())?;
        let parts = match (kind, rest) {
            (0, [low, high]) => Some(u16::from_le_bytes([*low, *high])),
            (1, []) => None,
            _ => return None,
        };
        Some(Self { value: ChecksumValue::new(algorithm, value)?, parts })
    }
}

/// Bytes of the store's form of metadata that are no attribute and no content type: lengths of names and values, and the mark.
const OVERHEAD_BYTES: usize = 8;

/// Reads and sets the attributes of S3 in metadata.
pub trait S3Metadata {
    /// The ETag of the value; without a stored one that of its version and length.
    fn etag(&self, version: u64, bytes: u64) -> ObjectEtag;

    /// The checksum of the value.
    fn checksum(&self) -> Option<StoredChecksum>;

    /// Stores the ETag and the checksum of the value.
    fn set_of_value(&mut self, etag: &ObjectEtag, checksum: Option<StoredChecksum>);

    /// A stored header.
    fn header(&self, tag: u8) -> Option<&str>;

    /// The tags.
    fn tags(&self) -> TagSet;

    /// Stores tags; an empty set takes no bytes.
    fn set_tags(&mut self, tags: &TagSet);

    /// The canned ACL; without one the object is private.
    fn acl(&self) -> CannedAcl;

    /// Stores a canned ACL; that of a private object takes no bytes.
    fn set_acl(&mut self, acl: CannedAcl);

    /// Checks that the store takes it.
    ///
    /// # Errors
    /// `MetadataTooLarge`, `InvalidArgument`.
    fn check_bytes(&self) -> S3Result<()>;
}

impl S3Metadata for Metadata {
    fn etag(&self, version: u64, bytes: u64) -> ObjectEtag {
        let stored = self.attributes.get(attribute::ETAG).and_then(ObjectEtag::of_attribute);
        stored.unwrap_or(ObjectEtag::Version(version, bytes))
    }

    fn checksum(&self) -> Option<StoredChecksum> {
        self.attributes.get(attribute::CHECKSUM).and_then(StoredChecksum::of_attribute)
    }

    fn set_of_value(&mut self, etag: &ObjectEtag, checksum: Option<StoredChecksum>) {
        let checksum = checksum.map(|checksum| checksum.attribute());
        self.attributes.set(attribute::ETAG, etag.attribute().as_deref());
        self.attributes.set(attribute::CHECKSUM, checksum.as_deref());
    }

    fn header(&self, tag: u8) -> Option<&str> {
        self.attributes.get(tag).and_then(|value| str::from_utf8(value).ok())
    }

    fn tags(&self) -> TagSet {
        let stored = self.attributes.get(attribute::TAGS).map(TagSet::of_attribute);
        stored.and_then(Result::ok).unwrap_or_default()
    }

    fn set_tags(&mut self, tags: &TagSet) {
        let stored = (!tags.pairs().is_empty()).then(|| tags.attribute());
        self.attributes.set(attribute::TAGS, stored.as_deref());
    }

    fn acl(&self) -> CannedAcl {
        let stored = self.attributes.get(attribute::ACL).and_then(<[u8]>::first);
        stored.and_then(|number| CannedAcl::of_number(*number)).unwrap_or_default()
    }

    fn set_acl(&mut self, acl: CannedAcl) {
        let stored = [acl as u8];
        self.attributes.set(attribute::ACL, (acl != CannedAcl::default()).then_some(&stored));
    }

    fn check_bytes(&self) -> S3Result<()> {
        if self.content_type.len() > CONTENT_TYPE_BYTES_MAX {
            let why = format!("A content type has at most {CONTENT_TYPE_BYTES_MAX} bytes.");
            return Err(S3Error::argument("content-type", "", why));
        }
        let user = self.user.iter().map(|(name, value)| name.len() + value.len() + OVERHEAD_BYTES);
        let others = self.content_type.len() + self.attributes.as_bytes().len() + OVERHEAD_BYTES;
        if user.sum::<usize>() + others > METADATA_BYTES_MAX {
            let why =
                format!("Metadata, headers and tags of an object have at most {METADATA_BYTES_MAX} bytes.");
            return Err(S3Error::new(ErrorCode::MetadataTooLarge, why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use shoal_engine::Attributes;

    use super::*;

    /// The example of `docs/format/s3.md`.
    #[test]
    fn golden_bytes_of_attributes() {
        let mut metadata = Metadata::default();
        let crc = ChecksumValue::new(ChecksumAlgorithm::Crc32, &[1, 2, 3, 4]).unwrap();
        metadata.set_of_value(&ObjectEtag::Md5([7; 16]), Some(StoredChecksum { value: crc, parts: None }));
        metadata.set_tags(&TagSet::parse_header("b=2&a=").unwrap());
        let document = include_str!("../../../../docs/format/s3.md");
        let example = document.split("```\n").nth(1).unwrap();
        let bytes = example.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap());
        assert_eq!(metadata.attributes.as_bytes(), bytes.collect::<Vec<_>>());
        metadata.set_acl(CannedAcl::PublicRead);
        assert!(metadata.attributes.as_bytes().ends_with(&[12, 1, 2]));
        let sha = ChecksumValue::new(ChecksumAlgorithm::Sha256, &[9; 32]).unwrap();
        let checksum = StoredChecksum { value: sha, parts: Some(3) };
        metadata.set_of_value(&ObjectEtag::Multipart([7; 16], 3), Some(checksum));
        let expected = [&[1, 18][..], &[7; 16], &[3, 0], &[2, 36, 5, 0], &[9; 32], &[3, 0]].concat();
        assert_eq!(metadata.attributes.of_value(), expected);
    }

    #[test]
    fn attributes_are_typed_and_unknown_ones_stay() {
        let mut metadata = Metadata::default();
        let sha = ChecksumValue::new(ChecksumAlgorithm::Sha256, &[9; 32]).unwrap();
        let checksum = StoredChecksum { value: sha, parts: Some(3) };
        metadata.set_of_value(&ObjectEtag::Multipart([7; 16], 3), Some(checksum));
        metadata.attributes.set(200, Some(&[1, 2]));
        metadata.attributes.set(attribute::EXPIRES, Some(b"never"));
        metadata.set_acl(CannedAcl::PublicRead);
        metadata.set_tags(&TagSet::parse_header("a=1").unwrap());
        assert_eq!(metadata.etag(1, 2), ObjectEtag::Multipart([7; 16], 3));
        assert_eq!(metadata.checksum().unwrap().text(), format!("{}-3", sha.text()));
        assert_eq!(metadata.header(attribute::EXPIRES), Some("never"));
        assert_eq!((metadata.acl(), metadata.tags().pairs().len()), (CannedAcl::PublicRead, 1));
        let mut changed = metadata.of_new_value();
        assert_eq!((changed.etag(1, 2), changed.checksum()), (ObjectEtag::Version(1, 2), None));
        assert_eq!(changed.attributes.get(200), Some(&[1, 2][..]));
        changed.set_acl(CannedAcl::Private);
        changed.set_tags(&TagSet::default());
        assert_eq!(
            (changed.attributes.get(attribute::ACL), changed.attributes.get(attribute::TAGS)),
            (None, None)
        );
    }

    #[test]
    fn large_metadata_is_refused() {
        let of = |bytes: usize| {
            let mut metadata = Metadata::default();
            metadata.attributes.set(attribute::EXPIRES, Some(&vec![b'x'; bytes]));
            metadata.user.push(("k".to_owned(), Bytes::from_static(b"v")));
            metadata.check_bytes().map_err(|error| error.code)
        };
        assert_eq!(of(METADATA_BYTES_MAX - 64), Ok(()));
        assert_eq!(of(METADATA_BYTES_MAX), Err(ErrorCode::MetadataTooLarge));
        let long = Metadata { content_type: "c".repeat(256), ..Metadata::default() };
        assert_eq!(long.check_bytes().unwrap_err().code, ErrorCode::InvalidArgument);
    }

    proptest! {
        #[test]
        fn any_attributes_are_read(bytes: Vec<u8>, tag in 1_u8..13) {
            let mut attributes = Attributes::decode(&bytes).unwrap_or_default();
            attributes.set(tag, Some(&bytes));
            let metadata = Metadata { attributes, ..Metadata::default() };
            let _ = (metadata.etag(1, 1), metadata.checksum(), metadata.tags(), metadata.acl());
            prop_assert!(metadata.header(tag).is_none_or(|text| text.as_bytes() == bytes));
        }
    }
}
