//! The pace of an apply that nothing waits for.
//!
//! At full speed, the reads and writes of an apply reach the device as one train of thousands of requests, and each commit meanwhile queues
//! after hundreds of them. On a device with a limit of requests a second the train takes the requests of the next tenths of a second, too. The
//! applier's thread has time, though: until the live memtables need the room of the frozen one. So it spreads its requests over a part of that
//! time: after each step it sleeps until the time that the step's share of the work has. A task that waits for the apply ends the sleep, and
//! the apply sleeps no more.

use std::time::Duration;

use crate::checkpoint::checkpointer::Checkpointer;

/// Steps of an apply, each followed by a sleep.
pub const STEPS: usize = 256;

/// The longest sleep of a step: memtables and log fill meanwhile.
const SLEEP_MAX_NS: u64 = 20_000_000;

/// A shorter sleep is left out: the next step makes up for it.
const SLEEP_MIN_NS: u64 = 100_000;

/// The pace of one apply.
pub struct Pace<'a> {
    checkpointer: &'a Checkpointer,
    began_ns: u64,
    length_ns: u64,
    /// The sleeps so far. A clock that stands still does not count them.
    pub slept_ns: u64,
    /// The next sleep is due at this part of the work.
    pub next: usize,
}

impl<'a> Pace<'a> {
    /// The pace of an apply that starts now and has `length_ns` nanoseconds.
    pub fn new(checkpointer: &'a Checkpointer, length_ns: u64) -> Self {
        Self { checkpointer, began_ns: checkpointer.now_ns(), length_ns, slept_ns: 0, next: 0 }
    }

    /// Sleeps on this thread if the apply is ahead of its pace: it has done `done` of `whole`.
    #[inline]
    pub fn keep(&mut self, done: usize, whole: usize) {
        if done >= self.next {
            self.step(done, whole);
        }
    }

    fn step(&mut self, done: usize, whole: usize) {
        self.next = done + (whole / STEPS).max(1);
        if self.checkpointer.is_apply_waited_for() {
            self.next = usize::MAX;
            return;
        }
        let elapsed_ns = self.checkpointer.now_ns().saturating_sub(self.began_ns).max(self.slept_ns);
        let sleep_ns = ahead_ns(self.length_ns, elapsed_ns, done, whole);
        if sleep_ns >= SLEEP_MIN_NS {
            let sleep_ns = sleep_ns.min(SLEEP_MAX_NS);
            self.checkpointer.applier.sleep(Duration::from_nanos(sleep_ns));
            self.slept_ns += sleep_ns;
        }
    }
}

/// The time by which work is ahead that has done `done` of `whole` in `elapsed_ns` of `length_ns`.
fn ahead_ns(length_ns: u64, elapsed_ns: u64, done: usize, whole: usize) -> u64 {
    let share = u128::from(length_ns) * done.min(whole) as u128 / whole.max(1) as u128;
    u64::try_from(share).unwrap_or(u64::MAX).saturating_sub(elapsed_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_ahead_by_the_time_of_its_share() {
        assert_eq!(ahead_ns(1_000, 0, 0, 10), 0);
        assert_eq!(ahead_ns(1_000, 100, 5, 10), 400);
        assert_eq!(ahead_ns(1_000, 600, 5, 10), 0);
        assert_eq!(ahead_ns(1_000, 0, 20, 10), 1_000);
        assert_eq!(ahead_ns(1_000, 0, 1, 0), 0, "there is no work");
    }
}
