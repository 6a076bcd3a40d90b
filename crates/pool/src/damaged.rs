//! Pages with recent read failures, so that a pass over many keys under one of them does not read it for each key.
//!
//! The rule. A page has wrong bytes, or the device reports its block as unreadable: a pass leaves it alone after the
//! failed read, for the longer of [`REMEMBERED_FOR`] and the duration of that read. A failing drive may need seconds
//! for each read, so passes spend at most half of their time on a block that stays bad. A block that recovers is read
//! again within that time, and at once by callers that ask the device directly: a get, and an apply that is about to
//! drop the page.
//!
//! Only callers that ask for it get an answer from here ([`Pool::remembered_damage`](crate::Pool::remembered_damage));
//! [`Pool::fetch`](crate::Pool::fetch) always asks the device. A page is forgotten after its time, after a good read,
//! and when its block is written. The memory is bounded by the pool's frames. When it is full it forgets everything: a
//! pass uses one page per level of each tree, so it reads these once more and continues. While nothing is remembered,
//! the usual case, a caller pays for one load of an atomic.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::PoolError;
use crate::unit::Unit;

/// Fewest pages that are remembered before all are forgotten.
const REMEMBERED_MIN: usize = 256;

/// Frames of the pool for each page that is remembered: 16 KiB for about 128 bytes.
const FRAMES_PER_PAGE: usize = 4;

/// The time from a failed read until the page is read again, at least.
const REMEMBERED_FOR: Duration = Duration::from_secs(5);

struct DamagedPage {
    unit: Unit,
    error: PoolError,
    until: Instant,
}

/// The pages of one pool with recent read failures.
pub(crate) struct DamagedPages {
    /// By block: the last use of the block that could not be read.
    pages: Mutex<HashMap<u64, DamagedPage>>,
    /// The number of `pages`, to be read without the lock.
    count: AtomicUsize,
    max: usize,
    /// The device reported unreadable blocks, and has not been seen reading others since.
    is_device_in_doubt: AtomicBool,
}

impl DamagedPages {
    /// The state of a pool with this number of frames.
    pub(crate) fn new(frames: usize) -> Self {
        let max = (frames / FRAMES_PER_PAGE).max(REMEMBERED_MIN);
        let (pages, count, is_device_in_doubt) = Default::default();
        Self { pages, count, max, is_device_in_doubt }
    }

