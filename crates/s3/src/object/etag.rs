//! ETags, and the attribute that stores them.
//!
//! | ETag | of | stored |
//! |---|---|---|
//! | `"<MD5>"` | a put, a copy, a POST | 16 bytes |
//! | `"<MD5 of the parts' MD5s>-N"` | a multipart upload of N parts | 16 bytes, N (2) |
//! | `"<CRC-64/NVME><length>-0"` | a put into a bucket with that scheme | 1, CRC (8), length (8) |
//! | `"<version><length>-0"` | a value that another frontend wrote | not stored |
//!
//! Numbers are 16 hex digits in the ETag and little-endian in the attribute. For clients an ETag with a hyphen is not
//! the MD5 of the value.

use std::fmt;

use md5::{Digest, Md5};

use crate::body::checksum::ChecksumValue;
use crate::text::hex;

/// The ETag of an object or a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectEtag {
    /// The MD5 of the value.
    Md5([u8; 16]),
    /// The MD5 of the parts' MD5s, and the number of parts.
    Multipart([u8; 16], u16),
    /// The CRC-64/NVME of the value, and its length.
    Crc(u64, u64),
    /// The version of a value without a stored ETag, and its length.
    Version(u64, u64),
}

impl ObjectEtag {
    /// The ETag of a value with this CRC-64/NVME.
    pub(crate) fn of_crc(crc: &ChecksumValue, bytes: u64) -> Self {
        let crc = crc.as_bytes().iter().take(8).fold(0, |crc, byte| (crc << 8) | u64::from(*byte));
        Self::Crc(crc, bytes)
    }

    /// The ETag of an upload that consists of these parts.
    #[must_use]
    pub fn of_parts(parts: &[Self]) -> Self {
        let mut md5 = Md5::new();
        for part in parts {
            match part {
                Self::Md5(hash) => md5.update(hash),
                part => md5.update(part.attribute().unwrap_or_default()),
            }
        }
        Self::Multipart(md5.finalize().into(), u16::try_from(parts.len()).unwrap_or(u16::MAX))
    }

    /// Reads the stored attribute.
    #[must_use]
    pub fn of_attribute(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first_chunk::<16>()? {
            (md5, []) => Some(Self::Md5(*md5)),
            (md5, [low, high]) => Some(Self::Multipart(*md5, u16::from_le_bytes([*low, *high]))),
            _ => {
                let (crc, bytes) = bytes.strip_prefix(&[1])?.split_first_chunk::<8>()?;
                Some(Self::Crc(u64::from_le_bytes(*crc), u64::from_le_bytes(bytes.try_into().ok()?)))
            }
        }
    }

    /// The attribute to store; `None` if the ETag is computed from the version.
    #[must_use]
    pub fn attribute(&self) -> Option<Vec<u8>> {
        match self {
            Self::Md5(md5) => Some(md5.to_vec()),
            Self::Multipart(md5, parts) => Some([&md5[..], &parts.to_le_bytes()].concat()),
            Self::Crc(crc, bytes) => Some([&[1], &crc.to_le_bytes()[..], &bytes.to_le_bytes()].concat()),
            Self::Version(..) => None,
        }
    }
}

/// The ETag in its quotes.
impl fmt::Display for ObjectEtag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Md5(md5) => write!(f, "\"{}\"", hex(md5)),
            Self::Multipart(md5, parts) => write!(f, "\"{}-{parts}\"", hex(md5)),
            Self::Crc(number, bytes) | Self::Version(number, bytes) => {
                write!(f, "\"{number:016x}{bytes:016x}-0\"")
            }
        }
    }
}

/// Returns true if a list of ETags in a header, with or without quotes, has `etag` (in quotes), or is a star. A weak tag
/// counts only if `is_weak`.
#[must_use]
pub fn etag_list_has(list: &str, etag: &str, is_weak: bool) -> bool {
    let bare = |tag: &str| tag.trim().trim_matches('"').to_owned();
    list.split(',').map(str::trim).any(|tag| match tag.strip_prefix("W/") {
        Some(tag) => is_weak && bare(tag) == bare(etag),
        None => tag == "*" || bare(tag) == bare(etag),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_form_as_text_and_as_attribute() {
        for (etag, text, bytes) in [
            (ObjectEtag::Md5([10; 16]), format!("\"{}\"", "0a".repeat(16)), Some(16)),
            (ObjectEtag::Multipart([10; 16], 10_000), format!("\"{}-10000\"", "0a".repeat(16)), Some(18)),
            (ObjectEtag::Crc(255, 4_096), "\"00000000000000ff0000000000001000-0\"".to_owned(), Some(17)),
            (ObjectEtag::Version(255, 4_096), "\"00000000000000ff0000000000001000-0\"".to_owned(), None),
        ] {
            assert_eq!(etag.to_string(), text);
            let attribute = etag.attribute();
            assert_eq!(attribute.as_ref().map(Vec::len), bytes);
            if let Some(attribute) = attribute {
                assert_eq!(ObjectEtag::of_attribute(&attribute), Some(etag));
            }
        }
        let crc = ObjectEtag::Crc(0x0102, 3).attribute().unwrap();
        assert_eq!(crc, [1, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ObjectEtag::of_attribute(&[2; 17]), None);
    }

    /// The MD5 of the bytes of two MD5s, as `md5sum` computes it.
    #[test]
    fn an_upload_has_the_md5_of_its_parts() {
        let etag = ObjectEtag::of_parts(&[ObjectEtag::Md5([0; 16]), ObjectEtag::Md5([0; 16])]);
        assert_eq!(etag.to_string(), "\"70bc8f4b72a86921468bf8e8441dce51-2\"");
        assert_ne!(
            ObjectEtag::of_parts(&[ObjectEtag::Crc(1, 2)]),
            ObjectEtag::of_parts(&[ObjectEtag::Crc(1, 3)])
        );
    }

    #[test]
    fn lists_of_etags() {
        for (list, is_weak, expected) in [
            ("\"a\"", false, true),
            ("a", false, true),
            ("\"b\" , \"a\"", false, true),
            ("*", false, true),
            ("W/\"a\"", false, false),
            ("W/\"a\"", true, true),
            ("\"A\"", true, false),
            ("", true, false),
        ] {
            assert_eq!(etag_list_has(list, "\"a\"", is_weak), expected, "{list}");
        }
    }

    proptest! {
        #[test]
        fn any_attribute_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Some(etag) = ObjectEtag::of_attribute(&bytes) {
                prop_assert_eq!(etag.attribute(), Some(bytes));
            }
        }
    }
}
