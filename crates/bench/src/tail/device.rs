//! The device's own latency at the rate of a run, beside which the store's is printed: an open loop of durable writes and one
//! of reads, each by one thread with plain system calls and direct I/O.
//!
//! The writes that are due together are one write with one flush, as a log commits them. Latencies count from the intended
//! times. The reads are one at a time: a device that serves several at once could do better if they queue up.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::schedule::Schedule;
use crate::histogram::Histogram;
use crate::probe::{ReadProbe, WriteProbe};

/// Longest write of a group, in bytes.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// Time after the end of a schedule; a device that is later gets no further operations.
const LATE_MAX: Duration = Duration::from_secs(30);

/// The figures of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceFigures {
    pub(super) latencies: Histogram,
    /// Writes with a flush, or reads.
    pub(super) calls: u64,
    pub(super) took: Duration,
}

/// Writes `bytes` bytes at each time of `schedule` into the new file at `path`, whose name is removed at once.
///
/// # Errors
/// The file exists, or the device failed.
pub(super) fn writes(path: &Path, bytes: usize, schedule: Schedule) -> Result<DeviceFigures> {
    let group = (GROUP_BYTES_MAX / bytes).max(1);
    let mut probe = WriteProbe::for_groups(path, bytes, group * bytes)?;
    open_loop(schedule, group, |count| probe.write(count * bytes))
}

/// Reads `bytes` bytes at each time of `schedule` from random blocks among the first `blocks` of the file at `path`.
///
/// # Errors
/// The file is too short, or the device failed.
pub(super) fn reads(path: &Path, bytes: usize, blocks: u64, schedule: Schedule) -> Result<DeviceFigures> {
    let mut probe = ReadProbe::new(path, bytes, blocks)?;
    open_loop(schedule, 1, |_| probe.run(1, 0.0))
}

/// Calls `act` for all operations that are due, at most `group` at a time.
fn open_loop(
    mut schedule: Schedule,
    group: usize,
    mut act: impl FnMut(usize) -> Result<()>,
) -> Result<DeviceFigures> {
    let (mut figures, mut due, start) = (DeviceFigures::default(), Vec::new(), Instant::now());
    while let Some(next) = schedule.next() {
        let now = start.elapsed();
        if now > schedule.end() + LATE_MAX {
            break;
        }
        if next > now {
            thread::sleep(next - now);
            continue;
        }
        due.clear();
        while let Some(intended) = schedule.next().filter(|&intended| intended <= now && due.len() < group) {
            due.push(intended);
            schedule.advance();
        }
        act(due.len())?;
        figures.took = start.elapsed();
        figures.calls += 1;
        due.iter().for_each(|&intended| figures.latencies.record(figures.took - intended));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tail::Arrivals;

    fn schedule() -> Schedule {
        Schedule::new(1000.0, Duration::from_millis(100), Arrivals::Constant, 1)
    }

    #[test]
    fn operations_that_are_due_together_are_one_call_and_count_from_their_times() {
        let mut calls = Vec::new();
        let figures = open_loop(schedule(), 1000, |count| {
            if calls.is_empty() {
                thread::sleep(Duration::from_millis(50));
            }
            calls.push(count);
            Ok(())
        })
        .unwrap();
        assert_eq!((calls.iter().sum::<usize>(), figures.calls), (100, calls.len() as u64));
        // Everything due in the first 50 ms is the second call at the latest.
        assert!(calls[0] + calls[1] >= 50, "{calls:?}");
        // Half of these waited at least 25 ms.
        assert!(figures.latencies.quantile_us(800) >= 24_000.0);
        assert_eq!(figures.latencies.count(), 100);
    }

    #[test]
    fn a_group_has_a_limit() {
        let figures = open_loop(schedule(), 3, |count| {
            assert!(count <= 3);
            Ok(())
        });
        assert!(figures.unwrap().calls >= 34);
    }
}
