//! How long the server waits for the rest of a request: not where nothing comes, and not where hardly anything does.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::failure::Failure;
use crate::options::Limits;

/// Looks in the shorter of the two times: so much later than its end may a client be cut.
const LOOKS: u32 = 16;

/// What is asked of those who send requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    silence_max: Duration,
    window: Duration,
    /// Bytes in a window.
    bytes_min: u64,
    look: Duration,
}

impl Patience {
    pub(crate) fn new(limits: &Limits) -> Self {
        let Limits { silence_max, pace_min, pace_window, .. } = *limits;
        let bytes_min = u128::from(pace_min) * pace_window.as_millis() / 1000;
        Self {
            silence_max,
            window: pace_window,
            bytes_min: u64::try_from(bytes_min).unwrap_or(u64::MAX),
            look: silence_max.min(pace_window) / LOOKS,
        }
    }
}

/// How long was waited for a sender, and what came. Only the time counts in which the server wanted more.
#[derive(Debug, Default)]
struct Tally {
    silent: Duration,
    /// Of this window.
    waited: Duration,
    bytes: u64,
}

impl Tally {
    /// Nothing came for `time` more. Of the time between two looks no more counts than there should be: a process that was stopped
    /// must not blame its clients.
    fn waited(&mut self, time: Duration, patience: &Patience) -> Result<(), Failure> {
        let time = time.min(patience.look);
        self.silent += time;
        self.waited += time;
        if self.silent >= patience.silence_max {
            return Err(Failure::too_slow(self.silent));
        }
        if self.waited < patience.window {
            return Ok(());
        }
        let (waited, bytes) = (self.waited, self.bytes);
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        if bytes < patience.bytes_min { Err(Failure::too_little(bytes, waited)) } else { Ok(()) }
    }

    fn came(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.silent = Duration::ZERO;
    }
}

/// Watches one sender.
#[derive(Debug)]
pub(crate) struct Watch {
    patience: Patience,
    tally: Tally,
    /// Since when a frame is waited for, or since the last look.
    since: Option<Instant>,
    /// Runs from the first time that there was something to wait for.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Watch {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, tally: Tally::default(), since: None, timer: None }
    }

    /// A frame is waited for; says what to tell who sends too little.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Failure> {
        let look = self.patience.look;
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
            if let Err(failure) = self.tally.waited(now - since, &self.patience) {
                return Poll::Ready(failure);
            }
            since = now;
            self.since = Some(now);
            timer.as_mut().reset(now + look);
        }
    }

    /// A frame of so many bytes came.
    ///
    /// # Errors
    /// Too little came for too long.
    pub(crate) fn came(&mut self, bytes: usize) -> Result<(), Failure> {
        self.tally.came(bytes);
        let Some(since) = self.since.take() else { return Ok(()) };
        let waited = self.tally.waited(since.elapsed(), &self.patience);
        self.tally.silent = Duration::ZERO;
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// After how many seconds a sender of `bytes` each `pause` is cut, in ten minutes of which all are waited for.
    fn cut_after(bytes: usize, pause: Duration) -> Option<u64> {
        let patience = Patience::new(&Limits::default());
        let (mut tally, mut now, mut next) = (Tally::default(), Duration::ZERO, pause);
        while now < 600 * SECOND {
            let step = patience.look.min(next - now);
            now += step;
            if now == next {
                tally.came(bytes);
                next += pause;
            }
            if tally.waited(step, &patience).is_err() {
                return Some(now.as_secs());
            }
        }
        None
    }

    #[test]
    fn who_sends_too_little_is_cut() {
        assert_eq!(cut_after(1, SECOND), Some(30));
        assert_eq!(cut_after(900, SECOND), Some(30));
        assert_eq!(cut_after(1100, SECOND), None);
        assert_eq!(cut_after(0, SECOND), Some(30));
        // In long pauses: what counts is a window as a whole.
        assert_eq!(cut_after(45 << 10, 29 * SECOND), None);
        assert_eq!(cut_after(1 << 20, 70 * SECOND), Some(30));
    }

    #[test]
    fn silence_has_an_end_of_its_own() {
        let patience = Patience::new(&Limits { pace_min: 0, ..Limits::default() });
        let mut tally = Tally::default();
        for _ in 0..100 {
            tally.came(0);
            (0..31).for_each(|_| tally.waited(patience.look, &patience).unwrap());
        }
        let too_slow = (0..2).find_map(|_| tally.waited(patience.look, &patience).err()).unwrap();
        assert!(format!("{too_slow:?}").contains("nothing came for"), "{too_slow:?}");
    }

    #[test]
    fn who_was_stopped_blames_nobody() {
        let patience = Patience::new(&Limits::default());
        let mut tally = Tally::default();
        for _ in 0..LOOKS - 1 {
            tally.waited(3600 * SECOND, &patience).unwrap();
        }
        assert!(tally.waited(3600 * SECOND, &patience).is_err());
    }
}
