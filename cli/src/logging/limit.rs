//! Limits the log lines of each cause: a peer makes the log grow by at most a line a second for each cause, and the log
//! reports the number of lines left out.
//!
//! A cause is a place in the source. The limit holds for errors, warnings and notes; debugging output is complete, and
//! bounded by the queue alone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines of a cause at once, after a time without any.
const BURST: u64 = 20;

/// In the long run one line of a cause in this many nanoseconds.
const PERIOD_NS: u64 = 1_000_000_000;

/// In this many nanoseconds at most one line reports the number of lines of a cause that were left out.
const REPORT_NS: u64 = 10_000_000_000;

/// Lines about the log itself, which are few.
const OWN_TARGET: &str = "shoal::logging";

/// The access log, which the operator asked for line by line; the queue bounds it.
const ACCESS_TARGET: &str = "shoal::access";

/// The rate of one cause. A line pushes `free_ns` on by a period; if it is a burst ahead of now, the line is left out.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    free_ns: u64,
    left_out: u64,
    /// When the first of them was left out.
    since_ns: u64,
}

impl Rate {
    fn admits(&mut self, now_ns: u64) -> bool {
        let free_ns = self.free_ns.max(now_ns) + PERIOD_NS;
        if free_ns > now_ns + BURST * PERIOD_NS {
            if self.left_out == 0 {
                self.since_ns = now_ns;
            }
            self.left_out += 1;
            return false;
        }
        self.free_ns = free_ns;
        true
    }

    /// The number of lines left out, if it is due for a report.
    fn take_left_out(&mut self, now_ns: u64) -> Option<u64> {
        let is_due = self.left_out > 0 && now_ns.saturating_sub(self.since_ns) >= REPORT_NS;
        is_due.then(|| std::mem::take(&mut self.left_out))
    }
}

/// The rate of every cause that there was.
pub(super) struct Limit {
    began: Instant,
    /// By place: at most one entry for each place in the source.
    causes: Mutex<HashMap<Identifier, (&'static Metadata<'static>, Rate)>>,
    /// True if lines were left out that the log does not report yet. Set after the count, under the lock; a thread
    /// that clears it counts afterwards.
    owes: AtomicBool,
    /// Wakes the thread that reports.
    reporter: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Default for Limit {
    fn default() -> Self {
        let (causes, reporter) = (Mutex::default(), OnceLock::new());
        Self { began: Instant::now(), causes, owes: AtomicBool::new(false), reporter }
    }
}

impl Limit {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn admits(&self, metadata: &'static Metadata<'static>) -> bool {
        let is_free = [OWN_TARGET, ACCESS_TARGET].contains(&metadata.target());
        if *metadata.level() > Level::INFO || is_free {
            return true;
        }
        let mut causes = self.causes.lock();
        let (_, rate) = causes.entry(metadata.callsite()).or_insert((metadata, Rate::default()));
        let admits = rate.admits(self.now_ns());
        let is_first = !admits && !self.owes.swap(true, Ordering::Relaxed);
        drop(causes);
        if is_first && let Some(wake) = self.reporter.get() {
            wake();
        }
        admits
    }

    /// Calls `wake` when there is something to report.
    pub(super) fn set_reporter(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.reporter.set(Box::new(wake));
    }

    /// Returns true if there is something to report now or later.
    pub(super) fn owes(&self) -> bool {
        self.owes.load(Ordering::Relaxed)
    }

    /// Logs the numbers of left out lines that are due.
    pub(super) fn report(&self) {
        self.report_at(self.now_ns());
    }

    /// Reports all lines left out.
    pub(super) fn report_all(&self) {
        self.report_at(u64::MAX);
    }

    fn report_at(&self, now_ns: u64) {
        let mut due = Vec::new();
        {
            let mut causes = self.causes.lock();
            for (metadata, rate) in causes.values_mut() {
                due.extend(rate.take_left_out(now_ns).map(|count| (*metadata, count)));
            }
            let owes = causes.values().any(|(_, rate)| rate.left_out > 0);
            self.owes.store(owes, Ordering::Relaxed);
        }
        for (metadata, count) in due {
            let (place, line) = (metadata.file().unwrap_or("?"), metadata.line().unwrap_or(0));
            let words = format!("{count} more lines as those of {place}:{line} were left out");
            match *metadata.level() {
                Level::ERROR => tracing::error!(target: OWN_TARGET, "{words}"),
                Level::WARN => tracing::warn!(target: OWN_TARGET, "{words}"),
                _ => tracing::info!(target: OWN_TARGET, "{words}"),
            }
        }
    }
}

/// Leaves out the lines above the limit.
pub(super) struct Limited(pub(super) Arc<Limit>);

impl<S: Subscriber> Layer<S> for Limited {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.0.admits(event.metadata())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_has_a_burst_and_then_a_line_a_period() {
        let mut rate = Rate::default();
        let admitted =
            |rate: &mut Rate, now_ns, count| (0..count).filter(|_| rate.admits(now_ns)).count() as u64;
        assert_eq!(admitted(&mut rate, 5, 1_000), BURST);
        assert_eq!(admitted(&mut rate, 5 + PERIOD_NS, 1_000), 1);
        assert_eq!(admitted(&mut rate, 5 + 3 * PERIOD_NS, 1_000), 2);
        assert_eq!(rate.take_left_out(5 + REPORT_NS - 1), None);
        assert_eq!(rate.take_left_out(5 + REPORT_NS), Some(3_000 - BURST - 3));
        assert_eq!(rate.take_left_out(5 + 2 * REPORT_NS), None);
        assert_eq!(admitted(&mut rate, 1_000 * PERIOD_NS, 1_000), BURST, "after a long pause");
    }

    /// A thousand lines of one cause: a burst comes through, and one line reports the number of the others.
    #[test]
    fn lines_left_out_are_counted_by_their_cause() {
        use tracing_subscriber::fmt::MakeWriter;
        use tracing_subscriber::layer::SubscriberExt;

        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        impl MakeWriter<'_> for Lines {
            type Writer = Self;
            fn make_writer(&self) -> Self {
                self.clone()
            }
        }

        let (limit, lines) = (Arc::<Limit>::default(), Lines::default());
        let subscriber = tracing_subscriber::registry()
            .with(Limited(limit.clone()))
            .with(tracing_subscriber::fmt::layer().with_writer(lines.clone()));
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..100_000 {
                tracing::warn!("flood {number}");
                if number % 10_000 == 0 {
                    tracing::warn!("another cause");
                }
            }
            assert!(limit.owes());
            limit.report_all();
            assert!(!limit.owes());
        });
        let text = String::from_utf8(lines.0.lock().clone()).unwrap();
        let flood = text.lines().filter(|line| line.contains("flood")).count() as u64;
        assert!(flood >= BURST, "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("another cause")).count(), 10);
        let told = format!("{} more lines as those of cli/src/logging/limit.rs", 100_000 - flood);
        assert!(text.contains(&told), "{told}: {text}");
    }
}
