//! Hidden keys: entries of the trees that are no objects, those of uploads and of their parts (`docs/format/object.md`).
//!
//! The record of an upload has the key `0xFD, bucket, 0x00, escaped key, 0x00, upload`, and a part `0xFC, bucket, 0x00, slot, upload,
//! part`. Both are in the hash slot of the object, so an object, its uploads and their parts are in one tablet. No bucket starts with such
//! a byte: hidden keys sort after all objects, and the records of uploads in the order of the objects' keys.

use shoal_base::limits::BUCKET_BYTES_MAX;
use shoal_base::slot::hash_slot;

use crate::error::{Error, Result};
use crate::key::{Bucket, ObjectKey};
use crate::upload::{Upload, UploadId, UploadsAfter};

/// The first byte of the key of a part, the least one of all hidden keys.
pub const PART: u8 = 0xFC;
/// The first byte of the key of an upload's record.
pub const UPLOAD: u8 = 0xFD;
/// The first byte after all hidden keys of uploads.
const AFTER_UPLOADS: u8 = 0xFE;

/// Most bytes of a hidden key: a tree has no longer keys.
pub const HIDDEN_KEY_BYTES_MAX: usize = 1100;
/// Bytes of an upload's key after the object's: the end of the key, and the number.
const UPLOAD_TAIL_BYTES: usize = 1 + 8;

/// Returns true for the encoded key of an upload's record or of a part.
#[must_use]
#[inline]
pub fn is_hidden(encoded: &[u8]) -> bool {
    matches!(encoded.first(), Some(&(PART | UPLOAD)))
}

/// Returns true for the encoded key of a part.
#[must_use]
#[inline]
pub fn is_part(encoded: &[u8]) -> bool {
    encoded.first() == Some(&PART)
}

/// Appends the bytes of a key, a zero byte as 0x00 0xFF: the end of the key is 0x00 and a byte below 0x80.
fn escape(key: &[u8], out: &mut Vec<u8>) {
    for &byte in key {
        out.push(byte);
        if byte == 0 {
            out.push(0xFF);
        }
    }
}

/// The reverse of [`escape`]; `None` if the bytes are no escaped key.
fn unescape(escaped: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(&byte) = bytes.next() {
        out.push(byte);
        if byte == 0 && bytes.next() != Some(&0xFF) {
            return None;
        }
    }
    Some(out)
}

/// Start of the keys of the uploads into a bucket of the objects with this prefix.
fn uploads_under(bucket: &str, prefix: &[u8]) -> Vec<u8> {
    let mut out = [&[UPLOAD], bucket.as_bytes(), &[0]].concat();
    escape(prefix, &mut out);
    out
}

/// The key of an upload's record.
///
/// # Errors
/// [`Error::Invalid`] if the name of the object is too long for uploads.
pub fn upload_key(upload: &Upload) -> Result<ObjectKey> {
    let (bucket, key) = (upload.key.bucket(), upload.key.key());
    let encoded = upload_bytes(bucket, key, Some(upload.id));
    if encoded.len() > HIDDEN_KEY_BYTES_MAX {
        let over = encoded.len() - HIDDEN_KEY_BYTES_MAX;
        return Err(Error::Invalid(format!(
            "the name of the object is {over} bytes too long for an upload in parts: a zero byte counts twice"
        )));
    }
    Ok(ObjectKey::hidden(&encoded, bucket.len(), upload.key.slot()))
}

/// The encoded key of an upload of `key`; without a number the least key after all of them.
fn upload_bytes(bucket: &str, key: &[u8], id: Option<UploadId>) -> Vec<u8> {
    let mut out = uploads_under(bucket, key);
    out.push(0);
    out.extend_from_slice(&id.map_or([0x80; 8], |id| id.number().to_be_bytes()));
    out
}

/// The encoded keys of all parts of an upload start with these bytes.
#[must_use]
pub fn parts_prefix(upload: &Upload) -> Vec<u8> {
    let mut out = [&[PART], upload.key.bucket().as_bytes(), &[0]].concat();
    out.extend_from_slice(&upload.key.slot().to_be_bytes());
    out.extend_from_slice(&upload.id.number().to_be_bytes());
    out
}

/// The key of a part.
#[must_use]
pub fn part_key(upload: &Upload, number: u16) -> ObjectKey {
    let encoded = [&parts_prefix(upload)[..], &number.to_be_bytes()].concat();
    ObjectKey::hidden(&encoded, upload.key.bucket().len(), upload.key.slot())
}

