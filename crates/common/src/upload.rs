//! Uploads: values that arrive as numbered parts, in any order and over several connections, and become one object when they are
//! completed (`docs/adr/2026-11-30-uploads.md`).

use std::fmt;

use shoal_base::Lsn;
use shoal_base::codec::{Reader, Truncated, put_varint};
use shoal_base::object::{Attributes, Metadata};

use crate::error::{Error, Result};
use crate::key::ObjectKey;
use crate::object::ObjectInfo;

/// Most parts of an upload. They are numbered from 1 on.
pub const PARTS_MAX: u16 = 10_000;

/// Most bytes of the settings of an upload, and of the items of its completion.
pub const UPLOAD_ITEMS_BYTES_MAX: usize = 512;
/// Most bytes of the encoded metadata of a part.
pub const PART_METADATA_BYTES_MAX: usize = 96;

/// The version of the record.
const VERSION: u8 = 1;
const SETTINGS: u8 = 1;
const ANSWER: u8 = 2;
const AFTER_OBJECT: u8 = 3;

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

    /// Its record in the value of its entry.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a record that this program does not know.
    pub fn record_in(&self, value: &[u8]) -> Result<UploadRecord> {
        let what = || format!("the record of upload {} cannot be understood", self.id);
        UploadRecord::decode(value).map_err(|_| Error::Corrupt { what: what(), block: 0 })
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

/// The state of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadState {
    /// It takes parts.
    Open,
    /// It made an object.
    Completed {
        /// The items that the completion kept.
        answer: Attributes,
        /// The version of the record is this much above that of the object.
        after_object: u64,
    },
    /// Its parts are being deleted.
    Aborted,
}

/// The record of an upload: the value of its entry. The metadata for the object is the metadata of the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadRecord {
    /// Its state.
    pub state: UploadState,
    /// The time of its start, in nanoseconds since the Unix epoch.
    pub created_ns: u64,
    /// Its settings without the metadata.
    pub items: Attributes,
}

impl UploadRecord {
    /// The bytes of the record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            UploadState::Open => 0,
            UploadState::Completed { .. } => 1,
            UploadState::Aborted => 2,
        };
        let mut items = Attributes::default();
        if !self.items.is_empty() {
            items.set(SETTINGS, Some(self.items.as_bytes()));
        }
        if let UploadState::Completed { answer, after_object } = &self.state {
            items.set(ANSWER, Some(answer.as_bytes()));
            let mut distance = Vec::new();
            put_varint(&mut distance, *after_object);
            items.set(AFTER_OBJECT, Some(&distance));
        }
        let mut out = vec![VERSION, state];
        out.extend_from_slice(&self.created_ns.to_le_bytes());
        out.extend_from_slice(items.as_bytes());
        out
    }

    /// The record in `bytes`.
    ///
    /// # Errors
    /// [`Truncated`] if it is none that this program knows.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let (version, state) = (reader.u8()?, reader.u8()?);
        let created_ns = reader.u64()?;
        let items = Attributes::decode(reader.rest())?;
        let nested = |tag| Attributes::decode(items.get(tag).unwrap_or_default());
        let state = match state {
            _ if version != VERSION => return Err(Truncated),
            0 => UploadState::Open,
            1 => {
                let mut distance = Reader::new(items.get(AFTER_OBJECT).ok_or(Truncated)?);
                UploadState::Completed { answer: nested(ANSWER)?, after_object: distance.varint()? }
            }
            2 => UploadState::Aborted,
            _ => return Err(Truncated),
        };
        Ok(Self { state, created_ns, items: nested(SETTINGS)? })
    }
}

/// Checks the length of the items of an upload.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_items(items: &Attributes) -> Result<()> {
    match items.as_bytes().len() {
        0..=UPLOAD_ITEMS_BYTES_MAX => Ok(()),
        bytes => Err(Error::Invalid(format!(
            "the items of the upload have {bytes} bytes; {UPLOAD_ITEMS_BYTES_MAX} are allowed"
        ))),
    }
}

/// Checks that parts are in the order of their numbers, and that no upload has another number.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_parts(parts: &[PartRef]) -> Result<()> {
    parts.iter().try_for_each(|part| check_part_number(part.number))?;
    if parts.is_empty() || !parts.is_sorted_by(|one, next| one.number < next.number) {
        return Err(Error::Invalid(
            "an upload is completed with one part or more, in the order of their numbers".into(),
        ));
    }
    Ok(())
}

/// An upload that is open, or was completed within the last hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadInfo {
    /// The object, and the number of the upload.
    pub upload: Upload,
    /// The time of its start, in nanoseconds since the Unix epoch.
    pub created_ns: u64,
    /// Its settings; once it is completed, without the metadata.
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

/// An object and the parts of which an upload made it.
pub type PartedObject = (ObjectInfo, Vec<ObjectPart>);

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
    use proptest::prelude::*;

    use super::*;

    fn items(pairs: &[(u8, &[u8])]) -> Attributes {
        let mut items = Attributes::default();
        pairs.iter().for_each(|(tag, value)| items.set(*tag, Some(value)));
        items
    }

    #[test]
    fn records_round_trip() {
        let record =
            |state| UploadRecord { state, created_ns: 7, items: items(&[(1, b"me"), (2, b"\x01\x00")]) };
        let completed = UploadState::Completed { answer: items(&[(4, b"etag")]), after_object: 10_001 };
        for state in [UploadState::Open, completed, UploadState::Aborted] {
            let bytes = record(state.clone()).encode();
            assert_eq!(UploadRecord::decode(&bytes), Ok(record(state)));
            for at in [0, 1] {
                let mut other = bytes.clone();
                other[at] = 9;
                assert_eq!(UploadRecord::decode(&other), Err(Truncated), "of a later program");
            }
        }
        let bytes = record(UploadState::Open).encode();
        assert_eq!(bytes, b"\x01\x00\x07\0\0\0\0\0\0\0\x01\x08\x01\x02me\x02\x02\x01\x00");
        assert!(check_items(&items(&[(1, &[0; 600])])).is_err());
    }

    #[test]
    fn parts_ascend() {
        let check = |numbers: &[u16]| {
            let parts: Vec<_> = numbers.iter().map(|&number| PartRef { number, version: Lsn(1) }).collect();
            check_parts(&parts).is_ok()
        };
        assert!(check(&[1]) && check(&[2, 3, 10_000]));
        for numbers in [&[][..], &[0, 1], &[1, 1], &[2, 1], &[10_001]] {
            assert!(!check(numbers), "{numbers:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, is_of_this_version: bool) {
            let bytes = if is_of_this_version { [&[1, 1][..], &bytes].concat() } else { bytes };
            if let Ok(record) = UploadRecord::decode(&bytes) {
                prop_assert_eq!(UploadRecord::decode(&record.encode()), Ok(record));
            }
        }
    }

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
