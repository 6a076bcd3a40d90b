//! Whether little is written at present. Background work that only returns space waits for such a time.

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, Ordering};

/// The time of one measurement.
const PERIOD_NS: u64 = 2_000_000_000;
/// A store is quiet if it writes fewer blocks per second for its clients: 1 MiB.
const QUIET_BLOCKS_PER_S: u64 = 256;

/// See the top of the file.
#[derive(Default)]
pub struct Quiet {
    /// The start of the measurement: its time and the blocks written by then.
    since: Mutex<Option<(u64, u64)>>,
    is_quiet: AtomicBool,
}

impl Quiet {
    /// Notes that `blocks` blocks were written for clients until now.
    pub(crate) fn note(&self, now_ns: u64, blocks: u64) {
        let mut since = self.since.lock();
        let (then_ns, before) = *since.get_or_insert((now_ns, blocks));
        let took_ns = now_ns.saturating_sub(then_ns);
        if took_ns < PERIOD_NS {
            // Already more than a quiet period may write: do not wait for its end.
            if blocks.saturating_sub(before) >= QUIET_BLOCKS_PER_S * PERIOD_NS / 1_000_000_000 {
                self.is_quiet.store(false, Ordering::Relaxed);
            }
            return;
        }
        *since = Some((now_ns, blocks));
        let written = u128::from(blocks.saturating_sub(before)) * 1_000_000_000;
        self.is_quiet
            .store(written < u128::from(QUIET_BLOCKS_PER_S) * u128::from(took_ns), Ordering::Relaxed);
    }

    /// Returns true if the last complete measurement found few writes. False before the first one.
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_period_with_few_writes_is_quiet() {
        let (quiet, mut now_ns) = (Quiet::default(), 5);
        let mut after = |took_ns: u64, blocks: u64| {
            now_ns += took_ns;
            quiet.note(now_ns, blocks);
            quiet.is_quiet()
        };
        assert!(!after(0, 1_000) && !after(PERIOD_NS - 1, 1_000), "nothing is known yet");
        assert!(after(1, 1_000));
        assert!(after(PERIOD_NS, 1_000 + 2 * QUIET_BLOCKS_PER_S - 1));
        assert!(!after(PERIOD_NS, 1_000 + 4 * QUIET_BLOCKS_PER_S), "a rate, not a sum");
        assert!(!after(PERIOD_NS / 2, 1_000 + 4 * QUIET_BLOCKS_PER_S), "the period is not over");
        assert!(after(PERIOD_NS / 2, 1_000 + 5 * QUIET_BLOCKS_PER_S));
        assert!(!after(PERIOD_NS / 8, 1_000 + 7 * QUIET_BLOCKS_PER_S), "a burst ends it at once");
        assert!(after(5 * PERIOD_NS, 1_000 + 9 * QUIET_BLOCKS_PER_S), "a thread that slept looks late");
    }
}
