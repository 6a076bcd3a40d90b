//! The parts of a backup: header, objects, losses, end; and each of them as bytes.

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_base::codec::{Reader, Truncated, put_prefixed, put_varint};
use shoal_base::object::{Attributes, Metadata};
use shoal_engine::{BUCKET_RECORD_BYTES_MAX, DamagedRange, ObjectKey, check_bucket};

use crate::{FORMAT_VERSION, FORMAT_VERSION_MIN};

/// The deadline is a time to live ([`ExpiresAt::is_relative`]).
const FLAG_RELATIVE: u8 = 2;
/// Attributes follow the user metadata. Only in format 3.
const FLAG_ATTRIBUTES: u8 = 1 << 5;
/// There is a deadline.
const FLAG_DEADLINE: u8 = 1;

/// The contents of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// All objects.
    Full,
    /// An increment: the changes since a version, deletions included, and the index of all keys.
    Increment {
        /// The version of the backup that it is based on.
        from: Lsn,
    },
    /// The front of a full backup that was broken off: the objects of its index, which does not have all keys.
    Part,
    /// A base of an archive (`docs/format/archive.md`): all objects, and the results of writes with a request id. It has no index.
    Base,
    /// The changes since a version, as a store reports them: an [`IncrementWriter`](crate::IncrementWriter) makes an increment from them
    /// and the index of the backup of that version. It is no backup.
    Changes {
        /// That version.
        from: Lsn,
    },
}

/// The first frame of a backup. It is stored twice, so that one damaged place does not destroy it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version of the format.
    pub format: u32,
    /// The identity of the store that the backup is of.
    pub store: [u8; 16],
    /// Every write with a version up to this one is in the backup, and none above.
    pub version: Lsn,
    /// The wall clock's time at that version, in nanoseconds since the Unix epoch.
    pub taken_ns: u64,
    /// The approximate number of objects, for a display of progress.
    pub objects: u64,
    /// The approximate number of bytes of their values.
    pub value_bytes: u64,
    /// All of the store, or changes.
    pub contents: Contents,
    /// The random number of the part that an increment is based on; 0 if it is based on a whole backup.
    pub part: u64,
}

/// A deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiresAt {
    /// The wall clock's time then, in nanoseconds since the Unix epoch.
    pub at_ns: u64,
    /// True if the write had a time to live, not a moment of the wall clock.
    pub is_relative: bool,
}

/// An object without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectHead {
    /// Bucket and key.
    pub key: ObjectKey,
    /// Its version in the store.
    pub version: Lsn,
    /// Modification time in nanoseconds since the Unix epoch.
    pub modified_ns: u64,
    /// Its deadline.
    pub expiry: Option<ExpiresAt>,
    /// Content type and user metadata.
    pub metadata: Metadata,
    /// Bytes of its value.
    pub value_bytes: u64,
}

/// A whole object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRecord {
    /// All but the value.
    pub head: ObjectHead,
    /// The value.
    pub value: Bytes,
}

/// The record of a bucket, as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketRecord {
    /// The bucket.
    pub name: String,
    /// The record (`docs/format/object.md`).
    pub record: Bytes,
}

/// An object or a range of the store that could not be read for the backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The value of an object, which is not in the backup, or only its first pieces.
    Object {
        /// Bucket and key.
        key: ObjectKey,
        /// The reason.
        why: String,
    },
    /// The objects of a range of encoded keys (bucket, a zero byte, key).
    Range(DamagedRange),
}

/// The last frame of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Whole objects in it.
    pub objects: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// Objects whose values could not be read.
    pub unreadable: u64,
    /// Ranges of keys that could not be read.
    pub ranges: u64,
    /// Frames before the end's.
    pub frames: u64,
    /// Bytes before the end's frame.
    pub bytes: u64,
    /// CRC-32C of these bytes.
    pub crc: u32,
    /// Keys that were deleted; 0 in format 1.
    pub deleted: u64,
    /// Keys that are alive, in the index; 0 in format 1.
    pub keys: u64,
}

/// The reason why the bytes of a part are invalid.
pub(crate) type Wrong = &'static str;

