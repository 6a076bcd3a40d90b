//! The jobs of one thread: which is next, and how long the thread sleeps.
//!
//! A job is called in steps, and each step returns the time of the next one. Of the due jobs, the one whose patience ends first is next: an
//! urgent job overtakes the others, and none waits for ever. A step runs to its end, so jobs share a thread only if the steps of each are
//! short enough for the most urgent of them (`docs/adr/2026-11-29-idle-threads.md`).
//!
//! A job without work looks for it at a short interval while something happens, because most changes of the state that it looks at ring no
//! bell. Once nothing has happened for [`QUIET_NS`], the thread announces its sleep ([`shoal_common::event::Sleepers`]), all jobs look once
//! more, and then the thread sleeps until something happens or a job has a deadline.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use shoal_common::event::Bell;

use crate::store::Inner;
use crate::store::threads::{Duty, Worker};

/// A thread stops looking for work at short intervals after this time in which nothing happened: the time after which memtables are
/// applied even if they are small.
const QUIET_NS: u64 = 3_000_000_000;
/// The longest sleep: a job looks this often even if nothing happens.
pub(crate) const SLEEP_MAX: Duration = Duration::from_secs(10);

/// When a job is due again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// After this time. Zero: there is more to do.
    After(Duration),
    /// There is nothing to do. Look again after `look` while something happens, and after `latest` if nothing does.
    Idle { look: Duration, latest: Duration },
    /// Never.
    Ended,
}

impl Next {
    /// Nothing to do until something happens; `look` is the interval meanwhile.
    pub(crate) const fn idle(look: Duration) -> Self {
        Self::Idle { look, latest: SLEEP_MAX }
    }
}

/// A step of a job.
type Step = Box<dyn FnMut(&Arc<Inner>, &Worker) -> Next + Send>;

/// A job of a thread.
pub(crate) struct Job {
    duty: Duty,
    /// A job that has been due for this time is as urgent as one without patience that is due now.
    patience: Duration,
    times: Times,
    step: Step,
}

/// When a job is due.
#[derive(Clone, Copy)]
struct Times {
    /// While something happens.
    next: Instant,
    /// While the thread sleeps.
    asleep: Instant,
}

impl Times {
    fn at(time: Instant) -> Self {
        Self { next: time, asleep: time }
    }

    /// The times of a job whose last step ended at `now`; `None` if it has ended.
    fn after(next: Next, now: Instant) -> Option<Self> {
        match next {
            Next::After(wait) => Some(Self::at(now + wait)),
            Next::Idle { look, latest } => Some(Self { next: now + look.min(latest), asleep: now + latest }),
            Next::Ended => None,
        }
    }

    fn due(self, is_asleep: bool) -> Instant {
        if is_asleep { self.asleep } else { self.next }
    }

    /// The thread falls asleep: a job without work looks for it at once.
    fn look_once_more(&mut self, now: Instant) {
        if self.asleep > self.next {
            self.asleep = now;
        }
    }
}

impl Job {
    pub(crate) fn new(
        duty: Duty,
        patience: Duration,
        step: impl FnMut(&Arc<Inner>, &Worker) -> Next + Send + 'static,
    ) -> Self {
        Self { duty, patience, times: Times::at(Instant::now()), step: Box::new(step) }
    }

    pub(crate) fn duty(&self) -> Duty {
        self.duty
    }
}

/// The sleep of a thread.
struct Rest {
    /// The number of changes that the thread saw, and the time of the last one, on the store's clock.
    events: u64,
    since_ns: u64,
    is_asleep: bool,
}

/// The action after a look at the clock.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// Something happened, or nothing did for a short time only.
    Awake,
    /// The thread falls asleep: it announces that, and all jobs look once more.
    FallsAsleep,
    Asleep,
}

impl Rest {
    /// Notes the number of changes. `has_rung` is true if a job was called.
    fn turn(&mut self, events: u64, has_rung: bool, now_ns: u64) -> Turn {
        if has_rung || events != self.events {
            *self = Self { events, since_ns: now_ns, is_asleep: false };
        }
        match self.is_asleep {
            true => Turn::Asleep,
            false if now_ns.saturating_sub(self.since_ns) >= QUIET_NS => {
                self.is_asleep = true;
                Turn::FallsAsleep
            }
            false => Turn::Awake,
        }
    }
}

