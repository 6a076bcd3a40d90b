//! When a call is sent again, and after which pause.
//!
//! A read may always be sent again. A write is sent again only where it is known that it was not applied: the connection
//! could not be opened, or the server said so. Otherwise it ends as `Unknown`: a second attempt could undo what another
//! client wrote in between, or fail its own condition. With an id (`request_id.rs`) that is safe, and a write is sent again
//! like a read.

use std::time::Duration;

use shoal_base::{Entropy, SystemEntropy};

use crate::error::{Error, Result};

/// The first pause; each further one is four times as long.
const PAUSE_FIRST: Duration = Duration::from_millis(10);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Whether a failed attempt may have been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Not applied, and it would be no different the next time.
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

    /// The error of a write that ends with this attempt.
    pub(crate) fn of_write(self) -> Error {
        match (self.outcome, self.error) {
            (Outcome::Open, error @ Error::Unknown(_)) => error,
            (Outcome::Open, Error::Unavailable { reason, .. }) => Error::Unknown(reason),
            (Outcome::Open, error) => Error::Unknown(error.to_string()),
            (_, error) => error,
        }
    }
}

/// How often a call is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    attempts: u32,
}

impl Retry {
    pub(crate) fn new(attempts: u32) -> Self {
        Self { attempts }
    }

    /// Runs `attempt` until it succeeds, it cannot, or it was made often enough. For calls that change nothing.
    pub(crate) async fn read<T, F>(self, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        self.run(attempt, |outcome| outcome != Outcome::Refused).await.map_err(|failed| failed.error)
    }

    /// As [`Self::read`] for writes: stops also where one was perhaps applied.
    pub(crate) async fn write<T, F>(self, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        self.run(attempt, |outcome| outcome == Outcome::NotApplied).await.map_err(Failed::of_write)
    }

    /// As [`Self::read`] for writes that the server does once. Where an attempt was perhaps applied, only a success and a
    /// condition that did not hold are certain afterwards.
    pub(crate) async fn write_with_id<T, F>(self, attempt: impl Fn() -> F) -> Result<T>
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

    /// Whether a further attempt is due after attempt number `attempt`; waits for its time.
    pub(crate) async fn pause(self, attempt: u32) -> bool {
        let again = attempt < self.attempts;
        if again {
            tokio::time::sleep(pause(attempt)).await;
        }
        again
    }

    async fn run<T, F>(
        self,
        attempt: impl Fn() -> F,
        mut again: impl FnMut(Outcome) -> bool,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        let mut count = 1;
        loop {
            match attempt().await {
                Err(failed) if again(failed.outcome) && self.pause(count).await => count += 1,
                result => return result,
            }
        }
    }
}

/// The pause after attempt number `attempt` (from 1), give or take half: clients that failed together must not come
/// back together.
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
            assert_eq!(runtime.block_on(Retry::new(3).read(attempt)), Err(Error::Busy("b".into())));
            assert_eq!(count.replace(0), reads, "{outcome:?}");
            let error = runtime.block_on(Retry::new(3).write(attempt)).unwrap_err();
            assert_eq!(count.replace(0), writes, "{outcome:?}");
            assert_eq!(matches!(error, Error::Unknown(_)), outcome == Outcome::Open);
        }
    }

    /// The failure that follows an attempt with an open outcome does not say that nothing happened, unless it is the write's own answer.
    #[test]
    fn a_write_with_an_id_is_sent_again_until_it_is_known() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _guard = runtime.enter();
        let lost = || Failed { error: Error::Busy("lost".into()), outcome: Outcome::Open };
        let run = |then: Result<u32, Failed>| {
            let first = Cell::new(true);
            runtime.block_on(Retry::new(3).write_with_id(|| {
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
            Retry::new(3)
                .write_with_id(|| async { Err::<(), _>(Failed::refused(Error::ReadOnly("broken".into()))) }),
        );
        assert_eq!(only, Err(Error::ReadOnly("broken".into())));
    }

    #[test]
    fn one_attempt_means_no_pause() {
        // Without a runtime a pause would panic.
        assert!(!block_on(Retry::new(1).pause(1)));
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        for attempt in 1..100 {
            let pause = pause(attempt);
            assert!(pause >= PAUSE_FIRST / 2 && pause <= PAUSE_MAX * 3 / 2, "{attempt}: {pause:?}");
        }
    }
}
