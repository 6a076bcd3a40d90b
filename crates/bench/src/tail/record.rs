//! The record of a run: latencies from the intended times, second by second and overall, and the generator's own lateness.
//!
//! The correction of coordinated omission is here: [`Recorder::answered`] takes the intended time, and the time at which the
//! command was sent does not enter a latency. An operation that was due while the server stalled is so counted with its whole
//! wait. Sending late is recorded apart ([`Recorder::sent`]), to tell a slow generator from a slow server.
//!
//! A second is complete when everything due in it was answered. Only incomplete seconds have a histogram.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::histogram::Histogram;

/// The kinds of operations.
pub(super) const KINDS: usize = 2;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Set,
    Get,
}

/// The operations that were due in one second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Second {
    /// Its number, 0 for the first one after the warm-up.
    pub(super) number: u64,
    pub(super) count: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) max: Duration,
    /// Time in which the generator was ready to run and had no core, until the second was complete.
    pub(super) core_wait: Duration,
}

/// The figures of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// Latencies by [`Kind`].
    pub(super) latencies: [Histogram; KINDS],
    /// Times from the intended time to the sending, of operations for which a connection was free at the intended time.
    pub(super) late: Histogram,
    /// Operations that had to wait for a free connection: the server answered too slowly for them.
    pub(super) queued: u64,
    /// Operations without an answer; each is in `latencies` with the time until the run was abandoned.
    pub(super) unanswered: u64,
    /// The longest time without any answer while operations were due.
    pub(super) stall: Duration,
    /// Time from the end of the warm-up to the last answer.
    pub(super) took: Duration,
    /// Processor time of the generator's thread, as a share of one core.
    pub(super) core_share: f64,
    /// Time in which the generator's thread was ready to run and had no core.
    pub(super) core_wait: Duration,
}

impl Figures {
    /// The latencies of all kinds.
    pub(super) fn all(&self) -> Histogram {
        let [mut all, other] = self.latencies.clone();
        all.merge(&other);
        all
    }
}

/// Records a run.
pub(super) struct Recorder<'a> {
    figures: Figures,
    warm_up: Duration,
    last_answer: Duration,
    /// Latencies of the seconds from `first` on, which are incomplete.
    seconds: VecDeque<Histogram>,
    first: u64,
    waits: CoreWait,
    /// Receives each second when it is complete.
    complete: &'a mut dyn FnMut(Second),
}

impl<'a> Recorder<'a> {
    /// A record of the operations that are due after `warm_up`.
    pub(super) fn new(warm_up: Duration, complete: &'a mut dyn FnMut(Second)) -> Self {
        Self {
            figures: Figures::default(),
            warm_up,
            last_answer: Duration::ZERO,
            seconds: VecDeque::new(),
            first: 0,
            waits: CoreWait::new(),
            complete,
        }
    }

    /// A command that was due at `intended` is sent at `now`, over a connection that is free since `free_since`.
    pub(super) fn sent(&mut self, intended: Duration, free_since: Duration, now: Duration) {
        if intended < self.warm_up {
            return;
        }
        if free_since <= intended {
            self.figures.late.record(now.saturating_sub(intended));
        } else {
            self.figures.queued += 1;
        }
    }

    /// A command that was due at `intended` is answered at `now`; `oldest` is the first intended time without an answer so far.
    pub(super) fn answered(&mut self, kind: Kind, intended: Duration, oldest: Duration, now: Duration) {
        let waiting_since = self.last_answer.max(oldest.min(intended));
        self.last_answer = now;
        let Some(due) = intended.checked_sub(self.warm_up) else { return };
        let latency = now.saturating_sub(intended);
        self.figures.latencies[kind as usize].record(latency);
        self.figures.stall = self.figures.stall.max(now.saturating_sub(waiting_since));
        self.figures.took = now - self.warm_up;
        // An operation of a complete second cannot be answered: `complete_before` knows the oldest one.
        let place = due.as_secs().saturating_sub(self.first) as usize;
        if place >= self.seconds.len() {
            self.seconds.resize_with(place + 1, Histogram::default);
        }
        self.seconds[place].record(latency);
    }

