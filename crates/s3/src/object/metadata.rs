//! Extended metadata: attributes of an object beside its content type and its user metadata.
//!
//! # Format
//!
//! Metadata without attributes has the form of `docs/format/object.md`: nothing, or content type and pairs of name and value,
//! each after its LEB128 length. A content type has at most 255 bytes, so a first number of 256 marks the extended form:
//!
//! | field | bytes |
//! |---|---|
//! | mark | LEB128 256: 0x80 0x02 |
//! | content type | LEB128 length, bytes |
//! | attributes | LEB128 length of all, then each: tag (1), LEB128 length, bytes; tags ascend, each occurs once |
//! | user pairs | name and value, each LEB128 length and bytes, to the end |
//!
//! | tag | attribute | bytes |
//! |---|---|---|
//! | 1 | ETag | 16: MD5; 18: MD5 of the parts' MD5s, number of parts (2); 17: 1, CRC-64/NVME (8), length (8) |
//! | 2 | checksum | algorithm (1: 1 CRC32, 2 CRC32C, 3 CRC64NVME, 4 SHA1, 5 SHA256), type (1: 0 composite, 1 full object), value (4, 4, 8, 20, 32; CRCs big-endian as in headers), with type 0 the number of parts (2) |
//! | 3 to 8 | Cache-Control, Content-Disposition, Content-Encoding, Content-Language, Expires, website redirect location | the value, 1 to 2,048 |
//! | 9 | tags | pairs of key and value, each LEB128 length and bytes, sorted by key |
//! | 10 | retention (reserved) | mode (1: 1 governance, 2 compliance), until (8, seconds since the Unix epoch) |
//! | 11 | legal hold (reserved) | 1 |
//! | 12 | canned ACL | 1 private, 2 public-read, 3 public-read-write, 4 authenticated-read, 5 bucket-owner-read, 6 bucket-owner-full-control |
//!
//! Numbers are little-endian unless it is noted otherwise. All of it has at most 24 KiB. **Not valid:** attributes that do
//! not ascend or are cut; names, values or content types that are cut; text that is not UTF-8. A reader keeps and copies
//! attributes with unknown tags. A writer that replaces the value drops attributes 1 and 2.

use bytes::Bytes;
use shoal_base::codec::{Reader, Truncated, put_prefixed, put_varint};
use shoal_base::limits::CONTENT_TYPE_BYTES_MAX;

use super::etag::ObjectEtag;
use super::tags::TagSet;
use crate::access::acl::CannedAcl;
use crate::body::checksum::{ChecksumAlgorithm, ChecksumValue};
use crate::request::error::{ErrorCode, S3Error, S3Result};

/// The first number of the extended form.
const MARK: u64 = 256;

/// Most bytes of encoded metadata.
pub const METADATA_BYTES_MAX: usize = 24 << 10;

/// Most bytes of a summary: the attributes that stay in the entry if the metadata is stored before the value.
pub const SUMMARY_BYTES_MAX: usize = 64;

/// The tags of attributes.
pub mod attribute {
    /// The ETag.
    pub const ETAG: u8 = 1;
    /// The checksum.
    pub const CHECKSUM: u8 = 2;
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

    fn attribute(&self) -> Vec<u8> {
        let mut out = vec![self.value.algorithm() as u8, u8::from(self.parts.is_none())];
        out.extend_from_slice(self.value.as_bytes());
        out.extend(self.parts.into_iter().flat_map(u16::to_le_bytes));
        out
    }