    pub(crate) fn find(&self, unit: &Unit, now: Instant) -> Option<PoolError> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let pages = self.pages.lock();
        let known = pages.get(&unit.id.block).filter(|known| known.unit == *unit)?;
        (now < known.until).then(|| known.error.clone())
    }

    /// Notes a read from `began` to `now` that failed.
    pub(crate) fn note(&self, unit: &Unit, error: &PoolError, began: Instant, now: Instant) {
        let until = now + now.saturating_duration_since(began).max(REMEMBERED_FOR);
        let mut pages = self.pages.lock();
        if pages.len() >= self.max && !pages.contains_key(&unit.id.block) {
            pages.clear();
        }
        pages.insert(unit.id.block, DamagedPage { unit: *unit, error: error.clone(), until });
        self.count.store(pages.len(), Ordering::Relaxed);
        drop(pages);
        if matches!(error, PoolError::Device(_)) {
            self.is_device_in_doubt.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets the pages of this block for which `is_gone` holds.
    fn forget(&self, block: u64, is_gone: impl Fn(&Unit) -> bool) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut pages = self.pages.lock();
        if pages.get(&block).is_some_and(|known| is_gone(&known.unit)) {
            pages.remove(&block);
        }
        self.count.store(pages.len(), Ordering::Relaxed);
    }

    /// Notes a good read of a page.
    pub(crate) fn was_read(&self, unit: &Unit) {
        self.forget(unit.id.block, |known| known == unit);
    }

    /// Notes that `block` is written.
    pub(crate) fn was_written(&self, block: u64) {
        self.forget(block, |_| true);
    }

    pub(crate) fn forget_all(&self) {
        let mut pages = self.pages.lock();
        pages.clear();
        self.count.store(0, Ordering::Relaxed);
    }

    pub(crate) fn is_device_in_doubt(&self) -> bool {
        self.is_device_in_doubt.load(Ordering::Relaxed)
    }

    pub(crate) fn doubt_device(&self, is_in_doubt: bool) {
        self.is_device_in_doubt.store(is_in_doubt, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use shoal_device::DeviceError;

    use super::*;
    use crate::latency::moment;

    const FRAMES: usize = 1 << 11;

    fn error(block: u64) -> PoolError {
        PoolError::Corrupt { block, expected: 1, found: 2 }
    }

    #[test]
    fn damaged_page_is_forgotten_after_time_read_or_write() {
        let (damaged, now) = (DamagedPages::new(FRAMES), moment());
        let unit = Unit::page(7, 1);
        assert!(damaged.find(&unit, now).is_none());
        damaged.note(&unit, &error(7), now, now);
        assert!(matches!(damaged.find(&unit, now), Some(PoolError::Corrupt { block: 7, .. })));
        assert!(damaged.find(&Unit::page(7, 2), now).is_none(), "another page of the block");
        assert!(damaged.find(&unit, now + REMEMBERED_FOR).is_none(), "it is read again in the end");
        damaged.was_written(8);
        assert!(damaged.find(&unit, now).is_some());
        damaged.was_written(7);
        assert!(damaged.find(&unit, now).is_none());
        damaged.note(&unit, &error(7), now, now);
        damaged.was_read(&Unit::page(7, 2));
        assert!(damaged.find(&unit, now).is_some());
        damaged.was_read(&unit);
        assert!(damaged.find(&unit, now).is_none());
        damaged.note(&unit, &error(7), now, now);
        damaged.forget_all();
        assert!(damaged.find(&unit, now).is_none());
    }

    /// A drive that retries a sector for half a minute: passes do not wait for it most of the time.
    #[test]
    fn slow_failed_read_is_retried_after_same_delay() {
        let (damaged, began) = (DamagedPages::new(FRAMES), moment());
        let (unit, took) = (Unit::page(7, 1), 6 * REMEMBERED_FOR);
        damaged.note(&unit, &error(7), began, began + took);
        assert!(damaged.find(&unit, began + 2 * took - Duration::from_millis(1)).is_some());
        assert!(damaged.find(&unit, began + 2 * took).is_none());
    }

    /// Damage in more pages than are remembered: the memory forgets, and serves the next pages as before.
    #[test]
    fn the_memory_is_bounded() {
        let (damaged, now) = (DamagedPages::new(FRAMES), moment());
        assert_eq!(damaged.max, 512);
        for block in 0..10_000 {
            damaged.note(&Unit::page(block, 1), &error(block), now, now);
            damaged.note(&Unit::page(block, 1), &error(block), now, now);
            assert!(damaged.find(&Unit::page(block, 1), now).is_some(), "a page is known while it is in use");
            assert!(damaged.pages.lock().len() <= damaged.max);
        }
        assert_eq!(DamagedPages::new(1).max, REMEMBERED_MIN);
    }

    #[test]
    fn device_is_doubtful_after_reported_errors_only() {
        let (damaged, now) = (DamagedPages::new(FRAMES), moment());
        damaged.note(&Unit::page(7, 1), &error(7), now, now);
        assert!(!damaged.is_device_in_doubt(), "it read");
        let abandoned = PoolError::Device(DeviceError::Abandoned { op: "read", block: 8 });
        damaged.note(&Unit::page(8, 1), &abandoned, now, now);
        assert!(damaged.is_device_in_doubt());
        damaged.doubt_device(false);
        assert!(damaged.find(&Unit::page(8, 1), now).is_some() && !damaged.is_device_in_doubt());
    }
}
