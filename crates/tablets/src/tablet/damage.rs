//! Ranges of keys whose contents are unknown: a page of a tablet's tree is damaged, cannot be read, or was lost (R19).
//!
//! Listings skip these ranges and name them. A read of a key in such a range, and a condition on it, fails with an error that names the
//! range. Puts and deletes without a condition do not depend on the old state, and make the state of their keys known again. The store
//! remembers a bounded number of the ranges that it met, for statistics; a [`Store::list`](crate::Store::list) over all keys finds all of
//! them.

use shoal_base::list::DamagedRange;
use shoal_base::sync::Mutex;
use shoal_common::damaged_range;

/// Limit on the damaged ranges that an open store remembers.
pub(crate) const REMEMBERED_MAX: usize = 64;

/// The treatment of unreadable pages that an apply meets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unread {
    /// A page that the device cannot read fails the apply; the keys of a damaged page are lost.
    Fails,
    /// The keys of both are lost (R19).
    IsLost,
    /// The keys of both become absent for good, as do keys that were lost earlier: no mark stays.
    IsAbsent,
}

/// Adds a range to `ranges` and joins it with ranges that it touches. If there are already `most` ranges, the last range of the same tablet
/// is widened to include it and then also covers undamaged keys.
pub fn add(ranges: &mut Vec<DamagedRange>, range: DamagedRange, most: usize) {
    if let Some(at) = ranges.iter_mut().position(|known| known.join(&range)) {
        // The joined range may touch further ranges.
        let mut joined = ranges.swap_remove(at);
        while let Some(at) = ranges.iter().position(|known| joined.join(known)) {
            ranges.swap_remove(at);
        }
        ranges.push(joined);
        return;
    }
    if ranges.len() >= most
        && let Some(last) = ranges.iter_mut().rfind(|known| known.tablet == range.tablet)
    {
        last.to = match (last.to.take(), range.to) {
            (Some(one), Some(two)) => Some(one.max(two)),
            _ => None,
        };
        last.from = std::mem::take(&mut last.from).min(range.from);
        return;
    }
    ranges.push(range);
}

fn is_within(inner: &DamagedRange, outer: &DamagedRange) -> bool {
    outer.from <= inner.from
        && match (&inner.to, &outer.to) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(inner), Some(outer)) => inner <= outer,
        }
}

/// The damaged ranges that an open store met.
#[derive(Default)]
pub struct Met(Mutex<Vec<DamagedRange>>);

impl Met {
    /// Notes a range of encoded keys, and logs it if it is new.
    pub fn note(&self, range: &DamagedRange) {
        let mut ranges = self.0.lock();
        let is_new = !ranges.iter().any(|known| known.tablet == range.tablet && is_within(range, known));
        if is_new {
            add(&mut ranges, range.clone(), REMEMBERED_MAX);
        }
        drop(ranges);
        if is_new {
            tracing::error!(
                "{} cannot be read ({}, block {}): listings skip them, reads of them return an error; `shoal check --repair` \
                 restores part of them",
                damaged_range::words(range),
                range.why,
                range.block
            );
        }
    }

    /// The ranges met so far.
    pub fn all(&self) -> Vec<DamagedRange> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::TabletId;

    use super::*;

    fn range(tablet: u16, from: &str, to: Option<&str>) -> DamagedRange {
        DamagedRange {
            tablet: TabletId(tablet),
            from: from.into(),
            to: to.map(Into::into),
            block: 7,
            why: "torn".into(),
        }
    }

    #[test]
    fn adjacent_ranges_merge() {
        let mut ranges = Vec::new();
        for (tablet, from, to) in [
            (1, "b", Some("d")),
            (2, "b", Some("d")),
            (1, "h", None),
            (1, "d", Some("e")),
            (1, "c", Some("i")),
        ] {
            add(&mut ranges, range(tablet, from, to), 8);
        }
        ranges.sort();
        assert_eq!(ranges, [range(1, "b", None), range(2, "b", Some("d"))]);
    }

    #[test]
    fn damage_list_is_bounded_and_complete() {
        let mut ranges = Vec::new();
        let all: Vec<DamagedRange> = (0..100_u32)
            .map(|at| range((at % 3) as u16, &format!("{at:03}"), Some(&format!("{at:03}+"))))
            .collect();
        for range in &all {
            add(&mut ranges, range.clone(), 8);
        }
        assert!(ranges.len() <= 8 + 3, "{}", ranges.len());
        for range in &all {
            let named = |known: &&DamagedRange| known.tablet == range.tablet && known.contains(&range.from);
            assert!(ranges.iter().any(|known| named(&known)), "{range:?}");
        }
    }
}
