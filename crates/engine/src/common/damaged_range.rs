//! A range of keys whose contents are unknown.

use shoal_base::TabletId;

use crate::common::error::Error;
use crate::common::key::name;

/// A range of keys of one tablet whose contents are unknown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedRange {
    /// The tablet: keys of other tablets in the same range are not affected.
    pub tablet: TabletId,
    /// The first key of the range: in a page of a listing, a key of its bucket.
    pub from: Vec<u8>,
    /// The end of the range (exclusive); `None`: there is no end.
    pub to: Option<Vec<u8>>,
    /// The block of the damaged page, or of the page that marks the range as lost.
    pub block: u64,
    /// The reason why the page cannot be read.
    pub why: String,
}

impl DamagedRange {
    /// Returns true if the range has a key from `from` on and, if `to` is given, below it.
    #[must_use]
    pub fn overlaps(&self, from: &[u8], to: Option<&[u8]>) -> bool {
        self.to.as_deref().is_none_or(|end| end > from) && to.is_none_or(|to| self.from[..] < *to)
    }

    /// Returns true if the key lies in the range; the caller checks the tablet.
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

    /// The range in words. Its keys are encoded ones.
    pub(crate) fn words(&self) -> String {
        let to = self.to.as_deref().map_or("the end".into(), name);
        let from = if self.from.is_empty() { "the first one".into() } else { name(&self.from) };
        format!("the keys of tablet {} from {from} up to {to}", self.tablet)
    }

    /// The error for a read of a key in the range.
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
