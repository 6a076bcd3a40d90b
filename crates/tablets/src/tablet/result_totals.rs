//! The results of writes with a request id in the trees of a tablet: they are entries of the trees, but not objects.
//!
//! The superblock does not count them. A walk over their range of keys counts those of one view, and each apply notes
//! its changes, so the count stays exact without another walk.

/// Results and the bytes of their values, or a change of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultTotals {
    /// Stored results of writes with a request id.
    pub count: i64,
    /// Bytes of their values.
    pub value_bytes: i64,
}

impl ResultTotals {
    /// Counts one more result.
    pub fn add(&mut self, value_bytes: u64) {
        self.count += 1;
        self.value_bytes += value_bytes as i64;
    }

    pub(crate) fn remove(&mut self, value_bytes: u64) {
        self.count -= 1;
        self.value_bytes -= value_bytes as i64;
    }

    /// The sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, value_bytes: self.value_bytes + other.value_bytes }
    }

    /// The totals before the change `later`.
    pub fn before(self, later: Self) -> Self {
        Self { count: self.count - later.count, value_bytes: self.value_bytes - later.value_bytes }
    }

    /// The totals without negative numbers, which mean results that are not counted yet or that damage hides.
    pub(crate) fn at_least_none(self) -> Self {
        Self { count: self.count.max(0), value_bytes: self.value_bytes.max(0) }
    }
}
