//! When the applier's thread applies which tablet, and in which time.

use std::sync::Arc;

use shoal_base::BLOCK_BYTES;
use shoal_tablets::tablet::tree_io::LATE_PERMILLE;
use shoal_tablets::tablet::view::Tablet;

use crate::store::Inner;

/// A tablet is applied after this time even if its memtable is small: the space of deleted objects becomes free.
const APPLY_AFTER_NS: u64 = 3_000_000_000;
/// The rate of the log is measured over at least this time.
const RATE_NS: u64 = 200_000_000;

/// Each tablet has a timer, so that the applies do not follow each other without a gap.
#[derive(Default)]
pub(crate) struct ApplyTimer {
    /// The start of the newest apply of each tablet.
    last_ns: Vec<u64>,
    /// The time and the log's length at the start of a measurement of its rate.
    since: (u64, u64),
    /// Bytes a second.
    rate: u64,
}

impl ApplyTimer {
    /// The tablet to apply now, if any.
    pub(crate) fn next<'a>(&mut self, inner: &'a Arc<Inner>, now_ns: u64) -> Option<&'a Tablet> {
        let tablets = inner.tablets.all();
        let count = tablets.len() as u64;
        // The first applies are a share of the period apart.
        let phase = |index: u64| now_ns.saturating_sub(APPLY_AFTER_NS * (count - 1 - index) / count);
        self.last_ns.resize_with(tablets.len(), || 0);
        if self.since == (0, 0) {
            (0..count).zip(&mut self.last_ns).for_each(|(index, last)| *last = phase(index));
        }
        self.measure(inner, now_ns);
        let chosen = if inner.wants_apply() {
            inner.checkpointer.fullest()
        } else {
            let due = tablets.iter().zip(&self.last_ns).filter(|(tablet, last)| {
                now_ns.saturating_sub(**last) >= APPLY_AFTER_NS && tablet.first_unapplied().is_some()
            });
            due.min_by_key(|(_, last)| **last).map(|(tablet, _)| &**tablet)
        }?;
        if let Some(last) = self.last_ns.get_mut(usize::from(chosen.id.0)) {
            *last = now_ns;
        }
        Some(chosen)
    }

    fn measure(&mut self, inner: &Inner, now_ns: u64) {
        let bytes = inner.log.committer.counters().log_blocks * BLOCK_BYTES as u64;
        let elapsed_ns = now_ns.saturating_sub(self.since.0);
        if elapsed_ns >= RATE_NS {
            let grown = bytes.saturating_sub(self.since.1);
            self.rate = (u128::from(grown) * 1_000_000_000 / u128::from(elapsed_ns)) as u64;
            self.since = (now_ns, bytes);
        }
    }

    /// The nanoseconds that the next apply may take: half of the time until the memtables are nearly full, and a tablet's share of the
    /// period.
    pub(crate) fn time_ns(&self, inner: &Inner) -> u64 {
        let share = APPLY_AFTER_NS * 9 / 10 / inner.tablets.all().len() as u64;
        let room = inner.tablets.admission.room_below(LATE_PERMILLE) as u64;
        let until_full = u128::from(room) * 1_000_000_000 / u128::from(self.rate.max(1));
        share.min(u64::try_from(until_full / 2).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::block_on;
    use crate::testing::fixtures::{environment, formatted, key, options, put};

    const MS: u64 = 1_000_000;

    #[test]
    fn each_tablet_is_applied_once_a_period_and_not_all_at_once() {
        let (_, device) = formatted(1 << 14, 4, 1 << 10);
        let store = block_on(Store::open(device, options(), environment())).unwrap();
        let inner = &store.0;
        let mut timer = ApplyTimer::default();
        let start_ns = 10 * APPLY_AFTER_NS;
        assert!(timer.next(inner, start_ns).is_none(), "there is nothing to apply");
        let mut applied: Vec<Vec<u64>> = vec![Vec::new(); 4];
        for step in 1..=120 {
            (0..12).for_each(|which| put(&store, &key(which), [1; 50]));
            let now_ns = start_ns + step * 100 * MS;
            if let Some(tablet) = timer.next(inner, now_ns) {
                applied[usize::from(tablet.id.0)].push(now_ns - start_ns);
                block_on(inner.checkpointer.apply_alone(tablet)).unwrap();
            }
            assert!(timer.time_ns(inner) <= APPLY_AFTER_NS / 4);
        }
        for times in &applied {
            assert_eq!(times.len(), 4, "{applied:?}");
            assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= APPLY_AFTER_NS), "{applied:?}");
        }
        let mut all = applied.concat();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= APPLY_AFTER_NS / 8), "{all:?}");
    }
}