    /// A command that was due at `intended` has no answer when the run is abandoned at `now`.
    pub(super) fn unanswered(&mut self, kind: Kind, intended: Duration, now: Duration) {
        self.figures.unanswered += u64::from(intended >= self.warm_up);
        self.answered(kind, intended, intended, now);
    }

    /// Everything that was due before `oldest` was answered.
    pub(super) fn complete_before(&mut self, oldest: Duration) {
        while oldest.saturating_sub(self.warm_up).as_secs() > self.first {
            self.complete_first();
        }
    }

    fn complete_first(&mut self) {
        let latencies = self.seconds.pop_front().unwrap_or_default();
        let core_wait = self.waits.since_last();
        self.figures.core_wait += core_wait;
        (self.complete)(Second {
            number: self.first,
            count: latencies.count(),
            p50_us: latencies.quantile_us(500),
            p99_us: latencies.quantile_us(990),
            max: latencies.max(),
            core_wait,
        });
        self.first += 1;
    }

    /// The figures; all seconds are complete.
    pub(super) fn finish(mut self, core_share: f64) -> Figures {
        while !self.seconds.is_empty() {
            self.complete_first();
        }
        self.figures.core_share = core_share;
        self.figures
    }
}

/// The kernel's count of the time that this thread was ready to run and waited for a core. Without such a count it is 0.
struct CoreWait {
    file: Option<File>,
    last: Duration,
}

impl CoreWait {
    fn new() -> Self {
        let mut wait = Self { file: File::open("/proc/thread-self/schedstat").ok(), last: Duration::ZERO };
        wait.since_last();
        wait
    }

    fn since_last(&mut self) -> Duration {
        let mut text = [0; 128];
        let bytes = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or_default();
        let now = parse_wait(&text[..bytes]);
        let since = now.saturating_sub(self.last);
        self.last = now;
        since
    }
}

/// The second of three numbers: nanoseconds on a core, nanoseconds of waiting for one, time slices.
fn parse_wait(text: &[u8]) -> Duration {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let ns = text.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    Duration::from_nanos(ns.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn a_latency_counts_from_the_intended_time_and_belongs_to_its_second() {
        let mut seconds = Vec::new();
        let mut complete = |second: Second| seconds.push(second);
        let mut recorder = Recorder::new(ms(500), &mut complete);
        // Of the warm-up.
        recorder.answered(Kind::Set, ms(400), ms(400), ms(450));
        // Due in second 0 after it; the second one is sent 2 s late and answered at once.
        recorder.sent(ms(600), ms(450), ms(601));
        recorder.answered(Kind::Set, ms(600), ms(600), ms(610));
        recorder.sent(ms(700), ms(2700), ms(2700));
        recorder.answered(Kind::Get, ms(700), ms(700), ms(2710));
        recorder.complete_before(ms(2000));
        recorder.answered(Kind::Set, ms(3600), ms(3600), ms(3601));
        let figures = recorder.finish(0.0);
        assert_eq!(figures.latencies.each_ref().map(Histogram::count), [2, 1]);
        assert_eq!(figures.latencies[Kind::Get as usize].max(), ms(2010));
        assert_eq!((figures.queued, figures.late.count(), figures.late.max()), (1, 1, ms(1)));
        // No answer from 610 to 2710, and an operation was due at 700.
        assert_eq!((figures.stall, figures.took), (ms(2010), ms(3101)));
        let counts: Vec<_> = seconds.iter().map(|second| (second.number, second.count)).collect();
        assert_eq!(counts, [(0, 2), (1, 0), (2, 0), (3, 1)]);
    }

    #[test]
    fn an_operation_without_an_answer_counts_with_its_wait() {
        let mut complete = |_| ();
        let mut recorder = Recorder::new(ms(0), &mut complete);
        recorder.unanswered(Kind::Set, ms(100), ms(5_100));
        let figures = recorder.finish(0.5);
        assert_eq!((figures.unanswered, figures.all().max()), (1, ms(5_000)));
        assert_eq!(figures.core_share, 0.5);
    }

    #[test]
    fn the_wait_for_a_core_is_the_second_number() {
        assert_eq!(parse_wait(b"12 3400 5\n"), Duration::from_nanos(3400));
        assert_eq!(parse_wait(b""), Duration::ZERO);
    }
}