fn truncated(_: Truncated) -> Wrong {
    "a record is longer than its frame"
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(72);
        out.extend_from_slice(&self.format.to_le_bytes());
        let (contents, from) = match self.contents {
            Contents::Full => (0, 0),
            Contents::Increment { from } => (1, from.0),
            Contents::Changes { from } => (2, from.0),
            Contents::Part => (3, 0),
            Contents::Base => (4, 0),
        };
        out.extend_from_slice(&u32::to_le_bytes(contents));
        out.extend_from_slice(&self.store);
        for number in [self.version.0, self.taken_ns, self.objects, self.value_bytes, from, self.part] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Wrong> {
        let mut reader = Reader::new(body);
        let format = reader.u32().map_err(truncated)?;
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&format) {
            return Err(
                "the backup has a format that this program does not know: use the version of shoal that wrote it",
            );
        }
        let contents = reader.u32().map_err(truncated)?;
        let store = reader.bytes(16).map_err(truncated)?.try_into().map_err(|_| "no identity")?;
        let mut number = || reader.u64().map_err(truncated);
        let [version, taken_ns, objects, value_bytes] = [number()?, number()?, number()?, number()?];
        let [from, part] = if format == 1 { [0, 0] } else { [number()?, number()?] };
        let from = Lsn(from);
        let contents = match contents {
            _ if format == 1 => Contents::Full,
            0 => Contents::Full,
            1 => Contents::Increment { from },
            2 => Contents::Changes { from },
            3 => Contents::Part,
            4 => Contents::Base,
            _ => return Err("the backup has contents that this program does not know"),
        };
        Ok(Self { format, store, version: Lsn(version), taken_ns, objects, value_bytes, contents, part })
    }
}

impl ObjectHead {
    /// Appends all but the value.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let deadline = self.expiry.map_or(0, |expiry| {
            if expiry.is_relative { FLAG_DEADLINE | FLAG_RELATIVE } else { FLAG_DEADLINE }
        });
        let has_attributes = !self.metadata.attributes.is_empty();
        out.push(deadline | if has_attributes { FLAG_ATTRIBUTES } else { 0 });
        put_prefixed(out, self.key.bucket().as_bytes());
        put_prefixed(out, self.key.key());
        put_varint(out, self.version.0);
        put_varint(out, self.modified_ns);
        if let Some(expiry) = self.expiry {
            put_varint(out, expiry.at_ns);
        }
        put_prefixed(out, self.metadata.content_type.as_bytes());
        put_varint(out, self.metadata.user.len() as u64);
        for (name, value) in &self.metadata.user {
            put_prefixed(out, name.as_bytes());
            put_prefixed(out, value);
        }
        if has_attributes {
            put_prefixed(out, self.metadata.attributes.as_bytes());
        }
        put_varint(out, self.value_bytes);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Wrong> {
        let flags = reader.u8().map_err(truncated)?;
        let is_known = flags & !(FLAG_DEADLINE | FLAG_RELATIVE | FLAG_ATTRIBUTES) == 0;
        if !is_known || flags & (FLAG_DEADLINE | FLAG_RELATIVE) == FLAG_RELATIVE {
            return Err("an object has flags that are not known");
        }
        let key = decode_key(reader)?;
        let version = Lsn(reader.varint().map_err(truncated)?);
        let modified_ns = reader.varint().map_err(truncated)?;
        let expiry = match flags & FLAG_DEADLINE {
            0 => None,
            _ => Some(ExpiresAt {
                at_ns: reader.varint().map_err(truncated)?,
                is_relative: flags & FLAG_RELATIVE != 0,
            }),
        };
        let content_type = text(reader)?;
        let mut user = Vec::new();
        for _ in 0..reader.varint().map_err(truncated)? {
            user.push((text(reader)?, Bytes::copy_from_slice(reader.prefixed().map_err(truncated)?)));
        }
        let attributes = match flags & FLAG_ATTRIBUTES {
            0 => Attributes::default(),
            _ => Attributes::decode(reader.prefixed().map_err(truncated)?)
                .map_err(|_| "the attributes of an object are not valid")?,
        };
        let value_bytes = reader.varint().map_err(truncated)?;
        let metadata = Metadata { content_type, attributes, user };
        Ok(Self { key, version, modified_ns, expiry, metadata, value_bytes })
    }
}

fn decode_key(reader: &mut Reader<'_>) -> Result<ObjectKey, Wrong> {
    let bucket = text(reader)?;
    let key = reader.prefixed().map_err(truncated)?;
    let result = || ObjectKey::of_result(&[bucket.as_bytes(), &[0], key].concat());
    let key = ObjectKey::new(&bucket, key).ok().or_else(result);
    key.ok_or("an object has a bucket or a key that cannot be")
}

fn text(reader: &mut Reader<'_>) -> Result<String, Wrong> {
    let bytes = reader.prefixed().map_err(truncated)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| "a name is no text")
}

