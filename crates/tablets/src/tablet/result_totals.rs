//! The results of writes with a request id, the uploads and their parts in the trees of a tablet: they are entries of the trees, but not
//! objects.
//!
//! The superblock does not count them. A walk over their ranges of keys counts those of one view, and each apply notes
//! its changes, so the count stays exact without another walk.

use shoal_common::hidden_key::is_hidden;
use shoal_value::Entry;

/// Entries that are no objects, and the bytes of their values, or a change of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultTotals {
    /// All of them.
    pub count: i64,
    /// Bytes of their values.
    pub value_bytes: i64,
    /// Those with a deadline: all results, and uploads that are not open.
    pub expiring: i64,
    /// Uploads and parts.
    pub hidden: i64,
}

impl ResultTotals {
    /// Counts one more entry.
    pub fn add(&mut self, key: &[u8], value_bytes: u64, expires: bool) {
        *self = self.and(Self::one(key, value_bytes, expires));
    }

    pub(crate) fn remove(&mut self, key: &[u8], entry: &Entry) {
        *self = self.before(Self::one(key, entry.value_bytes, entry.end.is_some()));
    }

    fn one(key: &[u8], value_bytes: u64, expires: bool) -> Self {
        let (value_bytes, expiring) = (value_bytes as i64, i64::from(expires));
        Self { count: 1, value_bytes, expiring, hidden: i64::from(is_hidden(key)) }
    }

    fn with(self, other: Self, combine: impl Fn(i64, i64) -> i64) -> Self {
        Self {
            count: combine(self.count, other.count),
            value_bytes: combine(self.value_bytes, other.value_bytes),
            expiring: combine(self.expiring, other.expiring),
            hidden: combine(self.hidden, other.hidden),
        }
    }

    /// The sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        self.with(other, |one, other| one + other)
    }

    /// The totals before the change `later`.
    pub fn before(self, later: Self) -> Self {
        self.with(later, |now, later| now - later)
    }

    /// The totals without negative numbers, which mean entries that are not counted yet or that damage hides.
    pub(crate) fn at_least_none(self) -> Self {
        self.with(Self::default(), i64::max)
    }
}
