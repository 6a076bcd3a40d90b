//! A put of a log, as an object: its entry, decoded, with the deadline by the wall clock.

use bytes::Bytes;
use shoal_backup::{ExpiresAt, ObjectHead};
use shoal_base::Lsn;
use shoal_common::object::EndTime;
use shoal_engine::{Metadata, ObjectKey};
use shoal_log::format::EncodedRecord;
use shoal_value::{Entry, Meta, decode_metadata, split_home};

use crate::format::SegmentBatch;

/// The reason why the bytes of a put are no object.
pub(super) type WrongPut = &'static str;

/// The entry of a put, and the inline bytes after it; none if the value is elsewhere.
pub(super) fn entry_of(record: &EncodedRecord, is_inline: bool) -> Result<(Entry, Bytes), WrongPut> {
    let wrong = |_| "the entry of a put is damaged";
    let body = record.body();
    if !is_inline {
        let (head, _) = split_home(&body).map_err(wrong)?;
        return Ok((Entry::decode_head(head.bytes).map_err(wrong)?, Bytes::new()));
    }
    let (entry, inline) = Entry::decode(&body).map_err(wrong)?;
    let inline = body.slice(body.len() - inline.len()..);
    Ok((entry, inline))
}

/// The metadata of an entry. `stored` are its first stored bytes, from which metadata before the value is taken off.
pub(super) fn metadata_of(entry: &Entry, stored: &mut Bytes) -> Result<Metadata, WrongPut> {
    let wrong = |_| "the metadata of an object is damaged";
    match &entry.meta {
        Meta::Inline(bytes) => decode_metadata(bytes).map_err(wrong),
        Meta::InFront { bytes, .. } if *bytes as usize <= stored.len() => {
            decode_metadata(&stored.split_to(*bytes as usize)).map_err(wrong)
        }
        Meta::InFront { .. } => Err("the metadata of an object is cut off"),
    }
}

/// The head of the object. A deadline in store time (R18) is one of the wall clock that the batch had then.
pub(super) fn head_of(
    batch: &SegmentBatch,
    lsn: Lsn,
    key: ObjectKey,
    entry: &Entry,
    metadata: Metadata,
) -> ObjectHead {
    let expiry = entry.end.map(|end| match end {
        EndTime::Wall(at_ns) => ExpiresAt { at_ns, is_relative: false },
        EndTime::Store(at) => {
            let at_ns = batch.wall_ns.saturating_add(at).saturating_sub(batch.store_ns);
            ExpiresAt { at_ns, is_relative: true }
        }
    });
    let (modified_ns, value_bytes) = (entry.modified_ns, entry.value_bytes);
    ObjectHead { key, version: lsn, modified_ns, expiry, metadata, value_bytes }
}
