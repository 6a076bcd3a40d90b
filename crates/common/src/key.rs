//! Names of objects: a bucket and a key, and the single byte string that encodes both in log and trees.

use std::fmt;

use shoal_base::limits::{BUCKET_BYTES_MAX, KEY_BYTES_MAX};
use shoal_base::slot::hash_slot;
use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::hidden_key::{hidden_name, hidden_slot, is_hidden};

/// The bucket of the store's own objects, which an opening does not need. Users cannot read or write it.
const SYSTEM_BUCKET: &str = ".shoal";

/// The start of the encoded keys of all results of writes with a request id.
pub const RESULT_PREFIX: &[u8] = b".shoal\0result{";

/// Returns true for the encoded key of the result of a write with a request id.
#[must_use]
#[inline]
pub fn is_result(encoded: &[u8]) -> bool {
    encoded.starts_with(RESULT_PREFIX)
}

/// Returns true for the encoded key of an entry that counts as no object: a result, an upload, or a part of one.
#[must_use]
#[inline]
pub fn is_uncounted(encoded: &[u8]) -> bool {
    is_result(encoded) || is_hidden(encoded)
}

/// Returns true for the encoded key of one of the store's own objects, results, uploads and parts included.
#[must_use]
#[inline]
pub fn is_own(encoded: &[u8]) -> bool {
    let is_system =
        encoded.strip_prefix(SYSTEM_BUCKET.as_bytes()).is_some_and(|rest| rest.first() == Some(&0));
    is_system || is_hidden(encoded)
}

/// The first byte of the tree keys that the engine reserves: they sort after the name of every bucket.
pub const RESERVED: u8 = 0xFF;

/// Returns true if a key of a tree is reserved for the engine.
#[must_use]
#[inline]
pub fn is_reserved(key: &[u8]) -> bool {
    key.first() == Some(&RESERVED)
}

/// Checks the name of a bucket: 1 to 63 bytes of `a-z`, `0-9`, `-`, `.` and `_`.
///
/// # Errors
/// [`Error::Invalid`] with the reason.
pub fn check_bucket(bucket: &str) -> Result<()> {
    let fits = (1..=BUCKET_BYTES_MAX).contains(&bucket.len());
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
    if bucket == SYSTEM_BUCKET {
        Err(Error::Invalid(format!("bucket {SYSTEM_BUCKET:?} is the store's own: choose another name")))
    } else if fits && bucket.bytes().all(plain) {
        Ok(())
    } else {
        Err(Error::Invalid(format!(
            "bucket name {bucket:?}: 1 to {BUCKET_BYTES_MAX} characters of a-z, 0-9, '-', '.' and '_' are allowed"
        )))
    }
}

/// A bucket with a checked name: it names objects without checking the name each time.
#[derive(Clone, Debug)]
pub struct Bucket(SmallVec<[u8; 64]>);

impl Bucket {
    /// The bucket of this name.
    ///
    /// # Errors
    /// As [`check_bucket`].
    pub fn new(name: &str) -> Result<Self> {
        check_bucket(name)?;
        let mut start = SmallVec::from_slice(name.as_bytes());
        start.push(0);
        Ok(Self(start))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        // The name was checked: it is ASCII.
        str::from_utf8(&self.0[..self.0.len() - 1]).unwrap_or_default()
    }

    /// The object `key` (any 1 to 1,024 bytes) of the bucket.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the reason.
    #[inline]
    pub fn key(&self, key: &[u8]) -> Result<ObjectKey> {
        check_key(key)?;
        let mut encoded = SmallVec::with_capacity(self.0.len() + key.len());
        encoded.extend_from_slice(&self.0);
        encoded.extend_from_slice(key);
        Ok(ObjectKey { encoded, bucket_bytes: (self.0.len() - 1) as u8, slot: hash_slot(key) })
    }
}

#[inline]
fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "a key has 1 to {KEY_BYTES_MAX} bytes; this one has {}",
            key.len()
        )));
    }
    Ok(())
}

/// The full name of an object, encoded as `bucket, 0x00, key`. A bucket's name has no 0x00, so a prefix identifies the bucket, and the
/// order is by bucket, then by key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Most names are short enough to need no heap memory.
    encoded: SmallVec<[u8; 36]>,
    bucket_bytes: u8,
    /// The hash slot of the key. A write needs it several times.
    slot: u16,
}

