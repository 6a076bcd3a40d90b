//! The time by which things come to their end.
//!
//! A wall clock that jumps forward would end everything at once: a wrong date of a machine, or of the server of its time. So a moment has
//! passed only once the wall clock has shown it, or a later one, in each reading of at least an hour of monotonic time. A jump is logged
//! when it is read: an operator has an hour to set the clock, or to disable the rules.

use std::time::Duration;

/// Monotonic time for which the wall clock must have shown a moment.
pub(super) const SETTLES_AFTER: Duration = Duration::from_secs(3_600);

/// A difference between both clocks since the reading before that is logged.
const JUMP: Duration = Duration::from_secs(300);

/// A wall clock that lags by one to two hours, and follows no jump before it has lasted for an hour.
#[derive(Debug, Default)]
pub(super) struct SettledClock {
    /// The reading before: wall clock and monotonic time, in nanoseconds.
    last: Option<(u64, u64)>,
    /// The least wall time since monotonic time `since_ns`.
    least_ns: u64,
    since_ns: u64,
    settled_ns: u64,
}

impl SettledClock {
    /// Reads both clocks; returns the settled wall time in nanoseconds since the Unix epoch. It is 0 in the first hour.
    pub(super) fn read(&mut self, wall_ns: u64, monotonic_ns: u64) -> u64 {
        match self.last.replace((wall_ns, monotonic_ns)) {
            None => (self.least_ns, self.since_ns) = (wall_ns, monotonic_ns),
            Some((wall_before_ns, before_ns)) => {
                let expected_ns = wall_before_ns.saturating_add(monotonic_ns.saturating_sub(before_ns));
                report_jump(wall_ns, expected_ns);
            }
        }
        self.least_ns = self.least_ns.min(wall_ns);
        self.settled_ns = self.settled_ns.min(wall_ns);
        if u128::from(monotonic_ns.saturating_sub(self.since_ns)) >= SETTLES_AFTER.as_nanos() {
            self.settled_ns = self.least_ns;
            (self.least_ns, self.since_ns) = (wall_ns, monotonic_ns);
        }
        self.settled_ns
    }
}

fn report_jump(wall_ns: u64, expected_ns: u64) {
    let jump = Duration::from_nanos(wall_ns.abs_diff(expected_ns));
    if jump >= JUMP && wall_ns > expected_ns {
        tracing::warn!(
            "the wall clock has jumped {} s forward: in {} s lifecycle rules and the life of uploads follow it. If its date is wrong, set it \
             right before, or disable the rules",
            jump.as_secs(),
            SETTLES_AFTER.as_secs()
        );
    } else if jump >= JUMP {
        tracing::warn!("the wall clock has jumped {} s back: objects expire by it", jump.as_secs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_NS: u64 = 60 * 1_000_000_000;
    const HOUR_NS: u64 = 60 * MINUTE_NS;
    const DAY_NS: u64 = 24 * HOUR_NS;

    /// Readings each minute for `minutes` minutes, from monotonic time `from_ns` on, with the wall clock `ahead_ns` ahead.
    fn run(clock: &mut SettledClock, from_ns: u64, minutes: u64, ahead_ns: u64) -> u64 {
        let at = |minute| from_ns + minute * MINUTE_NS;
        (0..=minutes).map(|minute| clock.read(at(minute) + ahead_ns, at(minute))).max().unwrap()
    }

    #[test]
    fn it_lags_by_one_to_two_hours() {
        let mut clock = SettledClock::default();
        assert_eq!(run(&mut clock, 0, 59, DAY_NS), 0, "no reading is an hour old");
        for minute in 60..600 {
            let (now_ns, wall_ns) = (minute * MINUTE_NS, minute * MINUTE_NS + DAY_NS);
            let lag_ns = wall_ns - clock.read(wall_ns, now_ns);
            assert!((HOUR_NS..2 * HOUR_NS).contains(&lag_ns), "{minute}: {lag_ns}");
        }
    }

    #[test]
    fn a_jump_counts_after_an_hour() {
        let mut clock = SettledClock::default();
        run(&mut clock, 0, 150, DAY_NS);
        let jumped = run(&mut clock, 151 * MINUTE_NS, 59, 100 * DAY_NS);
        assert!(jumped < DAY_NS + 151 * MINUTE_NS, "{jumped}");
        assert!(run(&mut clock, 211 * MINUTE_NS, 60, 100 * DAY_NS) > 100 * DAY_NS);
        // Back again: it follows at once.
        assert!(run(&mut clock, 272 * MINUTE_NS, 0, DAY_NS) <= DAY_NS + 272 * MINUTE_NS);
    }

    #[test]
    fn a_jump_that_is_taken_back_never_counts() {
        let mut clock = SettledClock::default();
        run(&mut clock, 0, 150, DAY_NS);
        let mut highest = 0;
        for round in 0..20 {
            let from_ns = (151 + round * 60) * MINUTE_NS;
            highest = highest.max(run(&mut clock, from_ns, 57, 100 * DAY_NS));
            highest = highest.max(run(&mut clock, from_ns + 58 * MINUTE_NS, 1, DAY_NS));
        }
        assert!(highest < 3 * DAY_NS, "{highest}");
    }

    /// Two readings may be far apart: the machine was busy, or slept.
    #[test]
    fn a_jump_between_two_late_readings_does_not_count() {
        let mut clock = SettledClock::default();
        clock.read(DAY_NS, 0);
        assert_eq!(clock.read(100 * DAY_NS, 5 * HOUR_NS), DAY_NS);
        assert_eq!(clock.read(100 * DAY_NS + HOUR_NS, 6 * HOUR_NS), 100 * DAY_NS);
    }
}
