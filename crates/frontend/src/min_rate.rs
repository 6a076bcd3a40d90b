//! The minimum rate at which a peer sends the rest of a request: neither silence nor a byte now and then is accepted, because
//! the request holds a connection and memory meanwhile.

use std::time::Duration;

/// The minimum rate of a request that a peer has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinRate {
    /// The longest silence of the peer.
    pub silence_max: Duration,
    /// The minimum rate, in bytes a second.
    pub bytes_a_second: u64,
    /// The window over which it is measured.
    pub window: Duration,
}

impl Default for MinRate {
    fn default() -> Self {
        Self {
            silence_max: Duration::from_secs(60),
            bytes_a_second: 1 << 10,
            window: Duration::from_secs(30),
        }
    }
}

/// A peer sent too little of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooSlow {
    /// Nothing came for this time.
    #[error("nothing was received for {} s in the middle of a request", .0.as_secs_f64())]
    Silent(Duration),
    /// The rate was below the minimum.
    #[error("only {bytes} bytes were received in {:.1} s in the middle of a request", waited.as_secs_f64())]
    Little {
        /// Received bytes.
        bytes: u64,
        /// Time spent waiting for the rest.
        waited: Duration,
    },
}

/// The bytes of one peer that came while its request was incomplete.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    silent: Duration,
    /// The elapsed part of the window.
    waited: Duration,
    /// Bytes of this window.
    bytes: u64,
}

impl Received {
    /// The request is complete, or its rest is not awaited: the past does not count.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Counts received bytes.
    pub fn came(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.silent = Duration::ZERO;
    }

    /// Counts `period` more of waiting. The caller counts periods, and not the clock: a process that was stopped does not blame
    /// its peers.
    ///
    /// # Errors
    /// The silence is too long, or the bytes of a whole window are below the minimum.
    pub fn waited(&mut self, period: Duration, least: &MinRate) -> Result<(), TooSlow> {
        self.silent += period;
        self.waited += period;
        if self.silent >= least.silence_max {
            return Err(TooSlow::Silent(self.silent));
        }
        if self.waited < least.window {
            return Ok(());
        }
        let (waited, bytes) = (std::mem::take(&mut self.waited), std::mem::take(&mut self.bytes));
        let wanted = u128::from(least.bytes_a_second) * waited.as_millis() / 1000;
        if u128::from(bytes) < wanted { Err(TooSlow::Little { bytes, waited }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The number of seconds after which a sender of `bytes` each `pause` is cut off, in ten minutes of waiting; checked every
    /// `look`.
    fn cut_after(bytes: usize, pause: Duration, look: Duration) -> Option<u64> {
        let (mut received, mut now, mut next) = (Received::default(), Duration::ZERO, pause);
        while now < 600 * SECOND {
            let step = look.min(next - now);
            now += step;
            if now == next {
                received.came(bytes);
                next += pause;
            }
            if received.waited(step, &MinRate::default()).is_err() {
                return Some(now.as_secs());
            }
        }
        None
    }

    #[test]
    fn peer_below_min_rate_is_too_slow() {
        for look in [SECOND, Duration::from_millis(1875)] {
            for (bytes, cut) in [(0, Some(30)), (1, Some(30)), (900, Some(30)), (1024, None), (100_000, None)]
            {
                assert_eq!(cut_after(bytes, SECOND, look), cut, "{bytes}");
            }
            // With long pauses: a window counts as a whole.
            assert_eq!(cut_after(45 << 10, 29 * SECOND, look), None);
            assert_eq!(cut_after(1 << 20, 70 * SECOND, look), Some(30));
        }
    }

    #[test]
    fn silence_has_own_limit() {
        let least = MinRate { bytes_a_second: 0, ..MinRate::default() };
        let mut received = Received::default();
        for _ in 0..100 {
            received.came(0);
            (0..59).for_each(|_| received.waited(SECOND, &least).unwrap());
        }
        assert_eq!(received.waited(SECOND, &least), Err(TooSlow::Silent(60 * SECOND)));
    }

    #[test]
    fn the_past_does_not_count() {
        let least = MinRate::default();
        let mut received = Received::default();
        for _ in 0..100 {
            received.waited(20 * SECOND, &least).unwrap();
            received.forget();
        }
        // A burst pays for one window only.
        received.came(1 << 20);
        received.waited(30 * SECOND, &least).unwrap();
        let little = TooSlow::Little { bytes: 0, waited: 30 * SECOND };
        received.came(0);
        assert_eq!(received.waited(30 * SECOND, &least), Err(little));
    }
}