    fn of_attribute(bytes: &[u8]) -> Option<Self> {
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

/// The metadata of an object, with attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedMetadata {
    /// The content type; empty if unknown.
    pub content_type: String,
    /// User metadata: names in lower case, and values.
    pub user: Vec<(String, Bytes)>,
    /// Tags and values; the tags ascend.
    attributes: Vec<(u8, Vec<u8>)>,
}

impl ExtendedMetadata {
    /// Reads either form.
    ///
    /// # Errors
    /// [`Truncated`] for bytes that are not valid.
    pub fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| Truncated);
        let mut reader = Reader::new(bytes);
        let mut after_mark = reader;
        let is_extended = after_mark.varint()? == MARK;
        if is_extended {
            reader = after_mark;
        }
        let content_type = text(reader.prefixed()?)?;
        if content_type.len() > CONTENT_TYPE_BYTES_MAX {
            return Err(Truncated);
        }
        let attributes = if is_extended { decode_attributes(reader.prefixed()?)? } else { Vec::new() };
        let mut user = Vec::new();
        while !reader.is_empty() {
            user.push((text(reader.prefixed()?)?, Bytes::copy_from_slice(reader.prefixed()?)));
        }
        Ok(Self { content_type, user, attributes })
    }

    /// The bytes to store: today's form if there is no attribute.
    ///
    /// # Errors
    /// `MetadataTooLarge`.
    pub fn encode(&self) -> S3Result<Vec<u8>> {
        let mut out = Vec::new();
        if *self == Self::default() {
            return Ok(out);
        }
        if self.content_type.len() > CONTENT_TYPE_BYTES_MAX {
            let why = format!("A content type has at most {CONTENT_TYPE_BYTES_MAX} bytes.");
            return Err(S3Error::argument("content-type", "", why));
        }
        if !self.attributes.is_empty() {
            put_varint(&mut out, MARK);
        }
        put_prefixed(&mut out, self.content_type.as_bytes());
        if !self.attributes.is_empty() {
            put_prefixed(&mut out, &encode_attributes(self.attributes.iter()));
        }
        for (name, value) in &self.user {
            put_prefixed(&mut out, name.as_bytes());
            put_prefixed(&mut out, value);
        }
        if out.len() > METADATA_BYTES_MAX {
            let why =
                format!("Metadata, headers and tags of an object have at most {METADATA_BYTES_MAX} bytes.");
            return Err(S3Error::new(ErrorCode::MetadataTooLarge, why));
        }
        Ok(out)
    }

    /// The attributes, encoded.
    pub(crate) fn attribute_bytes(&self) -> Vec<u8> {
        encode_attributes(self.attributes.iter())
    }

    /// The metadata that consists of these parts. Attributes that are not valid count as absent.
    pub(crate) fn of_parts(content_type: String, user: Vec<(String, Bytes)>, attributes: &[u8]) -> Self {
        Self { content_type, user, attributes: decode_attributes(attributes).unwrap_or_default() }
    }

    /// The attributes of a listing, as they are encoded in an entry whose metadata is stored before the value.
    #[must_use]
    pub fn summary(&self) -> Vec<u8> {
        let listed = self.attributes.iter().filter(|(tag, _)| *tag <= attribute::CHECKSUM);
        let out = encode_attributes(listed);
        assert!(out.len() <= SUMMARY_BYTES_MAX, "an ETag has at most 18 bytes and a checksum 36");
        out
    }

    /// The bytes of an attribute.
    #[must_use]
    pub fn attribute(&self, tag: u8) -> Option<&[u8]> {
        self.attributes.iter().find(|(found, _)| *found == tag).map(|(_, value)| value.as_slice())
    }

    /// Sets an attribute, or removes it.
    pub fn set_attribute(&mut self, tag: u8, value: Option<Vec<u8>>) {
        self.attributes.retain(|(found, _)| *found != tag);
        if let Some(value) = value {
            let at = self.attributes.partition_point(|(found, _)| *found < tag);
            self.attributes.insert(at, (tag, value));
        }
    }

    /// Removes the attributes that describe the value, because it changes.
    pub fn drop_of_value(&mut self) {
        self.attributes.retain(|(tag, _)| *tag > attribute::CHECKSUM);
    }

    /// The ETag of the value; without a stored one that of its version and length.
    #[must_use]
    pub fn etag(&self, version: u64, bytes: u64) -> ObjectEtag {
        let stored = self.attribute(attribute::ETAG).and_then(ObjectEtag::of_attribute);
        stored.unwrap_or(ObjectEtag::Version(version, bytes))
    }

    /// Stores the ETag and the checksum of the value.
    pub fn set_of_value(&mut self, etag: &ObjectEtag, checksum: Option<StoredChecksum>) {
        self.set_attribute(attribute::ETAG, etag.attribute());
        self.set_attribute(attribute::CHECKSUM, checksum.map(|checksum| checksum.attribute()));
    }

    /// The checksum of the value.
    #[must_use]
    pub fn checksum(&self) -> Option<StoredChecksum> {
        self.attribute(attribute::CHECKSUM).and_then(StoredChecksum::of_attribute)
    }

    /// A stored header.
    #[must_use]
    pub fn header(&self, tag: u8) -> Option<&str> {
        self.attribute(tag).and_then(|value| str::from_utf8(value).ok())
    }

    /// The tags.
    #[must_use]
    pub fn tags(&self) -> TagSet {
        let stored = self.attribute(attribute::TAGS).map(TagSet::of_attribute);
        stored.and_then(Result::ok).unwrap_or_default()
    }

    /// Stores tags; an empty set takes no bytes.
    pub fn set_tags(&mut self, tags: &TagSet) {
        self.set_attribute(attribute::TAGS, (!tags.pairs().is_empty()).then(|| tags.attribute()));
    }

    /// The canned ACL; without one the object is private.
    #[must_use]
    pub fn acl(&self) -> CannedAcl {
        let stored = self.attribute(attribute::ACL).and_then(<[u8]>::first);
        stored.and_then(|number| CannedAcl::of_number(*number)).unwrap_or_default()
    }

    /// Stores a canned ACL; that of a private object takes no bytes.
    pub fn set_acl(&mut self, acl: CannedAcl) {
        self.set_attribute(attribute::ACL, (acl != CannedAcl::default()).then(|| vec![acl as u8]));
    }
}

