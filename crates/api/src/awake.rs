//! Timeouts of peers for asynchronous code: they do not count the time in which this process was suspended
//! ([`shoal_base::awake_time`]). A process that was stopped, or whose machine was, reads the bytes that its peers sent
//! meanwhile before it treats them as silent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use shoal_base::awake_time;
use tokio::time::{Instant, Sleep, sleep_until};

/// Number of looks at the clock during one timeout. A suspension prolongs the timeout by its own length and at most one look.
const LOOKS: u32 = 4;

/// A sleep of a duration in which this process runs. It completes late by a suspension, never early.
#[derive(Debug)]
pub struct AwakeSleep {
    /// The rest of the sleep after [`Self::since`].
    left: Duration,
    look: Duration,
    since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl AwakeSleep {
    /// Sleeps for `duration`, from now.
    #[must_use]
    pub fn new(duration: Duration) -> Self {
        let (look, since) = (duration / LOOKS, Instant::now());
        Self { left: duration, look, since, timer: Box::pin(sleep_until(since + look)) }
    }

    /// The rest of the sleep.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.left.saturating_sub(awake_time(self.since.elapsed(), self.look))
    }

    /// Sleeps for `duration` from now instead.
    pub fn reset(&mut self, duration: Duration) {
        (self.left, self.look, self.since) = (duration, duration / LOOKS, Instant::now());
        self.timer.as_mut().reset(self.since + self.look);
    }
}

impl Future for AwakeSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            ready!(this.timer.as_mut().poll(context));
            let (now, step) = (Instant::now(), this.look.min(this.left));
            this.left -= awake_time(now - this.since, step);
            this.since = now;
            if this.left.is_zero() {
                return Poll::Ready(());
            }
            this.timer.as_mut().reset(now + this.look.min(this.left));
        }
    }
}

/// The result of `work`, or `None` if it takes longer than `duration` in which this process runs.
pub async fn within<T>(duration: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        result = work => Some(result),
        () = AwakeSleep::new(duration) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// Symptom: a server that was stopped for 70 s disconnected its clients when it ran again. Cause: the timer kept running
    /// meanwhile. Fix: the sleep looks at the clock several times, and a late look counts nothing.
    #[tokio::test]
    async fn process_stop_does_not_count() {
        let (began, limit) = (Instant::now(), Duration::from_secs(2));
        let mut sleep = AwakeSleep::new(limit);
        assert!(tokio::time::timeout(limit * 3 / 4, &mut sleep).await.is_err());
        // Nothing of this thread runs, past the end of the sleep.
        std::thread::sleep(limit);
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut sleep).await.is_err());
        sleep.await;
        // On a machine that is too busy for this test, it takes longer.
        assert!(began.elapsed() >= limit * 2, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_sleep_takes_its_time() {
        for ms in [0, 1, 3, 10, 100] {
            let (began, duration) = (Instant::now(), Duration::from_millis(ms));
            assert!(within(duration, pending::<()>()).await.is_none());
            assert!(began.elapsed() >= duration, "{ms}");
        }
        assert_eq!(within(Duration::ZERO, async { 5 }).await, Some(5));
    }

    #[tokio::test]
    async fn a_reset_sleep_begins_again() {
        let mut sleep = AwakeSleep::new(Duration::from_secs(3600));
        sleep.reset(Duration::from_millis(20));
        sleep.await;
        sleep = AwakeSleep::new(Duration::ZERO);
        sleep.reset(Duration::from_secs(3600));
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut sleep).await.is_err());
        assert!(sleep.left() > Duration::from_secs(3000));
    }
}
