//! How slowly a peer may send the rest of a request: not in silence, and not a byte now and then, as it holds a connection and
//! memory meanwhile.

use std::time::Duration;

/// The least that a peer sends of a request that it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinRate {
    /// How long the peer may be silent.
    pub silence_max: Duration,
    /// The least that comes, in bytes a second.
    pub bytes_a_second: u64,
    /// Over how long that is measured.
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
    /// Nothing came for so long.
    #[error("nothing came for {} s in the middle of the request", .0.as_secs_f64())]
    Silent(Duration),
    /// Less came than the least rate.
    #[error("only {bytes} bytes came in {:.1} s in the middle of the request", waited.as_secs_f64())]
    Little {
        /// Bytes that came.
        bytes: u64,
        /// How long the rest was awaited.
        waited: Duration,
    },
}

/// The bytes of one peer that came while the rest of its request was awaited.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    silent: Duration,
    /// The part of the window that is over.
    waited: Duration,
    /// Bytes of this window.
    bytes: u64,
}

impl Received {
    /// The request is there as a whole, or its rest is not awaited: the past does not count.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// `bytes` came.
    pub fn came(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.silent = Duration::ZERO;
    }

    /// The rest was awaited for `period` more. The caller counts periods, and not the clock: a process that was stopped does
    /// not blame its peers.
    ///
    /// # Errors
    /// The silence is too long, or a window is over and too little came in it.
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

    /// After how many seconds a sender of `bytes` each `pause` is cut, in ten minutes that are all awaited; looked at every
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
    fn only_below_the_least_is_a_peer_too_slow() {
        for look in [SECOND, Duration::from_millis(1875)] {
            for (bytes, cut) in [(0, Some(30)), (1, Some(30)), (900, Some(30)), (1024, None), (100_000, None)]
            {
                assert_eq!(cut_after(bytes, SECOND, look), cut, "{bytes}");
            }
            // In long pauses: a window counts as a whole.
            assert_eq!(cut_after(45 << 10, 29 * SECOND, look), None);
            assert_eq!(cut_after(1 << 20, 70 * SECOND, look), Some(30));
        }
    }

    #[test]
    fn silence_has_an_end_of_its_own() {
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