/// Does the jobs until the threads are stopped, the store is gone, or all jobs have ended. A store that became read-only needs scrubs only.
pub(crate) fn run(mut jobs: Vec<Job>, store: &Weak<Inner>, worker: &Worker) {
    // The first turn starts the time without changes.
    let mut rest = Rest { events: u64::MAX, since_ns: 0, is_asleep: false };
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        if inner.log.poison.reason().is_some() {
            jobs.retain(|job| job.duty == Duty::Scrub);
        }
        let Some(first) = jobs.first() else { return };
        let (bell, now) = (worker.bell(first.duty), Instant::now());
        let mut has_rung = false;
        for job in &mut jobs {
            if worker.bell(job.duty).take_ring() {
                (has_rung, job.times) = (true, Times::at(now));
            }
        }
        let sleepers = &inner.log.committer.sleepers;
        if rest.turn(sleepers.events(), has_rung, inner.now_ns()) == Turn::FallsAsleep {
            sleepers.announce(bell);
            // Only now: a change before the announcement rang nobody.
            jobs.iter_mut().for_each(|job| job.times.look_once_more(now));
        }
        let dues = jobs.iter().map(|job| (job.times.due(rest.is_asleep), job.patience));
        match next_of(dues, now) {
            Ok(index) => {
                let Some(job) = jobs.get_mut(index) else { unreachable!("it is one of the jobs") };
                match Times::after((job.step)(&inner, worker), Instant::now()) {
                    Some(times) => job.times = times,
                    None => drop(jobs.remove(index)),
                }
            }
            Err(wait) => {
                drop(inner);
                Bell::wait_for_any(jobs.iter().map(|job| &**worker.bell(job.duty)), wait);
            }
        }
    }
}

/// The job to do now, of jobs with these times at which they are due and these patiences; or the time until one is due.
fn next_of(jobs: impl Iterator<Item = (Instant, Duration)>, now: Instant) -> Result<usize, Duration> {
    let mut first = None;
    let mut wait = SLEEP_MAX;
    for (index, (due, patience)) in jobs.enumerate() {
        let late = due + patience;
        if due > now {
            wait = wait.min(due - now);
        } else if first.is_none_or(|(_, latest)| late < latest) {
            first = Some((index, late));
        }
    }
    first.map_or(Err(wait), |(index, _)| Ok(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_urgent_job_overtakes_and_a_patient_one_is_not_starved() {
        let start = Instant::now();
        let at = |ms: u32| start + MS * ms;
        assert_eq!(next_of([].into_iter(), start), Err(SLEEP_MAX));
        assert_eq!(next_of([(at(7), MS), (at(5), SECOND)].into_iter(), start), Err(MS * 5));
        // Both are due; the second one is late, and more patient.
        let jobs = |urgent| [(at(urgent), Duration::ZERO), (at(0), MS * 100)].into_iter();
        assert_eq!(next_of(jobs(50), at(60)), Ok(0));
        // The urgent one always has more to do: its next step is due when the one before ends.
        assert_eq!(next_of(jobs(101), at(101)), Ok(1));
        assert_eq!(next_of(jobs(102), at(101)), Ok(1));
    }

    #[test]
    fn a_job_without_work_looks_often_only_while_something_happens() {
        let start = Instant::now();
        let idle = Times::after(Next::idle(MS * 100), start).unwrap();
        assert_eq!((idle.due(false), idle.due(true)), (start + MS * 100, start + SLEEP_MAX));
        let deadline = Times::after(Next::Idle { look: MS * 100, latest: MS * 20 }, start).unwrap();
        assert_eq!((deadline.due(false), deadline.due(true)), (start + MS * 20, start + MS * 20));
        let mut at_work = Times::after(Next::After(SECOND), start).unwrap();
        assert_eq!((at_work.due(false), at_work.due(true)), (start + SECOND, start + SECOND));
        assert!(Times::after(Next::Ended, start).is_none());
        // The last look before the sleep is that of jobs without work.
        let (mut idle, later) = (idle, start + SECOND / 2);
        idle.look_once_more(later);
        at_work.look_once_more(later);
        assert_eq!((idle.due(true), at_work.due(true)), (later, start + SECOND));
    }

    #[test]
    fn a_thread_sleeps_when_nothing_happened_for_a_while() {
        let mut rest = Rest { events: u64::MAX, since_ns: 0, is_asleep: false };
        let start = 1_000 * QUIET_NS;
        assert_eq!(rest.turn(1, false, start), Turn::Awake);
        assert_eq!(rest.turn(1, false, start + QUIET_NS - 1), Turn::Awake);
        assert_eq!(rest.turn(2, false, start + QUIET_NS), Turn::Awake, "a change");
        assert_eq!(rest.turn(2, true, start + 2 * QUIET_NS), Turn::Awake, "a bell");
        assert_eq!(rest.turn(2, false, start + 3 * QUIET_NS), Turn::FallsAsleep);
        assert_eq!(rest.turn(2, false, start + 9 * QUIET_NS), Turn::Asleep);
        assert_eq!(rest.turn(3, false, start + 9 * QUIET_NS), Turn::Awake);
    }
}
