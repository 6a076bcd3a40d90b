//! Uploads: values that arrive as numbered parts, in any order and over several connections, and become one object when they are
//! completed (`docs/adr/uploads.md`).

use std::fmt;

use shoal_base::Lsn;
use shoal_base::object::{Attributes, Metadata};

use crate::error::{Error, Result};
use crate::key::ObjectKey;
use crate::object::ObjectInfo;

/// Most parts of an upload. They are numbered from 1 on.
pub const PARTS_MAX: u16 = 10_000;

/// The number of an upload: 63 random bits, written as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UploadId(u64);

impl UploadId {
    /// The upload with this number; `None` if no upload can have it.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        (number >> 63 == 0).then_some(Self(number))
    }

    /// Reads 16 hexadecimal digits in lower case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 16 || !text.bytes().all(is_digit) {
            return None;
        }
        Self::new(u64::from_str_radix(text, 16).ok()?)
    }

    /// The number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// An upload of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// The object that it makes.
    pub key: ObjectKey,
    /// Its number.
    pub id: UploadId,
}

impl Upload {
    /// The error for an upload that does not exist.
    #[must_use]
    pub fn missing(&self) -> Error {
        Error::NoUpload(self.id)
    }
}

/// The settings of a new upload. The store keeps them without interpreting them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewUpload {
    /// Metadata for the object.
    pub metadata: Metadata,
    /// Other settings, such as the owner and the algorithm of checksums. At most 512 bytes in all.
    pub items: Attributes,
}

/// An upload that is open, or was completed within the last hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadInfo {
    /// The object, and the number of the upload.
    pub upload: Upload,
    /// The time of its start, in nanoseconds since the Unix epoch.
    pub created_ns: u64,
    /// Its settings.
    pub settings: NewUpload,
    /// The result, if it was completed.
    pub completed: Option<Completed>,
}

/// The result of a completed upload. A repeated completion returns it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The version of the object.
    pub version: Lsn,
    /// The items that the completion kept, such as ETag and checksum.
    pub answer: Attributes,
}

/// A stored part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartInfo {
    /// Its number.
    pub number: u16,
    /// Its version, length, time and metadata.
    pub info: ObjectInfo,
}

impl PartInfo {
    /// The reference to this part for a completion.
    #[must_use]
    pub fn to_ref(&self) -> PartRef {
        PartRef { number: self.number, version: self.info.version }
    }
}

/// A part of a completion: the part with this number, if it still has this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRef {
    /// Its number.
    pub number: u16,
    /// Its version.
    pub version: Lsn,
}

/// A page of the parts of an upload, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartPage {
    /// The parts.
    pub parts: Vec<PartInfo>,
    /// True if there may be more after the last one.
    pub is_cut: bool,
}

/// The place after which a page of uploads starts. Uploads are in the order of their keys, those of one key in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UploadsAfter {
    /// Before the first one.
    #[default]
    Start,
    /// After all uploads of this key.
    Key(Vec<u8>),
    /// After this upload of this key.
    Upload(Vec<u8>, UploadId),
    /// After all keys with this prefix.
    Prefix(Vec<u8>),
}

/// A page of uploads. Those that were completed are among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadPage {
    /// The uploads.
    pub uploads: Vec<UploadInfo>,
    /// The place of the next page, if there may be more. A page may be shorter than its limit and yet have this.
    pub next: Option<Upload>,
}

/// A part of an object that an upload made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPart {
    /// Its number.
    pub number: u16,
    /// Its first byte in the value.
    pub first: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The checksum attribute that the part had; empty if it had none.
    pub checksum: Vec<u8>,
}

/// Checks the number of a part.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_part_number(number: u16) -> Result<()> {
    if (1..=PARTS_MAX).contains(&number) {
        Ok(())
    } else {
        Err(Error::Invalid(format!(
            "part {number}: the parts of an upload are numbered from 1 to {PARTS_MAX}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sixteen_digits() {
        let id = UploadId::new(0x1234).unwrap();
        assert_eq!(id.to_string(), "0000000000001234");
        assert_eq!(UploadId::parse("0000000000001234"), Some(id));
        assert_eq!(UploadId::new(1 << 63), None);
        for text in
            ["", "1234", "000000000000123g", "8000000000000000", "000000000000123A", "+000000000001234"]
        {
            assert_eq!(UploadId::parse(text), None, "{text}");
        }
    }
}
