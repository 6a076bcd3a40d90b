//! The repetition of calls, and the pauses between attempts.
//!
//! A read may always be repeated. A write is repeated only if it is known not to be applied: the connection could not be
//! opened, or the server reported it. Otherwise it fails as `Unknown`: a second attempt could undo another client's write in
//! between, or fail its own condition. With an id (`request_id.rs`) that is safe, and a write is repeated like a read.

use std::sync::Arc;
use std::time::Duration;

use shoal_base::{Entropy, SystemEntropy, awake_time};
use tokio::time::Instant;

use crate::connector::Progress;
use crate::error::{Error, Result, silent};

/// The first pause; each further one is four times as long.
const PAUSE_FIRST: Duration = Duration::from_millis(10);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The possible effect of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Not applied, and a repetition would fail in the same way.
    Refused,
    /// Not applied, and the next attempt may succeed.
    NotApplied,
    /// Perhaps applied.
    Open,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    pub(crate) outcome: Outcome,
}

impl Failed {
    pub(crate) fn refused(error: Error) -> Self {
        Self { error, outcome: Outcome::Refused }
    }

    /// The error of a write for which this is the last attempt.
    pub(crate) fn of_write(self) -> Error {
        match (self.outcome, self.error) {
            (Outcome::Open, error @ Error::Unknown(_)) => error,
            (Outcome::Open, error) => Error::Unknown(error.to_string()),
            (_, error) => error,
        }
    }
}

/// The limits of the attempts of a call.
#[derive(Clone, Debug)]
pub(crate) struct Retry {
    server: Arc<str>,
    progress: Progress,
    attempts: u32,
    time: Option<Duration>,
}

/// The remaining attempts and time of one call, or of one step of a stream.
pub(crate) struct Budget<'a> {
    retry: &'a Retry,
    attempt: u32,
    /// The remaining time at the start of the current attempt.
    left: Option<Duration>,
    began: Instant,
    mark: u64,
}

impl Budget<'_> {
    /// Returns true if a further attempt is due; waits for its time.
    pub(crate) async fn again(&mut self) -> bool {
        let now = Instant::now();
        if self.retry.progress.is_past(self.mark) {
            self.left = self.retry.time;
        } else {
            // Time in which this process was suspended is not the server's.
            self.left = self.left.map(|left| left - awake_time(now - self.began, left));
        }
        (self.began, self.mark) = (now, self.retry.progress.mark());
        if self.attempt >= self.retry.attempts || self.left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        let pause = pause(self.attempt);
        tokio::time::sleep(self.left.map_or(pause, |left| left.min(pause))).await;
        self.attempt += 1;
        true
    }
}

impl Retry {
    /// At most `attempts`, and no longer than `time` without progress.
    pub(crate) fn new(server: &str, progress: Progress, attempts: u32, time: Option<Duration>) -> Self {
        Self { server: server.into(), progress, attempts, time }
    }

    /// For a new call.
    pub(crate) fn budget(&self) -> Budget<'_> {
        Budget { retry: self, attempt: 1, left: self.time, began: Instant::now(), mark: self.progress.mark() }
    }

    /// Runs `attempt` until it succeeds, cannot succeed, or has no attempts left. For calls that change nothing.
    pub(crate) async fn read<T, F>(&self, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        self.run(attempt, |outcome| outcome != Outcome::Refused).await.map_err(|failed| failed.error)
    }

    /// As [`Self::read`] for writes: also stops if one was perhaps applied.
    pub(crate) async fn write<T, F>(&self, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        self.run(attempt, |outcome| outcome == Outcome::NotApplied).await.map_err(Failed::of_write)
    }

    /// As [`Self::read`] for writes that the server does once. If an attempt was perhaps applied, only a success and a failed
    /// condition are certain afterwards.
    pub(crate) async fn write_with_id<T, F>(&self, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        let mut open = false;
        let again = |outcome| {
            open |= outcome == Outcome::Open;
            outcome != Outcome::Refused
        };
        let result = self.run(attempt, again).await;
        result.map_err(|failed| match failed.error {
            error @ Error::ConditionFailed { .. } => error,
            _ if open => Failed { outcome: Outcome::Open, ..failed }.of_write(),
            _ => failed.of_write(),
        })
    }

    async fn run<T, F>(
        &self,
        attempt: impl Fn() -> F,
        mut again: impl FnMut(Outcome) -> bool,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        let mut budget = self.budget();
        loop {
            match self.once(&budget, attempt()).await {
                Err(failed) if again(failed.outcome) && budget.again().await => {}
                result => return result,
            }
        }
    }

    /// One attempt, for the rest of the time.
    async fn once<T>(
        &self,
        budget: &Budget<'_>,
        attempt: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let Some((left, time)) = budget.left.zip(self.time) else { return attempt.await };
        let is_over = || Err(Failed { error: silent(&self.server, time), outcome: Outcome::Open });
        self.progress.within(left, attempt).await.unwrap_or_else(is_over)
    }
}

