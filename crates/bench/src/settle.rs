//! Waiting until a store's trees hold everything, so that every measurement starts in the same state.

use std::thread;
use std::time::{Duration, Instant};

use shoal_engine::Store;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Longest wait.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// Waits until nothing is in memtables any more.
pub fn settle(store: &Store) {
    let began = Instant::now();
    while store.stat().memtable_records > 0 && began.elapsed() < SETTLE_MAX {
        thread::sleep(LOOK_EVERY);
    }
}
