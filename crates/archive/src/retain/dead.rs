//! The objects that are dead by a record (R-g): nobody reads them, and no name of theirs is used again.

use std::collections::{HashMap, HashSet};

use crate::bucket::BucketEntry;
use crate::format::{ArchiveName, ArchiveRecord, RecordLog, TOMBSTONE_BYTES};

/// The objects that a record names.
///
/// Death is monotone: an object that is dead by one version of the record is dead by all later ones. A log or a base is in the record before
/// its first object exists, so objects that were listed *before* the record was read, and that it does not name, are dead (R-i).
pub struct NamedObjects {
    logs: HashMap<u64, RecordLog>,
    bases: HashSet<u64>,
}

impl NamedObjects {
    /// The objects that `record` names, those of the base that is being uploaded included.
    #[must_use]
    pub fn of(record: &ArchiveRecord) -> Self {
        let logs = record.logs.iter().map(|log| (log.id, *log)).collect();
        let bases = record.bases.iter().map(|base| base.id);
        let building = (record.building != 0).then_some(record.building);
        Self { logs, bases: bases.chain(building).collect() }
    }

    /// Returns true if `object`, which was listed before the record was read, is dead. Tombstones never are (R-h), and neither are objects
    /// with names that this version does not use.
    #[must_use]
    pub fn is_dead(&self, object: &BucketEntry) -> bool {
        match ArchiveName::parse(&object.name) {
            None | Some(ArchiveName::Record) => false,
            Some(ArchiveName::Slot(_)) if object.bytes == TOMBSTONE_BYTES as u64 => false,
            Some(ArchiveName::Slot(slot)) => match self.logs.get(&slot.log) {
                None => true,
                // The slot `end` itself has the tombstone: something else there contradicts the record, and stays.
                Some(log) => slot.seq < log.first || log.end.is_some_and(|end| slot.seq > end),
            },
            Some(ArchiveName::Part { base, .. } | ArchiveName::BaseEnd { base }) => {
                !self.bases.contains(&base)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shoal_base::Lsn;

    use super::*;
    use crate::format::{LogSlot, RecordBase};

    fn record(logs: Vec<RecordLog>, bases: &[u64], building: u64) -> ArchiveRecord {
        let base = |id: &u64| RecordBase {
            id: *id,
            version: Lsn(1),
            log: 1,
            seq: 0,
            parts: 2,
            end_crc: 0,
            bytes: 2,
            objects: 2,
            taken_ns: 1,
        };
        let bases = bases.iter().map(base).collect();
        ArchiveRecord { building, logs, bases, ..crate::testing::record() }
    }

    /// The rule, slot by slot and in other words.
    fn dead_by_model(record: &ArchiveRecord, name: ArchiveName, bytes: u64) -> bool {
        match name {
            ArchiveName::Record => false,
            ArchiveName::Slot(LogSlot { log, seq }) => {
                let alive = record.logs.iter().filter(|its| its.id == log);
                let mut alive = alive.flat_map(|its| its.first..its.end.map_or(20, |end| end + 1));
                bytes != 64 && !alive.any(|its| its == seq)
            }
            ArchiveName::Part { base, .. } | ArchiveName::BaseEnd { base } => {
                base != record.building && record.bases.iter().all(|its| its.id != base)
            }
        }
    }

    fn log() -> impl Strategy<Value = RecordLog> {
        (1..6_u64, 0..8_u64, prop::option::of(0..8_u64)).prop_map(|(id, first, more)| {
            let end = more.map(|more| first + more);
            RecordLog { id, epoch: 1, first, end, last_lsn: Lsn::NONE, claimed_ns: 0 }
        })
    }

    proptest! {
        #[test]
        fn exactly_the_unnamed_objects_are_dead(
            mut logs in prop::collection::vec(log(), 0..4),
            bases in prop::collection::hash_set(1..6_u64, 0..4),
            building in 0..7_u64,
        ) {
            logs.sort_by_key(|log| log.id);
            logs.dedup_by_key(|log| log.id);
            let bases: Vec<u64> = bases.into_iter().filter(|base| *base != building).collect();
            let record = record(logs, &bases, building);
            let named = NamedObjects::of(&record);
            let slots = (0..7).flat_map(|log| (0..20).map(move |seq| ArchiveName::Slot(LogSlot { log, seq })));
            let parts = (1..7).flat_map(|base| {
                [ArchiveName::BaseEnd { base }, ArchiveName::Part { base, part: 0 }, ArchiveName::Part { base, part: 9 }]
            });
            for name in slots.chain(parts).chain([ArchiveName::Record]) {
                for bytes in [63, 64, 65, 128] {
                    let object = BucketEntry { name: name.to_string(), bytes };
                    prop_assert_eq!(named.is_dead(&object), dead_by_model(&record, name, bytes), "{}", name);
                }
            }
        }
    }

    #[test]
    fn names_of_other_versions_are_nobodys_to_delete() {
        let named = NamedObjects::of(&record(Vec::new(), &[], 0));
        for name in ["run/00000001/00000002", "follower/a", "probe/1/2", "log/1/2", "base/x", "record.old"] {
            assert!(!named.is_dead(&BucketEntry { name: name.into(), bytes: 5 }), "{name}");
        }
    }
}
