//! Retention: the bases and the slots that the record still names.

use std::time::Duration;

use crate::format::{ArchiveRecord, RecordBase};
use crate::limits::BASES_MAX;

/// Drops from `record` everything that no moment of the last `retention` needs: bases before the newest one that is at least as old as
/// that, unless they are pinned, and the slots that no base replays. A dropped object is deleted by a sweep, later. Returns true if
/// anything was dropped.
///
/// The moments between a pinned base and the oldest one that stays cannot be restored, but that of the pinned base can: it needs no log.
pub fn retain(record: &mut ArchiveRecord, retention: Duration, now_ns: u64) -> bool {
    let before = (record.bases.len(), record.pins.len(), record.logs.clone());
    record.pins.retain(|pin| pin.until_ns.is_none_or(|until| now_ns < until));
    let horizon_ns = now_ns.saturating_sub(u64::try_from(retention.as_nanos()).unwrap_or(u64::MAX));
    let old = record.bases.iter().rposition(|base| base.taken_ns <= horizon_ns);
    let oldest = old.unwrap_or(0);
    let Some(kept) = record.bases.get(oldest).copied() else { return before.1 != record.pins.len() };
    let pins = &record.pins;
    let is_pinned = |base: &RecordBase| pins.iter().any(|pin| pin.base == base.id);
    let mut number = 0;
    record.bases.retain(|base| {
        number += 1;
        number > oldest || is_pinned(base)
    });
    drop_slots(record, &kept);
    (record.oldest_lsn, record.oldest_ns) = (kept.version, kept.taken_ns);
    before != (record.bases.len(), record.pins.len(), record.logs.clone())
}

/// Drops the slots before those that `kept` replays.
fn drop_slots(record: &mut ArchiveRecord, kept: &RecordBase) {
    let Some(at) = record.logs.iter().position(|log| log.id == kept.log) else { return };
    record.logs.drain(..at);
    let Some(log) = record.logs.first_mut() else { return };
    let end = log.end.unwrap_or(u64::MAX);
    log.first = log.first.max(kept.seq).min(end);
    // The owner's log stays, whatever it has.
    if log.end == Some(log.first) && record.logs.len() > 1 {
        record.logs.remove(0);
    }
}

/// Makes room for one more base: thins out the unpinned ones, of which the oldest and the newest stay.
pub fn make_room(record: &mut ArchiveRecord) {
    while record.bases.len() >= BASES_MAX {
        let pins = &record.pins;
        let is_pinned = |base: &RecordBase| pins.iter().any(|pin| pin.base == base.id);
        let last = record.bases.len() - 1;
        let spare = (1..last).filter(|&at| record.bases.get(at).is_some_and(|base| !is_pinned(base)));
        // The one whose neighbours are closest: a restore replays the log from the one before.
        let gap = |at: usize| {
            let taken = |at: usize| record.bases.get(at).map_or(0, |base| base.taken_ns);
            taken(at + 1).saturating_sub(taken(at - 1))
        };
        let Some(at) = spare.min_by_key(|&at| gap(at)) else { return };
        record.bases.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::RecordPin;
    use crate::testing::{base, log, record};

    fn ids(record: &ArchiveRecord) -> Vec<u64> {
        record.bases.iter().map(|base| base.id).collect()
    }

    /// Bases 1 to 5, taken at 100 to 500, in the logs 7, 7, 8, 8, 9.
    fn history() -> ArchiveRecord {
        let mut record = record();
        record.logs = vec![log(7, 1), log(8, 2), log(9, 3)];
        for (at, log) in [(1, 7), (2, 7), (3, 8), (4, 8), (5, 9)] {
            record.bases.push(RecordBase { log, ..base(at, 100 * at) });
        }
        for (log, end) in record.logs.iter_mut().zip([Some(20), Some(30), None]) {
            log.end = end;
        }
        record.epoch = 3;
        record
    }

    #[test]
    fn each_moment_of_the_retention_keeps_its_base_and_its_log() {
        for (now, kept, logs) in [
            (1_000, vec![1, 2, 3, 4, 5], vec![(7, 1), (8, 0), (9, 0)]),
            (1_199, vec![1, 2, 3, 4, 5], vec![(7, 1), (8, 0), (9, 0)]),
            (1_200, vec![2, 3, 4, 5], vec![(7, 2), (8, 0), (9, 0)]),
            (1_450, vec![4, 5], vec![(8, 4), (9, 0)]),
            (9_000, vec![5], vec![(9, 5)]),
        ] {
            let mut record = history();
            let dropped = retain(&mut record, Duration::from_nanos(1_000), now);
            assert_eq!(ids(&record), kept, "at {now}");
            let firsts: Vec<_> = record.logs.iter().map(|log| (log.id, log.first)).collect();
            assert_eq!(firsts, logs, "at {now}");
            assert_eq!(
                (record.oldest_lsn, record.oldest_ns),
                (record.bases[0].version, record.bases[0].taken_ns)
            );
            assert!(dropped, "slots before the first base are dropped at least");
            let again = record.clone();
            assert!(!retain(&mut record, Duration::from_nanos(1_000), now), "nothing more");
            assert_eq!(record, again);
            record.encode().unwrap();
        }
    }

    /// Every base of `history` that a moment in the retention needs is there, for any now and any retention.
    #[test]
    fn no_moment_is_dropped_too_early() {
        for now in (0..1_200).step_by(50) {
            for retention in (0..1_200).step_by(50) {
                let mut record = history();
                retain(&mut record, Duration::from_nanos(retention), now);
                for moment in now.saturating_sub(retention)..=now {
                    let needed = history().bases.iter().rposition(|base| base.taken_ns <= moment);
                    let Some(needed) = needed.map(|at| history().bases[at]) else { continue };
                    assert!(record.bases.contains(&needed), "now {now}, retention {retention}, {moment}");
                    let log = record.logs.iter().find(|log| log.id == needed.log);
                    assert!(log.is_some_and(|log| log.first <= needed.seq), "the log of base {}", needed.id);
                }
            }
        }
    }

    #[test]
    fn a_pinned_base_stays_until_its_pin_ends() {
        let mut record = history();
        record.pins.push(RecordPin { base: 2, until_ns: Some(10_000), name: "audit".into() });
        retain(&mut record, Duration::from_nanos(10), 9_000);
        assert_eq!((ids(&record), record.oldest_ns), (vec![2, 5], 500));
        retain(&mut record, Duration::from_nanos(10), 10_000);
        assert_eq!((ids(&record), record.pins.len()), (vec![5], 0));
    }

    #[test]
    fn a_log_without_a_slot_that_is_needed_is_dropped() {
        let mut record = history();
        record.bases.truncate(1);
        record.bases[0].seq = 20;
        retain(&mut record, Duration::ZERO, 1_000);
        let logs: Vec<_> = record.logs.iter().map(|log| log.id).collect();
        assert_eq!(logs, vec![8, 9], "log 7 ended at slot 20");
    }

    #[test]
    fn there_is_room_for_one_more_base() {
        let mut record = record();
        record.bases = (0..BASES_MAX as u64).map(|at| base(at + 1, 100 * at + 50 * (at % 2))).collect();
        record.pins.push(RecordPin { base: 3, until_ns: None, name: "audit".into() });
        make_room(&mut record);
        assert_eq!(record.bases.len(), BASES_MAX - 1);
        assert!(ids(&record).contains(&3), "a pinned base stays");
        assert_eq!((record.bases[0].id, record.bases[BASES_MAX - 2].id), (1, BASES_MAX as u64));
    }
}
