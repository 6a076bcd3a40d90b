//! Unsettled entries: an apply wrote them above an older entry that it did not read (INV-27).
//!
//! Only layers have unsettled entries. The totals of a tablet count each of them as if it replaced an existing value of the bytes that it
//! estimates. A compaction settles it when it meets the next older entry of the key, or finds that there is none. Both are local: entries above do
//! not matter, so applies may write them meanwhile. If a compaction takes several entries of a key, the newest value remains, with the estimate
//! of the oldest entry.

use shoal_common::leaf_entry::{LeafEntry, value_bytes};

use crate::layers::is_tombstone;

/// The difference between the totals that estimates made and the truth, for some unsettled entries that met the older ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Entries that are settled now, or shadowed by one.
    pub entries: u64,
    /// Keys that did not exist below, although a filter passed them: they count from now on.
    pub absent: u64,
    /// To add to the bytes of values.
    pub bytes: i64,
}

impl Settled {
    /// An entry with this estimate meets the older entry that it shadows; `None`: there is none, or a tombstone.
    pub fn meet(&mut self, estimate: u16, older: Option<&[u8]>) {
        self.entries += 1;
        self.absent += u64::from(older.is_none());
        // Only values in leaves are shadowed unread; a forged length is bounded, so no sum overflows.
        let bytes = older.map_or(0, value_bytes).min(u64::from(u16::MAX));
        self.bytes += i64::from(estimate) - bytes as i64;
    }

    /// Adds other differences.
    pub fn add(&mut self, other: Self) {
        self.entries += other.entries;
        self.absent += other.absent;
        self.bytes += other.bytes;
    }

    /// `value_bytes` of the totals with the difference. Saturating: a forged estimate is wrong.
    #[must_use]
    pub fn value_bytes(&self, before: u64) -> u64 {
        before.saturating_add_signed(self.bytes)
    }
}

/// The entries of a key that a compaction takes, from the newest on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unsettled {
    /// The estimate of the oldest entry so far, if it is unsettled.
    pub estimate: Option<u16>,
    /// The difference for the others.
    pub settled: Settled,
}

impl Unsettled {
    /// The newest entry.
    #[inline]
    pub fn new(newest: &[u8]) -> Self {
        Self { estimate: estimate_of(newest), settled: Settled::default() }
    }

    /// The next older entry of a layer.
    #[inline]
    pub fn meet(&mut self, older: &[u8]) {
        if let Some(estimate) = self.estimate {
            self.settled.meet(estimate, (!is_tombstone(older)).then_some(older));
        }
        self.estimate = estimate_of(older);
    }
}

/// The estimate of an unsettled entry.
#[inline]
pub fn estimate_of(entry: &[u8]) -> Option<u16> {
    LeafEntry::split(entry).ok()?.estimate
}

/// Appends `entry` to `out` with another estimate, or none.
pub fn with_estimate(entry: &[u8], estimate: Option<u16>, out: &mut Vec<u8>) {
    match LeafEntry::split(entry) {
        Ok(parts) if parts.estimate != estimate => LeafEntry { estimate, ..parts }.encode(out),
        _ => out.extend_from_slice(entry),
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::Lsn;

    use super::*;
    use crate::layers::tombstone;

    fn entry(estimate: Option<u16>, bytes: u8) -> Vec<u8> {
        let body = [&[0; 9][..], &[bytes, 0]].concat();
        let mut out = Vec::new();
        LeafEntry { version: 9, estimate, body: &body }.encode(&mut out);
        out
    }

    #[test]
    fn estimates_are_settled_by_the_entries_below() {
        let mut chain = Unsettled::new(&entry(Some(50), 60));
        chain.meet(&entry(Some(40), 47));
        assert_eq!((chain.estimate, chain.settled), (Some(40), Settled { entries: 1, absent: 0, bytes: 3 }));
        chain.meet(&entry(None, 41));
        assert_eq!((chain.estimate, chain.settled), (None, Settled { entries: 2, absent: 0, bytes: 2 }));
        assert_eq!(chain.settled.value_bytes(100), 102);
        // A settled entry above an unsettled one inherits its estimate.
        chain.meet(&entry(Some(1_000), 7));
        assert_eq!((chain.estimate, chain.settled.entries), (Some(1_000), 2));
        chain.meet(&tombstone(Lsn(3)));
        assert_eq!((chain.estimate, chain.settled), (None, Settled { entries: 3, absent: 1, bytes: 1_002 }));
        chain.settled.add(Settled { entries: 1, absent: 1, bytes: -2 });
        assert_eq!(chain.settled, Settled { entries: 4, absent: 2, bytes: 1_000 });
    }

    #[test]
    fn an_estimate_is_replaced() {
        for from in [None, Some(3)] {
            for to in [None, Some(3), Some(500)] {
                let mut out = Vec::new();
                with_estimate(&entry(from, 12), to, &mut out);
                assert_eq!((out.clone(), estimate_of(&out)), (entry(to, 12), to));
            }
        }
        let mut out = Vec::new();
        with_estimate(&tombstone(Lsn(3)), None, &mut out);
        assert_eq!(out, tombstone(Lsn(3)));
        out.clear();
        with_estimate(&tombstone(Lsn(3)), Some(9), &mut out);
        assert_eq!((out.len(), is_tombstone(&out), estimate_of(&out)), (10, true, Some(9)));
    }
}
