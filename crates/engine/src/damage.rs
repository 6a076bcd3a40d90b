//! Ranges of keys of which nobody knows what they hold: a page of a tablet's tree is damaged, cannot be read, or was lost (R19).
//!
//! Listings go past them and name them; reads and conditions on a key in one are refused with words that name it. Puts and
//! deletes without a condition need nothing of what was there, and settle their keys. The store remembers a bounded number of
//! the ranges that it met, for figures; [`Store::list`](crate::Store::list) over everything finds all of them.

use shoal_base::TabletId;
use shoal_base::sync::Mutex;

use crate::check::name;
use crate::error::Error;
use crate::tree::Gap;

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

/// A range of keys of one tablet of which nobody knows what they hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedRange {
    /// The tablet: keys of other tablets lie in the same range and are not concerned.
    pub tablet: TabletId,
    /// The first key of the range. In a page of a listing, as a key of its bucket.
    pub from: Vec<u8>,
    /// The first key behind it; none: up to the end.
    pub to: Option<Vec<u8>>,
    /// Where the damaged page lies, or the page that marks the range as lost.
    pub block: u64,
    /// Why it cannot be read.
    pub why: String,
}

impl DamagedRange {
    pub(crate) fn new(tablet: TabletId, gap: Gap) -> Self {
        let Gap { block, low, high, why } = gap;
        Self { tablet, from: low, to: high, block, why }
    }

    /// Whether it has a key from `from` on and below `to`, where there is an end.
    #[must_use]
    pub fn overlaps(&self, from: &[u8], to: Option<&[u8]>) -> bool {
        self.to.as_deref().is_none_or(|end| end > from) && to.is_none_or(|to| self.from[..] < *to)
    }

    /// Whether the key lies in it, where it is of the same tablet.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.from[..] <= *key && self.to.as_deref().is_none_or(|to| key < to)
    }

    /// Takes `other` in, where the two are of one tablet and touch; says whether they do.
    #[must_use]
    pub fn join(&mut self, other: &Self) -> bool {
        let touches = |one: &Self, next: &Self| {
            one.from <= next.from && one.to.as_ref().is_none_or(|to| *to >= next.from)
        };
        if self.tablet != other.tablet || !(touches(self, other) || touches(other, self)) {
            return false;
        }
        if other.from < self.from {
            self.from.clone_from(&other.from);
        }
        self.to = match (self.to.take(), &other.to) {
            (Some(one), Some(two)) => Some(one.max(two.clone())),
            _ => None,
        };
        true
    }

    /// The range in words; its keys are encoded ones.
    pub(crate) fn words(&self) -> String {
        let to = self.to.as_deref().map_or("the end".into(), name);
        let from = if self.from.is_empty() { "the first one".into() } else { name(&self.from) };
        format!("the keys of tablet {} from {from} up to {to}", self.tablet)
    }

    /// The answer to who asks what a key in the range holds.
    pub(crate) fn error(&self) -> Error {
        let what = format!(
            "whether the object exists is not known, as {} cannot be read ({}); put or delete it without a condition, or repair \
             the store (`shoal check --repair`); the page lies",
            self.words(),
            self.why
        );
        Error::Corrupt { what, block: self.block }
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