impl ObjectKey {
    /// The object `key` (any 1 to 1,024 bytes) of `bucket`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the reason, for either part.
    #[inline]
    pub fn new(bucket: &str, key: &[u8]) -> Result<Self> {
        check_bucket(bucket)?;
        check_key(key)?;
        Ok(Self::in_bucket(bucket, key))
    }

    #[inline]
    fn in_bucket(bucket: &str, key: &[u8]) -> Self {
        let mut encoded = SmallVec::with_capacity(bucket.len() + 1 + key.len());
        encoded.extend_from_slice(bucket.as_bytes());
        encoded.push(0);
        encoded.extend_from_slice(key);
        Self { encoded, bucket_bytes: bucket.len() as u8, slot: hash_slot(key) }
    }

    /// The hidden key with these bytes, whose object is in this hash slot.
    pub(crate) fn hidden(encoded: &[u8], bucket_bytes: usize, slot: u16) -> Self {
        assert!(is_hidden(encoded) && bucket_bytes < encoded.len(), "a hidden key has a bucket");
        Self { encoded: SmallVec::from_slice(encoded), bucket_bytes: bucket_bytes as u8, slot }
    }

    /// The first byte of the bucket's name.
    #[inline]
    fn bucket_start(&self) -> usize {
        usize::from(is_hidden(&self.encoded))
    }

    /// Returns true if the object is the store's own.
    #[must_use]
    #[inline]
    pub fn is_system(&self) -> bool {
        self.bucket() == SYSTEM_BUCKET
    }

    /// The user's object with this encoded name; `None` if it is not the name of one.
    #[must_use]
    pub fn of_name(encoded: &[u8]) -> Option<Self> {
        of_encoded(encoded).filter(|key| !key.is_system())
    }

    /// The result of a write with a request id that has this encoded name; `None` if it is not the name of one. For copies of a whole store.
    #[must_use]
    pub fn of_result(encoded: &[u8]) -> Option<Self> {
        let key = is_result(encoded).then(|| of_encoded(encoded))??;
        check_key(key.key()).ok().map(|()| key)
    }

    /// The bucket's name.
    #[must_use]
    #[inline]
    pub fn bucket(&self) -> &str {
        let start = self.bucket_start();
        std::str::from_utf8(&self.encoded[start..start + usize::from(self.bucket_bytes)]).unwrap_or_default()
    }

    /// The key within the bucket.
    #[must_use]
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.encoded[self.bucket_start() + usize::from(self.bucket_bytes) + 1..]
    }

    /// The encoded name.
    #[must_use]
    #[inline]
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// The hash slot of the key, as clients of Redis Cluster compute it; the bucket does not count.
    #[must_use]
    #[inline]
    pub fn slot(&self) -> u16 {
        self.slot
    }
}

/// An object of the store's own bucket. A free function, so that users of the engine cannot name such objects.
#[must_use]
pub fn system_key(key: &[u8]) -> ObjectKey {
    ObjectKey::in_bucket(SYSTEM_BUCKET, key)
}

/// The object with this encoded name, which may be one of the store's own; `None` if it is not the name of an object.
#[must_use]
pub fn of_encoded(encoded: &[u8]) -> Option<ObjectKey> {
    let bucket_bytes = encoded.iter().position(|&byte| byte == 0)?;
    let bucket = std::str::from_utf8(encoded.get(..bucket_bytes)?).ok()?;
    let key = encoded.get(bucket_bytes + 1..)?;
    if bucket == SYSTEM_BUCKET { Some(system_key(key)) } else { ObjectKey::new(bucket, key).ok() }
}

/// The hash slot of an encoded name, even if it names no object.
#[must_use]
#[inline]
pub fn slot_of_encoded(encoded: &[u8]) -> u16 {
    if is_hidden(encoded) {
        return hidden_slot(encoded);
    }
    let start = encoded.iter().position(|&byte| byte == 0).map_or(0, |at| at + 1);
    hash_slot(&encoded[start..])
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bucket(), self.key().escape_ascii())
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An encoded key as `bucket/key`; a hidden key in words.
#[must_use]
pub fn name(key: &[u8]) -> String {
    if is_hidden(key) {
        return hidden_name(key);
    }
    match key.iter().position(|&byte| byte == 0) {
        Some(at) => format!("{}/{}", key[..at].escape_ascii(), key[at + 1..].escape_ascii()),
        None => key.escape_ascii().to_string(),
    }
}