/// The number of a part by its encoded key; 0 if the key is too short.
#[must_use]
pub fn part_number(encoded: &[u8]) -> u16 {
    encoded.last_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// The upload whose record has this encoded key; `None` if it is no such key.
#[must_use]
pub fn upload_of(encoded: &[u8]) -> Option<Upload> {
    let named = encoded.strip_prefix(&[UPLOAD])?;
    let bucket_bytes = named.iter().position(|&byte| byte == 0)?;
    let (bucket, rest) = (named.get(..bucket_bytes)?, named.get(bucket_bytes + 1..)?);
    let (key, tail) = rest.split_at_checked(rest.len().checked_sub(UPLOAD_TAIL_BYTES)?)?;
    let (end, id) = tail.split_first_chunk::<1>()?;
    let id = UploadId::new(u64::from_be_bytes(id.try_into().ok()?)).filter(|_| *end == [0])?;
    let key = ObjectKey::new(std::str::from_utf8(bucket).ok()?, &unescape(key)?).ok()?;
    Some(Upload { key, id })
}

/// The hash slot of a hidden key, even if it names nothing.
pub(crate) fn hidden_slot(encoded: &[u8]) -> u16 {
    let bucket = encoded.iter().take(BUCKET_BYTES_MAX + 2).position(|&byte| byte == 0);
    let rest = bucket.and_then(|at| encoded.get(at + 1..)).unwrap_or_default();
    if is_part(encoded) {
        return rest.first_chunk().map_or(0, |slot| u16::from_be_bytes(*slot));
    }
    let escaped = rest.get(..rest.len().saturating_sub(UPLOAD_TAIL_BYTES)).unwrap_or_default();
    hash_slot(&unescape(escaped).unwrap_or_default())
}

/// A hidden key in words.
pub(crate) fn hidden_name(encoded: &[u8]) -> String {
    if let Some(Upload { key, id }) = upload_of(encoded) {
        return format!("upload {id} of {key}");
    }
    let bucket = encoded.get(1..).and_then(|rest| rest.split(|&byte| byte == 0).next()).unwrap_or_default();
    format!("part {} of an upload into bucket {}", part_number(encoded), bucket.escape_ascii())
}

/// The encoded keys of some uploads: from a start up to an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadRange {
    /// The first key that may be in it.
    pub start: Vec<u8>,
    /// The first key after it.
    pub end: Vec<u8>,
}

impl UploadRange {
    /// The uploads into a bucket of the keys with a prefix that come after `after`.
    #[must_use]
    pub fn of_bucket(bucket: &Bucket, prefix: &[u8], after: &UploadsAfter) -> Self {
        let name = bucket.name();
        let under = uploads_under(name, prefix);
        let end = successor(&under);
        let start = match after {
            UploadsAfter::Start => Vec::new(),
            UploadsAfter::Key(key) => upload_bytes(name, key, None),
            UploadsAfter::Upload(key, id) => [&upload_bytes(name, key, Some(*id))[..], &[0]].concat(),
            UploadsAfter::Prefix(prefix) => successor(&uploads_under(name, prefix)),
        };
        Self { start: start.max(under), end }
    }

    /// The uploads into all buckets that come after `after`.
    ///
    /// # Errors
    /// As [`upload_key`].
    pub fn of_all(after: Option<&Upload>) -> Result<Self> {
        let start = match after {
            None => vec![UPLOAD],
            Some(upload) => [upload_key(upload)?.encoded(), &[0]].concat(),
        };
        Ok(Self { start, end: vec![AFTER_UPLOADS] })
    }
}