/// The pause after attempt number `attempt` (from 1), plus or minus half: clients that failed together must not return
/// together.
fn pause(attempt: u32) -> Duration {
    let steps = attempt.saturating_sub(1).min(8);
    let pause = PAUSE_FIRST.saturating_mul(4_u32.saturating_pow(steps)).min(PAUSE_MAX);
    let spread = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
    pause / 2 + Duration::from_nanos(SystemEntropy.next_u64() % spread.max(1))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use shoal_base::task::block_on;

    use super::*;
    use crate::object::Lsn;

    fn retry(attempts: u32) -> Retry {
        Retry::new("nowhere", Progress::default(), attempts, None)
    }

    fn failed(outcome: Outcome) -> Failed {
        Failed { error: Error::Busy("b".into()), outcome }
    }

    #[test]
    fn the_outcome_decides_whether_a_request_is_sent_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _guard = runtime.enter();
        for (outcome, reads, writes) in
            [(Outcome::Refused, 1, 1), (Outcome::NotApplied, 3, 3), (Outcome::Open, 3, 1)]
        {
            let count = Cell::new(0);
            let attempt = || async {
                count.set(count.get() + 1);
                Err::<(), _>(failed(outcome))
            };
            assert_eq!(runtime.block_on(retry(3).read(attempt)), Err(Error::Busy("b".into())));
            assert_eq!(count.replace(0), reads, "{outcome:?}");
            let error = runtime.block_on(retry(3).write(attempt)).unwrap_err();
            assert_eq!(count.replace(0), writes, "{outcome:?}");
            assert_eq!(matches!(error, Error::Unknown(_)), outcome == Outcome::Open);
        }
    }

    /// After an attempt with an open outcome, a later failure does not prove that nothing happened, unless it is the write's
    /// own answer.
    #[test]
    fn write_with_id_is_retried_until_outcome_is_known() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _guard = runtime.enter();
        let lost = || Failed { error: Error::Busy("lost".into()), outcome: Outcome::Open };
        let run = |then: Result<u32, Failed>| {
            let first = Cell::new(true);
            runtime.block_on(retry(3).write_with_id(|| {
                let result = if first.replace(false) { Err(lost()) } else { then.clone() };
                async { result }
            }))
        };
        assert_eq!(run(Ok(5)), Ok(5));
        let condition = Error::ConditionFailed { rule: None, current: Some(Lsn(3)) };
        assert_eq!(run(Err(Failed::refused(condition.clone()))), Err(condition));
        let refused = run(Err(Failed::refused(Error::ReadOnly("broken".into()))));
        assert!(matches!(refused, Err(Error::Unknown(_))), "{refused:?}");
        assert!(matches!(run(Err(lost())), Err(Error::Unknown(_))));
        let only = runtime.block_on(
            retry(3)
                .write_with_id(|| async { Err::<(), _>(Failed::refused(Error::ReadOnly("broken".into()))) }),
        );
        assert_eq!(only, Err(Error::ReadOnly("broken".into())));
    }

    #[test]
    fn one_attempt_means_no_pause() {
        // Without a runtime a pause would panic.
        assert!(!block_on(retry(1).budget().again()));
    }

    /// Symptom: a command waited for 570 s for a server that accepted its connection and sent nothing. Cause: attempts were
    /// bounded only by their number. Fix: they share a time limit.
    #[test]
    fn attempts_end_with_the_time_of_the_call() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let limit = Duration::from_millis(600);
        let retry = Retry::new("nowhere", Progress::default(), 1_000_000, Some(limit));
        let count = Cell::new(0);
        // Some fail, then one gets no answer.
        let attempt = || {
            count.set(count.get() + 1);
            let number = count.get();
            async move {
                tokio::time::sleep(Duration::from_millis(if number < 3 { 10 } else { 1_000_000 })).await;
                Err::<(), _>(failed(Outcome::Open))
            }
        };
        let began = std::time::Instant::now();
        let error = runtime.block_on(retry.read(attempt)).unwrap_err().to_string();
        assert!(began.elapsed() < Duration::from_secs(100), "{:?}", began.elapsed());
        assert_eq!(count.get(), 3);
        for word in ["nowhere", "0.6 s", "--timeout"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        // Attempts that fail at once also stop.
        let refused = || async { Err::<(), _>(failed(Outcome::NotApplied)) };
        assert_eq!(runtime.block_on(retry.write(refused)), Err(Error::Busy("b".into())));
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        for attempt in 1..100 {
            let pause = pause(attempt);
            assert!(pause >= PAUSE_FIRST / 2 && pause <= PAUSE_MAX * 3 / 2, "{attempt}: {pause:?}");
        }
    }
}
