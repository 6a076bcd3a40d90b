//! Memory for the writes of long values that arrive in pieces: each stream has memory for two steps, and takes more of it while few do.

use shoal_base::sync::atomic::{AtomicUsize, Ordering};

use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_pool::Pool;

use crate::store::Store;

/// Bytes of a step: four units.
pub(crate) const STEP_BYTES: usize = 4 * VALUE_UNIT_BYTES;

/// Steps that all streams of a store may have in memory beyond two each: 8 MiB. A store with less than 256 MiB of cache has a 32nd of it for
/// them.
pub(crate) const SHARED_STEPS_MAX: usize = 32;

/// Most of them that one stream takes.
pub(crate) const SHARED_STEPS_OF_ONE_MAX: usize = 7;

/// The steps that streams have in memory beyond two each.
#[derive(Debug)]
pub(crate) struct SharedSteps {
    most: usize,
    taken: AtomicUsize,
}

impl SharedSteps {
    /// Those of a store with this pool.
    pub(crate) fn new(pool: &Pool) -> Self {
        // The pool lets a value displace a 64th of the cache.
        let share = 2 * pool.pass_through_bytes() as usize / STEP_BYTES;
        Self { most: share.min(SHARED_STEPS_MAX), taken: AtomicUsize::new(0) }
    }
}

/// One of them, until it is dropped.
pub(crate) struct SharedStep(Store);

impl SharedStep {
    /// Takes one; `None` if the streams have all.
    pub(crate) fn try_take(store: &Store) -> Option<Self> {
        let shared = &store.0.shared_steps;
        let add = |taken| (taken < shared.most).then_some(taken + 1);
        let taken = shared.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        taken.ok().map(|_| Self(store.clone()))
    }
}

impl Drop for SharedStep {
    fn drop(&mut self) {
        let before = self.0.0.shared_steps.taken.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a shared step is given back once");
    }
}