/// The objects of a frame, each with its value.
pub(crate) fn decode_objects(body: &Bytes) -> Result<Vec<ObjectRecord>, Wrong> {
    let mut reader = Reader::new(body);
    let mut objects = Vec::new();
    while !reader.is_empty() {
        let head = ObjectHead::decode(&mut reader)?;
        let bytes = usize::try_from(head.value_bytes).map_err(|_| "a record is longer than its frame")?;
        let value = body.slice_ref(reader.bytes(bytes).map_err(truncated)?);
        objects.push(ObjectRecord { head, value });
    }
    Ok(objects)
}

impl BucketRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.name.len() + self.record.len() + 4);
        put_prefixed(&mut out, self.name.as_bytes());
        put_prefixed(&mut out, &self.record);
        out
    }

    pub(crate) fn decode(body: &Bytes) -> Result<Self, Wrong> {
        let mut reader = Reader::new(body);
        let name = text(&mut reader)?;
        let record = reader.prefixed().map_err(truncated)?;
        if check_bucket(&name).is_err() || record.len() > BUCKET_RECORD_BYTES_MAX || !reader.is_empty() {
            return Err("the record of a bucket is not valid");
        }
        Ok(Self { name, record: body.slice_ref(record) })
    }
}

impl Loss {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Object { key, why } => {
                out.push(0);
                put_prefixed(&mut out, key.bucket().as_bytes());
                put_prefixed(&mut out, key.key());
                put_prefixed(&mut out, why.as_bytes());
            }
            Self::Range(range) => {
                out.push(1);
                out.extend_from_slice(&range.tablet.0.to_le_bytes());
                put_prefixed(&mut out, &range.from);
                out.push(u8::from(range.to.is_some()));
                put_prefixed(&mut out, range.to.as_deref().unwrap_or_default());
                put_varint(&mut out, range.block);
                put_prefixed(&mut out, range.why.as_bytes());
            }
        }
        out
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Wrong> {
        let mut reader = Reader::new(body);
        match reader.u8().map_err(truncated)? {
            0 => Ok(Self::Object { key: decode_key(&mut reader)?, why: text(&mut reader)? }),
            1 => {
                let tablet = shoal_base::TabletId(reader.u16().map_err(truncated)?);
                let from = reader.prefixed().map_err(truncated)?.to_vec();
                let has_end = reader.u8().map_err(truncated)? != 0;
                let to = reader.prefixed().map_err(truncated)?.to_vec();
                let block = reader.varint().map_err(truncated)?;
                let why = text(&mut reader)?;
                Ok(Self::Range(DamagedRange { tablet, from, to: has_end.then_some(to), block, why }))
            }
            _ => Err("a loss is of a kind that is not known"),
        }
    }
}

impl End {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(68);
        for number in [self.objects, self.value_bytes, self.unreadable, self.ranges, self.frames, self.bytes]
        {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.crc.to_le_bytes());
        out.extend_from_slice(&self.deleted.to_le_bytes());
        out.extend_from_slice(&self.keys.to_le_bytes());
        out
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Wrong> {
        let mut reader = Reader::new(body);
        let mut number = || reader.u64().map_err(truncated);
        let [objects, value_bytes, unreadable, ranges, frames, bytes] =
            [number()?, number()?, number()?, number()?, number()?, number()?];
        let crc = reader.u32().map_err(truncated)?;
        let is_of_format_1 = reader.is_empty();
        let mut number = || if is_of_format_1 { Ok(0) } else { reader.u64().map_err(truncated) };
        let [deleted, keys] = [number()?, number()?];
        Ok(Self { objects, value_bytes, unreadable, ranges, frames, bytes, crc, deleted, keys })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `docs/format/backup.md`: a frame of kind 9.
    #[test]
    fn golden_bytes_of_a_bucket() {
        let bucket = BucketRecord { name: "ab".into(), record: Bytes::from_static(&[1, 0, 7]) };
        assert_eq!(bucket.encode(), [2, b'a', b'b', 3, 1, 0, 7]);
    }

    #[test]
    fn invalid_buckets_are_refused() {
        let refused = |name: &str, bytes: usize| {
            let record = Bytes::from(vec![1; bytes]);
            BucketRecord::decode(&BucketRecord { name: name.into(), record }.encode().into()).is_err()
        };
        assert!(!refused("ab", BUCKET_RECORD_BYTES_MAX) && refused("ab", BUCKET_RECORD_BYTES_MAX + 1));
        assert!(refused("", 3) && refused(".shoal", 3) && refused("A b", 3));
        assert!(BucketRecord::decode(&Bytes::from_static(b"\x02ab\x01xy")).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_bucket_or_refused(bytes: Vec<u8>) {
            if let Ok(bucket) = BucketRecord::decode(&bytes.into()) {
                prop_assert_eq!(BucketRecord::decode(&bucket.encode().into()), Ok(bucket));
            }
        }
    }
}
