//! The end of `serve` in time: draining and closing take no longer than the operator allows, because a supervisor kills
//! a process that takes longer.
//!
//! The clock starts at the signal. Half of the time, 10 s at most, is for requests in flight; the rest is for applying
//! the log's records. The next start replays the records that are left, as after a crash.

use std::path::Path;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use shoal_engine::{Store, block_on};
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

/// Default of `--stop-timeout`, in seconds: supervisors kill after 30.
pub(crate) const STOP_TIMEOUT_S: u64 = 25;
/// Requests under way get no longer than this, however much time there is.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// The time limit of the stop, and its start.
pub(crate) struct StopTime {
    limit: Duration,
    began: OnceLock<Instant>,
    /// Has a permit for the one waiter once the stop has started.
    starts: Notify,
}

impl StopTime {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, began: OnceLock::new(), starts: Notify::new() }
    }

    /// Starts the time of the stop; the first call counts.
    pub(crate) fn begin(&self) {
        let _ = self.began.set(Instant::now());
        self.starts.notify_one();
    }

    /// The part of the time that requests under way may take.
    pub(crate) fn drain_max(&self) -> Duration {
        DRAIN_MAX.min(self.limit / 2)
    }

    /// The remaining time; all of it if the stop has not started.
    pub(crate) fn left(&self) -> Duration {
        let took = self.began.get().map_or(Duration::ZERO, Instant::elapsed);
        self.limit.saturating_sub(took)
    }

    /// Waits until the stop has started and its time is over. One task at a time may wait.
    pub(crate) async fn over(&self) {
        while self.began.get().is_none() {
            self.starts.notified().await;
        }
        while !self.left().is_zero() {
            sleep(self.left()).await;
        }
    }
}

/// A thread for the steps of a stop that block. It starts with the server: a process at its maximum number of threads
/// (`pids.max` of a container) can start no other one, and still stops in order.
pub(crate) struct StopThread {
    steps: mpsc::Sender<Box<dyn FnOnce() + Send>>,
}

impl StopThread {
    /// Starts the thread, which exits when this is dropped and all steps are done.
    ///
    /// # Errors
    /// As the system.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let (steps, waiting) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let run = move || waiting.into_iter().for_each(|step| step());
        let thread = thread::Builder::new().name("shoal-stop".into()).spawn(run);
        thread.context("cannot start the thread that stops the server")?;
        Ok(Self { steps })
    }

    /// Runs `step` on the thread.
    ///
    /// # Errors
    /// It, or a step before it, panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        step: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let (done, end) = oneshot::channel();
        // A result without a waiter is dropped; if the thread is gone, the receiver learns it.
        let _ = self.steps.send(Box::new(move || drop(done.send(step()))));
        end.await.context("a step of the stop ended by an error of the program")
    }
}

/// Closes `store` in the remaining time, on the thread of the stop.
pub(crate) async fn close(
    store: Store,
    time: &StopTime,
    stop: &StopThread,
    path: &Path,
) -> anyhow::Result<()> {
    let left = time.left();
    // The last flushes of a close come after its deadline.
    let for_applies = left.saturating_sub((left / 10).min(Duration::from_secs(1)));
    let waiting = store.clone();
    let closing = stop.run(move || block_on(waiting.close_within(Some(for_applies))));
    let Ok(joined) = timeout(left, closing).await else {
        let what = "the device does not answer in time";
        let said = say_left_over(&store, path, what);
        // The store's threads may never end: dropping its last handle would wait for them.
        std::mem::forget(store);
        return said;
    };
    let closed = joined.context("the store could not be closed")?;
    let closed = closed.with_context(|| format!("cannot close the store {} in order", path.display()))?;
    match closed.records_left {
        0 if store.failure().is_none() => {
            tracing::info!("closed {}: nothing is left in its log", path.display())
        }
        count => say_left_over(&store, path, &format!("{count} records are only in the log"))?,
    }
    Ok(())
}

/// Logs that the time was over, or that records could not be applied. No data is lost by that.
///
/// # Errors
/// The failure after which the store took no writes: then it is not known that nothing is lost.
pub(crate) fn say_left_over(store: &Store, path: &Path, what: &str) -> anyhow::Result<()> {
    if let Some(reason) = store.failure() {
        bail!(
            "stopped {}, which took no writes any more: {reason}. Look with `shoal check` before the next start",
            path.display()
        );
    }
    tracing::warn!(
        "stopped {} before everything was applied ({what}): nothing is lost, the next start replays the log as after a crash; \
         for a longer stop, raise --stop-timeout",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn steps_run_one_after_the_other_on_a_thread_that_is_there() {
        let stop = StopThread::start().unwrap();
        let first = stop.run(|| thread::current().id()).await.unwrap();
        assert_eq!(stop.run(|| thread::current().id()).await.unwrap(), first);
        assert!(stop.run(|| panic!("a step")).await.is_err());
        assert!(stop.run(|| ()).await.is_err(), "the thread is gone");
    }

    #[test]
    fn the_time_runs_from_the_beginning_of_the_end() {
        let time = StopTime::new(Duration::from_secs(25));
        assert_eq!((time.left(), time.drain_max()), (Duration::from_secs(25), DRAIN_MAX));
        time.begin();
        assert!(time.left() <= Duration::from_secs(25));
        let short = StopTime::new(Duration::from_secs(4));
        assert_eq!(short.drain_max(), Duration::from_secs(2));
        let none = StopTime::new(Duration::ZERO);
        none.begin();
        assert_eq!(none.left(), Duration::ZERO);
        block_on(none.over());
    }

    #[tokio::test]
    async fn a_waiter_for_its_end_wakes_when_the_stop_starts() {
        let time = StopTime::new(Duration::from_millis(5));
        tokio::join!(time.over(), async {
            sleep(Duration::from_millis(20)).await;
            time.begin();
        });
        assert_eq!(time.left(), Duration::ZERO);
    }
}
