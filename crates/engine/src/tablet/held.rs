//! The space that readers of long values hold, so that the space of a reader that is slow or forgotten comes free without it (R16).

use std::sync::{Arc, Weak};

use shoal_base::sync::Mutex;

/// Something that keeps the space of the version that a reader reads.
pub(crate) trait HoldsSpace: Send + Sync {
    /// Lets go of what was held until before `now_ns`. A read under way keeps it until the device answered.
    fn expire(&self, now_ns: u64);
}

/// The holdings of all readers of long values.
#[derive(Default)]
pub(crate) struct HeldStreams(Mutex<Vec<Weak<dyn HoldsSpace>>>);

impl HeldStreams {
    pub(crate) fn add<H: HoldsSpace + 'static>(&self, held: &Arc<H>) {
        let held: Weak<H> = Arc::downgrade(held);
        let mut all = self.0.lock();
        // As many dead ones as living are tolerated, so that adding one costs little on average.
        if all.len() == all.capacity() {
            all.retain(|held| held.strong_count() > 0);
        }
        all.push(held);
    }

    /// Lets go of what was held until before `now_ns`.
    pub(crate) fn expire(&self, now_ns: u64) {
        let all: Vec<Arc<dyn HoldsSpace>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|held| held.expire(now_ns));
    }
}
