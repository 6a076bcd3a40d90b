//! Records for tests.

use shoal_base::Lsn;

use crate::format::{ArchiveRecord, OwnerName, RecordBase, RecordFlags, RecordLog};

/// A record with one open log, 7, and no base.
pub(crate) fn record() -> ArchiveRecord {
    ArchiveRecord {
        flags: RecordFlags::default(),
        volume: [3; 16],
        revision: 1,
        nonce: 1,
        epoch: 1,
        owner: Some([1; 16]),
        building: 0,
        oldest_lsn: Lsn::NONE,
        oldest_ns: 0,
        tablets: 4,
        window: 8,
        lease_ms: 9_000,
        logs: vec![log(7, 1)],
        bases: Vec::new(),
        pins: Vec::new(),
        owner_name: OwnerName::default(),
    }
}

/// An open log.
pub(crate) fn log(id: u64, epoch: u64) -> RecordLog {
    RecordLog { id, epoch, first: 0, end: None, last_lsn: Lsn::NONE, claimed_ns: 0 }
}

/// A base with this id, taken at `taken_ns`, which replays log 7 from its slot `id` on.
pub(crate) fn base(id: u64, taken_ns: u64) -> RecordBase {
    RecordBase {
        id,
        version: Lsn(taken_ns),
        log: 7,
        seq: id,
        parts: 1,
        end_crc: 0,
        bytes: 1 << 20,
        objects: 1,
        taken_ns,
    }
}
