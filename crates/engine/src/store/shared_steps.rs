//! Memory for the writes of long values that arrive in pieces: each stream has memory for two steps, and takes more of it while few do.

use shoal_base::sync::atomic::{AtomicUsize, Ordering};

use crate::store::Store;

/// Steps that all streams of a store may have in memory beyond two each: 8 MiB.
pub(crate) const SHARED_STEPS_MAX: usize = 32;

/// Most of them that one stream takes.
pub(crate) const SHARED_STEPS_OF_ONE_MAX: usize = 7;

/// The steps that streams have in memory beyond two each.
#[derive(Debug, Default)]
pub(crate) struct SharedSteps {
    taken: AtomicUsize,
}

/// One of them, until it is dropped.
pub(crate) struct SharedStep(Store);

impl SharedStep {
    /// Takes one; `None` if the streams have all.
    pub(crate) fn try_take(store: &Store) -> Option<Self> {
        let add = |taken| (taken < SHARED_STEPS_MAX).then_some(taken + 1);
        let taken = store.0.shared_steps.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        taken.ok().map(|_| Self(store.clone()))
    }
}

impl Drop for SharedStep {
    fn drop(&mut self) {
        let before = self.0.0.shared_steps.taken.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a shared step is given back once");
    }
}
