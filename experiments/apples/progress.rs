//! A line about the progress of a long computation every few seconds, on standard error.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Between two lines.
const INTERVAL: Duration = Duration::from_secs(5);

/// Prints the lines.
pub(super) struct Lines(Mutex<Instant>);

impl Lines {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// May be called by several threads, often.
    pub(super) fn show(&self, what: &str, done: u64, count: u64) {
        // A thread that finds another one here has nothing to add.
        let Some(mut last) = self.0.try_lock() else { return };
        if last.elapsed() >= INTERVAL {
            *last = Instant::now();
            eprintln!("{what}: {done} of {count} rounds");
        }
    }
}
