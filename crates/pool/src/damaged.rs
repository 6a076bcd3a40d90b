//! Units that had wrong bytes lately, so that a pass over many keys behind one of them does not read it for each key.
//!
//! Only callers that ask for it get an answer from here ([`Pool::remembered_damage`](crate::Pool::remembered_damage)); [`Pool::fetch`](crate::Pool::fetch) always asks the
//! device. A unit is forgotten after [`REMEMBERED_FOR`], when it is read well, and when its block is written. So a block that
//! becomes readable again is found out, and the memory is bounded. While nothing is remembered, which is the rule, a
//! caller pays for one load of an atomic.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicUsize, Ordering};

use crate::PoolError;
use crate::unit::Unit;

/// Units that are remembered at most; the oldest is forgotten first.
const REMEMBERED_MAX: usize = 256;

/// The time from a failed read until the unit is read again.
const REMEMBERED_FOR: Duration = Duration::from_secs(5);

struct DamagedUnit {
    unit: Unit,
    error: PoolError,
    since: Instant,
}

/// The units of one pool that could not be read lately.
#[derive(Default)]
pub(crate) struct DamagedUnits {
    units: Mutex<VecDeque<DamagedUnit>>,
    /// The number of `units`, to be read without the lock.
    count: AtomicUsize,
}

impl DamagedUnits {
    pub(crate) fn find(&self, unit: &Unit, now: Instant) -> Option<PoolError> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let units = self.units.lock();
        let known = units.iter().find(|known| known.unit == *unit)?;
        (now.saturating_duration_since(known.since) < REMEMBERED_FOR).then(|| known.error.clone())
    }

    pub(crate) fn note(&self, unit: &Unit, error: &PoolError, since: Instant) {
        let mut units = self.units.lock();
        units.retain(|known| known.unit != *unit);
        if units.len() >= REMEMBERED_MAX {
            units.pop_front();
        }
        units.push_back(DamagedUnit { unit: *unit, error: error.clone(), since });
        self.count.store(units.len(), Ordering::Relaxed);
    }

    pub(crate) fn forget(&self, is_gone: impl Fn(&Unit) -> bool) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut units = self.units.lock();
        units.retain(|known| !is_gone(&known.unit));
        self.count.store(units.len(), Ordering::Relaxed);
    }

    /// Notes that `block` is written.
    pub(crate) fn was_written(&self, block: u64) {
        self.forget(|unit| unit.run().overlaps(shoal_base::Run::new(block, 1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::moment;

    fn error(block: u64) -> PoolError {
        PoolError::Corrupt { block, expected: 1, found: 2 }
    }

    #[test]
    fn a_unit_is_forgotten_in_time_when_it_is_read_and_when_its_block_is_written() {
        let (damaged, now) = (DamagedUnits::default(), moment());
        let unit = Unit::page(7, 1);
        assert!(damaged.find(&unit, now).is_none());
        damaged.note(&unit, &error(7), now);
        assert!(matches!(damaged.find(&unit, now), Some(PoolError::Corrupt { block: 7, .. })));
        assert!(damaged.find(&Unit::page(7, 2), now).is_none(), "another page of the block");
        assert!(damaged.find(&unit, now + REMEMBERED_FOR).is_none(), "it is read again in the end");
        damaged.was_written(8);
        assert!(damaged.find(&unit, now).is_some());
        damaged.was_written(7);
        assert!(damaged.find(&unit, now).is_none());
        damaged.note(&unit, &error(7), now);
        damaged.forget(|known| *known == unit);
        assert!(damaged.find(&unit, now).is_none());
    }

    #[test]
    fn the_memory_is_bounded() {
        let (damaged, now) = (DamagedUnits::default(), moment());
        for block in 0..REMEMBERED_MAX as u64 + 10 {
            damaged.note(&Unit::page(block, 1), &error(block), now);
            damaged.note(&Unit::page(block, 1), &error(block), now);
        }
        assert_eq!(damaged.units.lock().len(), REMEMBERED_MAX);
        assert!(damaged.find(&Unit::page(9, 1), now).is_none(), "the oldest went first");
        assert!(damaged.find(&Unit::page(10, 1), now).is_some());
    }
}
