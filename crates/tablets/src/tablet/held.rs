//! The space held by readers of long values. The store takes it back after a time, even from a slow or forgotten reader (R16).

use std::sync::{Arc, Weak};

use shoal_base::sync::Mutex;

/// Holds the space of the version that a reader reads.
pub trait HoldsSpace: Send + Sync {
    /// Releases the space if it expired before `now_ns`. A read in progress holds it until the device has answered.
    fn expire(&self, now_ns: u64);
}

/// The holdings of all readers of long values.
#[derive(Default)]
pub struct HeldStreams(Mutex<Vec<Weak<dyn HoldsSpace>>>);

impl HeldStreams {
    /// Adds the holding of a reader.
    pub fn add<H: HoldsSpace + 'static>(&self, held: &Arc<H>) {
        let held: Weak<H> = Arc::downgrade(held);
        let mut all = self.0.lock();
        // The list grows only if most of its members are alive, so an insertion is cheap on average.
        if all.len() == all.capacity() {
            all.retain(|held| held.strong_count() > 0);
        }
        all.push(held);
    }

    /// Returns true if any reader holds space.
    pub fn is_any_held(&self) -> bool {
        self.0.lock().iter().any(|held| held.strong_count() > 0)
    }

    /// Releases the space of all holdings that expired before `now_ns`.
    pub fn expire(&self, now_ns: u64) {
        let all: Vec<Arc<dyn HoldsSpace>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|held| held.expire(now_ns));
    }
}
