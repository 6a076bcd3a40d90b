//! How far a backup or a restore is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shoal_transfer::text::counted;

use crate::arguments::size::Size;
use crate::output::progress::{self, Ticker};
use crate::output::warn;

/// The counts of a backup or a restore on its way.
#[derive(Default)]
pub(crate) struct Sofar {
    objects: AtomicU64,
    value_bytes: AtomicU64,
    bytes: AtomicU64,
    /// Approximate bytes of all values; 0: not known.
    all_bytes: AtomicU64,
    is_stopped: AtomicBool,
}

impl Sofar {
    /// Sets the counts: objects, bytes of their values, bytes of the backup.
    pub(crate) fn set(&self, (objects, value_bytes): (u64, u64), bytes: u64) {
        self.objects.store(objects, Ordering::Relaxed);
        self.value_bytes.store(value_bytes, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Sets the approximate bytes of all values.
    pub(crate) fn expect(&self, value_bytes: u64) {
        self.all_bytes.store(value_bytes, Ordering::Relaxed);
    }

    /// Asks the work to end.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// The work was asked to end.
    pub(crate) fn go_on(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.is_stopped.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    fn message(&self, elapsed: Duration) -> String {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (bytes, value_bytes, all) = (get(&self.bytes), get(&self.value_bytes), get(&self.all_bytes));
        let seconds = elapsed.as_secs_f64().max(1e-3);
        let mut text = format!(
            "{}, {}, {:.1} MB/s",
            counted(get(&self.objects), "object"),
            Size(bytes),
            bytes as f64 / seconds / 1e6
        );
        if value_bytes > 0 && all > value_bytes {
            let left = (all - value_bytes) as f64 / value_bytes as f64 * seconds;
            text.push_str(&format!(", about {left:.0} s left"));
        }
        text
    }
}

/// Shows `sofar` until it is dropped: in place on a terminal, else a line every few seconds. With `as_json` nothing.
pub(crate) fn start(verb: &'static str, sofar: &Arc<Sofar>, as_json: bool) -> Option<Shown> {
    if as_json {
        return None;
    }
    let (sofar, started) = (sofar.clone(), Instant::now());
    let bar = progress::drawn("{spinner} {wide_msg}");
    let shown = bar.clone();
    let ticker = Ticker::start(bar.is_some(), move || {
        let message = format!("{verb}: {}", sofar.message(started.elapsed()));
        match &bar {
            Some(bar) => {
                bar.set_message(message);
                bar.tick();
            }
            None => warn(&message),
        }
    });
    Some(Shown { ticker: Some(ticker), bar: shown })
}

/// The display of a progress, until it is dropped.
pub(crate) struct Shown {
    ticker: Option<Ticker>,
    bar: Option<indicatif::ProgressBar>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        drop(self.ticker.take());
        self.bar.iter().for_each(indicatif::ProgressBar::finish_and_clear);
    }
}