fn encode_attributes<'a>(attributes: impl Iterator<Item = &'a (u8, Vec<u8>)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (tag, value) in attributes {
        out.push(*tag);
        put_prefixed(&mut out, value);
    }
    out
}

fn decode_attributes(bytes: &[u8]) -> Result<Vec<(u8, Vec<u8>)>, Truncated> {
    let mut reader = Reader::new(bytes);
    let mut out: Vec<(u8, Vec<u8>)> = Vec::new();
    while !reader.is_empty() {
        let (tag, value) = (reader.u8()?, reader.prefixed()?.to_vec());
        if out.last().is_some_and(|(last, _)| *last >= tag) {
            return Err(Truncated);
        }
        out.push((tag, value));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put() -> ExtendedMetadata {
        let mut metadata = ExtendedMetadata { content_type: "a/b".to_owned(), ..Default::default() };
        metadata.set_of_value(&ObjectEtag::Md5([7; 16]), None);
        metadata
    }

    /// The bytes of a plain put: 22 and the content type.
    #[test]
    fn golden_bytes_of_a_plain_put() {
        let mut expected = vec![0x80, 0x02, 3, b'a', b'/', b'b', 18, 1, 16];
        expected.extend([7; 16]);
        assert_eq!(put().encode().unwrap(), expected);
        assert_eq!(ExtendedMetadata::decode(&expected), Ok(put()));
        let mut all = put();
        let crc = ChecksumValue::new(ChecksumAlgorithm::Crc32, &[1, 2, 3, 4]).unwrap();
        all.set_of_value(&ObjectEtag::Md5([7; 16]), Some(StoredChecksum { value: crc, parts: None }));
        assert_eq!(all.encode().unwrap().len(), expected.len() + 8);
        assert_eq!(all.summary(), [&[1, 16][..], &[7; 16], &[2, 6, 1, 1, 1, 2, 3, 4]].concat());
        all.user.push(("k".to_owned(), Bytes::from_static(b"v")));
        assert!(all.encode().unwrap().ends_with(&[1, b'k', 1, b'v']));
    }

    #[test]
    fn metadata_without_attributes_keeps_its_form() {
        assert!(ExtendedMetadata::default().encode().unwrap().is_empty());
        let plain = ExtendedMetadata {
            content_type: "c".repeat(255),
            user: vec![("k".to_owned(), Bytes::from_static(b"\xff"))],
            ..Default::default()
        };
        let bytes = plain.encode().unwrap();
        assert_eq!(bytes[..3], [0xFF, 0x01, b'c']);
        assert_eq!(ExtendedMetadata::decode(&bytes), Ok(plain));
    }

    #[test]
    fn attributes_are_typed_and_unknown_ones_stay() {
        let mut metadata = put();
        let sha = ChecksumValue::new(ChecksumAlgorithm::Sha256, &[9; 32]).unwrap();
        metadata.set_of_value(
            &ObjectEtag::Multipart([7; 16], 3),
            Some(StoredChecksum { value: sha, parts: Some(3) }),
        );
        metadata.set_attribute(200, Some(vec![1, 2]));
        metadata.set_attribute(attribute::EXPIRES, Some(b"never".to_vec()));
        metadata.set_acl(CannedAcl::PublicRead);
        metadata.set_tags(&TagSet::parse_header("a=1").unwrap());
        let back = ExtendedMetadata::decode(&metadata.encode().unwrap()).unwrap();
        assert_eq!(back, metadata);
        assert_eq!(back.etag(1, 2), ObjectEtag::Multipart([7; 16], 3));
        assert_eq!(back.checksum().unwrap().text(), format!("{}-3", sha.text()));
        assert_eq!(back.header(attribute::EXPIRES), Some("never"));
        assert_eq!((back.acl(), back.tags().pairs().len()), (CannedAcl::PublicRead, 1));
        assert_eq!(back.attribute(200), Some(&[1, 2][..]));
        assert!(back.summary().len() <= SUMMARY_BYTES_MAX);
        let mut changed = back;
        changed.drop_of_value();
        assert_eq!((changed.etag(1, 2), changed.checksum()), (ObjectEtag::Version(1, 2), None));
        assert_eq!(changed.attribute(200), Some(&[1, 2][..]));
        changed.set_acl(CannedAcl::Private);
        changed.set_tags(&TagSet::default());
        assert_eq!((changed.attribute(attribute::ACL), changed.attribute(attribute::TAGS)), (None, None));
    }

    #[test]
    fn invalid_and_large_metadata_is_refused() {
        for bytes in [
            &[5, b'a'][..],
            &[0x80, 0x02],
            &[0x80, 0x02, 0, 3, 2, 0, 1],
            &[0x80, 0x02, 0, 4, 2, 0, 1, 0],
            &[0x80, 0x02, 0, 4, 1, 0, 1, 0],
            &[1, 0xFF],
            &[0x81, 0x02],
        ] {
            assert_eq!(ExtendedMetadata::decode(bytes), Err(Truncated), "{bytes:?}");
        }
        let mut large = put();
        large.set_attribute(attribute::EXPIRES, Some(vec![b'x'; METADATA_BYTES_MAX]));
        assert_eq!(large.encode().unwrap_err().code, ErrorCode::MetadataTooLarge);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, is_marked: bool) {
            let bytes = if is_marked { [&[0x80, 0x02][..], &bytes].concat() } else { bytes };
            if let Ok(metadata) = ExtendedMetadata::decode(&bytes) {
                let _ = (metadata.etag(1, 1), metadata.checksum(), metadata.tags(), metadata.acl());
                prop_assert_eq!(ExtendedMetadata::decode(&metadata.encode().unwrap()), Ok(metadata));
            }
        }
    }
}
