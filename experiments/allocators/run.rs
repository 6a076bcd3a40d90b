//! One case with one allocator: its time limit, the size of its device, and its progress lines.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::allocator::Allocator;

/// Blocks of a GiB and of a TiB.
pub(crate) const GIB: u64 = 1 << 18;
pub(crate) const TIB: u64 = 1 << 28;

/// The seed of all loads.
pub(crate) const SEED: u64 = 20_261_121;

/// Time between two lines of progress.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// The rules of a run.
pub(crate) struct Run {
    name: String,
    made: Instant,
    began: Instant,
    /// The limit of the preparation, and then of the measured part.
    limit: Duration,
    /// The number of checks for the end that both may make; none: no limit.
    looks_max: Option<u64>,
    looks: AtomicU64,
    /// Devices are smaller by this factor in a quick run.
    scale: u64,
    shown: Instant,
    has_shown: bool,
}

impl Run {
    pub(crate) fn new(name: String, limit: Duration, looks_max: Option<u64>, scale: u64) -> Self {
        let now = Instant::now();
        let looks = AtomicU64::new(0);
        Self { name, made: now, began: now, limit, looks_max, looks, scale, shown: now, has_shown: false }
    }

    /// The preparation is over: the measurement starts.
    pub(crate) fn begin(&mut self) {
        self.began = Instant::now();
        *self.looks.get_mut() = 0;
    }

    /// Seconds from the beginning, the preparation included.
    pub(crate) fn seconds(&self) -> f64 {
        self.made.elapsed().as_secs_f64()
    }

    /// The size of the device that represents one of `blocks` blocks.
    pub(crate) fn blocks(&self, blocks: u64) -> u64 {
        blocks / self.scale
    }

    /// Operations that represent `count`.
    pub(crate) fn count(&self, count: usize) -> usize {
        (count / self.scale as usize).max(1000)
    }

    /// Returns true if there is no time left, or the number of checks is used up.
    pub(crate) fn is_over(&self) -> bool {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        self.looks_max.is_some_and(|most| looks >= most) || self.began.elapsed() > self.limit
    }

    /// Shows how far it is, as the seed's log does: at most once a second, to a terminal only.
    pub(crate) fn show(&mut self, round: u64, allocator: &dyn Allocator) {
        let free = || {
            let status = allocator.status();
            format!(", disk space: {:.3}", status.free_blocks as f64 / status.blocks as f64)
        };
        self.tell_with(round, free);
    }

    /// As [`Self::show`], if a query of the fill would be a call.
    pub(crate) fn tell(&mut self, round: u64) {
        self.tell_with(round, String::new);
    }

    fn tell_with(&mut self, round: u64, free: impl FnOnce() -> String) {
        if self.shown.elapsed() < SHOWN_EVERY || !std::io::stderr().is_terminal() {
            return;
        }
        self.shown = Instant::now();
        self.has_shown = true;
        let free = free();
        let seconds = self.began.elapsed().as_secs_f64();
        // Progress that cannot be shown is no reason to stop.
        drop(write!(
            std::io::stderr(),
            "\r\x1b[K{}: {round} rounds in {seconds:.1} seconds{free}",
            self.name
        ));
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.has_shown {
            drop(write!(std::io::stderr(), "\r\x1b[K"));
        }
    }
}
