//! Stops `serve` in time: draining and closing take at most the configured time, because a supervisor kills a slower process.
//!
//! The clock starts at the signal. Half of the time, at most 10 s, is for requests in flight; the rest is for applying records of the log.
//! The next start replays the remaining records, as after a crash.

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
/// Maximum time for requests in flight.
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

    /// Starts the clock; the first call counts.
    pub(crate) fn begin(&self) {
        let _ = self.began.set(Instant::now());
        self.starts.notify_one();
    }

    /// The time for requests in flight.
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

/// A thread for the blocking steps of a stop. It starts with the server, so that a process at its maximum number of threads (`pids.max`
/// of a container) still stops in order.
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
    /// The step, or an earlier one, panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        step: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let (done, end) = oneshot::channel();
        // If the thread is gone, the receiver gets an error.
        let _ = self.steps.send(Box::new(move || drop(done.send(step()))));
        end.await.context("a step of the stop ended by an error of the program")
    }
}

/// Closes `store` in the remaining time, on the stop thread.
pub(crate) async fn close(
    store: Store,
    time: &StopTime,
    stop: &StopThread,
    path: &Path,
) -> anyhow::Result<()> {
    let left = time.left();
    // The last flushes of a close follow its deadline.
    let for_applies = left.saturating_sub((left / 10).min(Duration::from_secs(1)));
    let waiting = store.clone();
    let closing = stop.run(move || block_on(waiting.close_within(Some(for_applies))));
    let Ok(joined) = timeout(left, closing).await else {
        let what = "the device does not answer in time";
        let said = say_left_over(&store, path, what);
        // The store's threads may never exit, and dropping its last handle would wait for them.
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

/// Logs that the time was over, or that records could not be applied. No data is lost.
///
/// # Errors
/// The store failed and took no writes since: data may be lost.
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
    async fn stop_steps_run_in_order_on_one_thread() {
        let stop = StopThread::start().unwrap();
        let first = stop.run(|| thread::current().id()).await.unwrap();
        assert_eq!(stop.run(|| thread::current().id()).await.unwrap(), first);
        assert!(stop.run(|| panic!("a step")).await.is_err());
        assert!(stop.run(|| ()).await.is_err(), "the thread is gone");
    }

    #[test]
    fn stop_time_starts_with_the_stop() {
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