/// The least byte string above all strings with this prefix, which starts with the byte of uploads.
fn successor(prefix: &[u8]) -> Vec<u8> {
    let last = prefix.iter().rposition(|&byte| byte != 0xFF).unwrap_or(0);
    let mut out = prefix[..=last].to_vec();
    out[last] += 1;
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::{is_reserved, name, of_encoded, slot_of_encoded};

    fn upload(bucket: &str, key: &[u8], id: u64) -> Upload {
        Upload { key: ObjectKey::new(bucket, key).unwrap(), id: UploadId::new(id).unwrap() }
    }

    #[test]
    fn bytes_of_hidden_keys() {
        let upload = upload("b", b"k\0", 0x0102);
        let slot = upload.key.slot().to_be_bytes();
        let key = upload_key(&upload).unwrap();
        assert_eq!(key.encoded(), b"\xFDb\0k\0\xFF\0\0\0\0\0\0\0\x01\x02");
        let part = part_key(&upload, 0x0304);
        assert_eq!(part.encoded(), [b"\xFCb\0", &slot[..], b"\0\0\0\0\0\0\x01\x02\x03\x04"].concat());
        for key in [&key, &part] {
            assert_eq!((key.bucket(), key.slot()), ("b", upload.key.slot()));
            assert!(!key.is_system() && is_hidden(key.encoded()) && !is_reserved(key.encoded()));
            assert_eq!(of_encoded(key.encoded()), None, "it names no object");
        }
        assert!(is_part(part.encoded()) && !is_part(key.encoded()));
        assert!(name(key.encoded()).starts_with("upload 0000000000000102 of b/k"));
        assert_eq!(name(part.encoded()), "part 772 of an upload into bucket b");
    }

    #[test]
    fn names_that_are_too_long_are_refused() {
        let bucket = "b".repeat(BUCKET_BYTES_MAX);
        let with_zeros = |zeros: usize| {
            let key = [vec![0; zeros], vec![b'k'; 1_024 - zeros]].concat();
            upload_key(&upload(&bucket, &key, 1)).map(|key| key.encoded().len())
        };
        assert_eq!(with_zeros(2).unwrap(), HIDDEN_KEY_BYTES_MAX);
        assert!(matches!(with_zeros(3), Err(Error::Invalid(_))));
    }

    proptest! {
        /// Each key comes back, has the slot of its object, and uploads are in the order of the objects' keys.
        #[test]
        fn keys_round_trip_in_order(
            one in proptest::collection::vec(prop_oneof![Just(0), Just(1), Just(0xFF), any::<u8>()], 1..20),
            two in proptest::collection::vec(prop_oneof![Just(0), Just(1), Just(0xFF), any::<u8>()], 1..20),
            ids in (0..1_u64 << 63, 0..1_u64 << 63),
        ) {
            let (one, two) = (upload("b", &one, ids.0), upload("b", &two, ids.1));
            let keys = [&one, &two].map(|upload| upload_key(upload).unwrap());
            for (upload, key) in [&one, &two].into_iter().zip(&keys) {
                prop_assert_eq!(upload_of(key.encoded()), Some(upload.clone()));
                prop_assert_eq!(slot_of_encoded(key.encoded()), upload.key.slot());
                let part = part_key(upload, 7);
                prop_assert_eq!((slot_of_encoded(part.encoded()), part_number(part.encoded())), (upload.key.slot(), 7));
                prop_assert!(part.encoded().starts_with(&parts_prefix(upload)));
            }
            let wanted = (one.key.key(), one.id).cmp(&(two.key.key(), two.id));
            prop_assert_eq!(keys[0].encoded().cmp(keys[1].encoded()), wanted);
            // The places of listings.
            let bucket = Bucket::new("b").unwrap();
            let of = |prefix: &[u8], after: &UploadsAfter| UploadRange::of_bucket(&bucket, prefix, after);
            let has = |range: &UploadRange, key: &ObjectKey| (&range.start[..]..&range.end[..]).contains(&key.encoded());
            let key = two.key.key().to_vec();
            prop_assert_eq!(has(&of(&key, &UploadsAfter::Start), &keys[0]), one.key.key().starts_with(&key));
            prop_assert_eq!(has(&of(b"", &UploadsAfter::Key(key.clone())), &keys[0]), one.key.key() > &key[..]);
            let after = UploadsAfter::Upload(key.clone(), two.id);
            prop_assert_eq!(has(&of(b"", &after), &keys[0]), wanted.is_gt());
            let is_behind = one.key.key() > &key[..] && !one.key.key().starts_with(&key);
            prop_assert_eq!(has(&of(b"", &UploadsAfter::Prefix(key.clone())), &keys[0]), is_behind);
            prop_assert_eq!(has(&UploadRange::of_all(Some(&two)).unwrap(), &keys[0]), wanted.is_gt());
        }

        #[test]
        fn any_bytes_have_a_slot(mut bytes: Vec<u8>, first in PART..=UPLOAD) {
            bytes.insert(0, first);
            let slot = slot_of_encoded(&bytes);
            if let Some(upload) = upload_of(&bytes) {
                prop_assert_eq!(upload.key.slot(), slot);
                let key = upload_key(&upload).unwrap();
                prop_assert_eq!(key.encoded(), &bytes[..]);
            }
            prop_assert!(!name(&bytes).is_empty());
        }
    }
}
