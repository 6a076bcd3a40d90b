//! When an apply begins: as late as writers still find room until it is through.
//!
//! The fuller overlays are when one is frozen, the more records meet each leaf. So an apply begins where what is left of a limit is
//! half as much again as what came during the applies before. Nothing measured yet: at half of the limit.

use shoal_base::sync::atomic::{AtomicUsize, Ordering};

/// All of a limit, in thousandths.
pub(crate) const WHOLE: usize = 1000;
/// The room that is left for writers, at least and at most.
const MARGIN_MIN: usize = WHOLE / 8;
const MARGIN_MAX: usize = WHOLE / 2;

/// Where an apply begins, against one limit.
pub(crate) struct Pace {
    /// The room that is left when it begins, in thousandths of the limit. Relaxed: a reader that misses a change begins a little later.
    margin: AtomicUsize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { margin: AtomicUsize::new(MARGIN_MAX) }
    }
}

impl Pace {
    /// So many thousandths of the limit came while an apply ran. A long one counts at once, and is forgotten slowly.
    pub(crate) fn note(&self, came: usize) {
        let before = self.margin.load(Ordering::Relaxed);
        let wanted = came.saturating_mul(3) / 2;
        let margin = wanted.max(before - before / 16).clamp(MARGIN_MIN, MARGIN_MAX);
        self.margin.store(margin, Ordering::Relaxed);
    }

    /// Whether an apply is to run with so many thousandths of the limit in use.
    pub(crate) fn is_due(&self, fill: usize) -> bool {
        fill + self.margin.load(Ordering::Relaxed) >= WHOLE
    }
}

/// Whether something that needs `part` of the limit `whole` may find no room before an apply is due.
pub(crate) fn may_not_fit(part: usize, whole: usize) -> bool {
    part.saturating_mul(WHOLE / MARGIN_MIN) > whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_later_where_little_comes_meanwhile() {
        let pace = Pace::default();
        assert!(pace.is_due(500) && !pace.is_due(499), "nothing is known");
        for _ in 0..100 {
            pace.note(100);
        }
        assert!(pace.is_due(850) && !pace.is_due(849), "three times fifty are left");
        for _ in 0..100 {
            pace.note(0);
        }
        assert!(pace.is_due(875) && !pace.is_due(874), "something is left");
        pace.note(300);
        assert!(pace.is_due(550) && !pace.is_due(549), "at once");
        pace.note(usize::MAX);
        assert!(pace.is_due(500) && !pace.is_due(499), "never before half");
        assert!(may_not_fit(13, 100) && !may_not_fit(12, 100));
    }
}
