//! Watches a peer that sends a request while its rest is awaited.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use shoal_base::awake_time;
use shoal_frontend::{MinRate, Received, TooSlow};
use tokio::time::{Instant, Sleep, sleep_until};

/// Looks this number of times in the shorter of the two times of the rate: a peer may be cut late by one interval.
const LOOKS: u32 = 16;

/// Watches one sender.
#[derive(Debug)]
pub(crate) struct Watch {
    least: MinRate,
    look: Duration,
    received: Received,
    /// The start of the wait for a frame, or the time of the last look.
    since: Option<Instant>,
    /// Runs from the first wait on.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Watch {
    pub(crate) fn new(least: MinRate) -> Self {
        let look = least.silence_max.min(least.window) / LOOKS;
        Self { least, look, received: Received::default(), since: None, timer: None }
    }

    /// A frame is awaited; ready when too few bytes came.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<TooSlow> {
        let look = self.look;
        let mut since = *self.since.get_or_insert_with(|| {
            let now = Instant::now();
            if let Some(timer) = &mut self.timer {
                timer.as_mut().reset(now + look);
            }
            now
        });
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(since + look)));
        loop {
            ready!(timer.as_mut().poll(context));
            let now = Instant::now();
            if let Err(slow) = self.received.waited(awake_time(now - since, look), &self.least) {
                return Poll::Ready(slow);
            }
            since = now;
            self.since = Some(now);
            timer.as_mut().reset(now + look);
        }
    }

    /// A frame of this length came.
    ///
    /// # Errors
    /// Too little came for too long.
    pub(crate) fn came(&mut self, bytes: usize) -> Result<(), TooSlow> {
        self.received.came(bytes);
        let Some(since) = self.since.take() else { return Ok(()) };
        let waited = self.received.waited(awake_time(since.elapsed(), self.look), &self.least);
        self.received.came(0);
        waited
    }
}
