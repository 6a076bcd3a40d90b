//! Ranges of keys of which nobody knows what they hold: a page of a tablet's tree is damaged, cannot be read, or was lost (R19).
//!
//! Listings go past them and name them; reads and conditions on a key in one are refused with words that name it. Puts and
//! deletes without a condition need nothing of what was there, and settle their keys. The store remembers a bounded number of
//! the ranges that it met, for figures; [`Store::list`](crate::Store::list) over everything finds all of them.

use shoal_base::TabletId;
use shoal_base::sync::Mutex;

use crate::common::damaged_range::DamagedRange;
use crate::tablet::tree::Gap;

/// Ranges that an open store remembers.
pub(crate) const REMEMBERED_MAX: usize = 64;

/// What becomes of pages that an apply meets and that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unread {
    /// What the device cannot read ends the apply; what is damaged is lost.
    Fails,
    /// Both are lost (R19).
    IsLost,
    /// Both are gone for good, and what was lost before: no mark stays.
    IsAbsent,
}

impl DamagedRange {
    pub(crate) fn new(tablet: TabletId, gap: Gap) -> Self {
        let Gap { block, low, high, why } = gap;
        Self { tablet, from: low, to: high, block, why }
    }
}

/// Adds a range to those that were named already: joined where they touch, and where there are `most` of them, to the last one of
/// its tablet, which then says more than is damaged.
pub(crate) fn add(ranges: &mut Vec<DamagedRange>, range: DamagedRange, most: usize) {
    if let Some(at) = ranges.iter_mut().position(|known| known.join(&range)) {
        // It may have closed what was between two.
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

/// The ranges that an open store met.
#[derive(Default)]
pub(crate) struct Met(Mutex<Vec<DamagedRange>>);

impl Met {
    /// Notes a range, of encoded keys; says so in the log where it is new.
    pub(crate) fn note(&self, range: &DamagedRange) {
        let mut ranges = self.0.lock();
        let is_new = !ranges.iter().any(|known| known.tablet == range.tablet && is_within(range, known));
        if is_new {
            add(&mut ranges, range.clone(), REMEMBERED_MAX);
        }
        drop(ranges);
        if is_new {
            tracing::error!(
                "{} cannot be read ({}, block {}): listings go past them, reads of them answer with an error; `shoal check --repair` \
                 restores what it can",
                range.words(),
                range.why,
                range.block
            );
        }
    }

    /// Those that were met.
    pub(crate) fn all(&self) -> Vec<DamagedRange> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
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
    fn ranges_that_touch_become_one() {
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
    fn the_list_is_bounded_and_leaves_nothing_out() {
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

    #[test]
    fn bounds_are_from_inclusive_to_exclusive() {
        let some = range(1, "b", Some("d"));
        assert!(some.contains(b"b") && some.contains(b"c") && !some.contains(b"d") && !some.contains(b"a"));
        assert!(some.overlaps(b"a", Some(b"c")) && !some.overlaps(b"a", Some(b"b")));
        assert!(some.overlaps(b"c", None) && !some.overlaps(b"d", None));
        assert!(range(1, "", None).contains(b"anything"));
    }
}
