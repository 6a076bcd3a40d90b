//! Listings, the same in the engine and in its client: the request, the pages, and the damaged ranges that a page skips.

use crate::TabletId;

/// The parameters of a listing.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// The bucket, 1 to 63 bytes. A server takes an empty name for [`DEFAULT_BUCKET`](crate::object::DEFAULT_BUCKET).
    pub bucket: String,
    /// Only keys with this prefix are listed; at most 1,024 bytes.
    pub prefix: Vec<u8>,
    /// Keys that contain this after the prefix are rolled up into one common prefix, with the delimiter as its last bytes. At most 1,024
    /// bytes; empty: no rolling up.
    pub delimiter: Vec<u8>,
    /// Only keys after this one are listed; at most 1,024 bytes. If it is a common prefix of an earlier page, everything
    /// under it is skipped.
    pub start_after: Vec<u8>,
    /// The most keys and common prefixes in all; up to 1,000. 0 means 1,000.
    pub limit: usize,
}

/// One page of a listing, in the order of the keys' bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<Entry> {
    /// The keys with their objects' information.
    pub entries: Vec<Entry>,
    /// Rolled-up prefixes, in order.
    pub common_prefixes: Vec<Vec<u8>>,
    /// The `start_after` of the next page, if there may be more. A page may be shorter than its limit and yet have this.
    pub next: Option<Vec<u8>>,
    /// The damaged ranges that the page skips, in order: objects stored there, and not written since, are not among its keys. Keys are
    /// those of the bucket; a range that reaches beyond the bucket starts with the empty key, or has no end. Each page lists the ranges
    /// that overlap it, so several pages may list the same one.
    pub damaged: Vec<DamagedRange>,
}

/// Names of buckets, in the order of their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketPage {
    /// The names.
    pub names: Vec<String>,
    /// True if there are more after the last one.
    pub is_cut: bool,
    /// Damaged ranges of keys that the listing skipped: a bucket with objects in nothing else is missing.
    pub damaged: u32,
}

/// A range of keys of one tablet whose contents are unknown. A read or a condition on a key in it fails; a put or a
/// delete without a condition works, and settles the key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedRange {
    /// The tablet: keys of other tablets in the same range are not affected.
    pub tablet: TabletId,
    /// The first key of the range: in a page of a listing, a key of its bucket.
    pub from: Vec<u8>,
    /// The end of the range (exclusive); `None`: there is no end.
    pub to: Option<Vec<u8>>,
    /// The block (of 4 KiB) of the damaged page, or of the page that marks the range as lost; 0 if it is not known.
    pub block: u64,
    /// The reason why the page cannot be read.
    pub why: String,
}

impl DamagedRange {
    /// Returns true if the range has a key from `from` on and, if there is a `to`, below it.
    #[must_use]
    pub fn overlaps(&self, from: &[u8], to: Option<&[u8]>) -> bool {
        self.to.as_deref().is_none_or(|end| end > from) && to.is_none_or(|to| self.from[..] < *to)
    }

    /// Returns true if the key is in the range; the caller checks the tablet.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.from[..] <= *key && self.to.as_deref().is_none_or(|to| key < to)
    }

    /// Extends the range by `other` if both are of one tablet and touch; returns true if they do.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_from_inclusive_to_exclusive() {
        let range = |from: &str, to: Option<&str>| DamagedRange {
            tablet: TabletId(1),
            from: from.into(),
            to: to.map(Into::into),
            block: 7,
            why: "torn".into(),
        };
        let some = range("b", Some("d"));
        assert!(some.contains(b"b") && some.contains(b"c") && !some.contains(b"d") && !some.contains(b"a"));
        assert!(some.overlaps(b"a", Some(b"c")) && !some.overlaps(b"a", Some(b"b")));
        assert!(some.overlaps(b"c", None) && !some.overlaps(b"d", None));
        assert!(range("", None).contains(b"anything"));
    }
}
