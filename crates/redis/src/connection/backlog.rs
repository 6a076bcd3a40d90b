//! The backlog of a connection whose client does not take its answers, and the bytes after the last command of a closing
//! connection.
//!
//! Such a connection executes nothing more, but is still read: most clients write a whole pipeline before they read. So neither
//! side waits for the other forever. [`crate::RedisLimits::pending_bytes_max`] bounds the backlog.

use std::time::Duration;

use shoal_buffer::Buffer;

use crate::socket::{LINGER_BYTES_MAX, LINGER_MAX};

/// The commands and answers that wait at a connection.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Further commands wait until there is room among the answers.
    pub is_held_up: bool,
    /// Bytes of sealed answers that were not sent.
    pub unsent: usize,
    /// Bytes received since the last look, while it was held up; and the time of the last look that found enough of them.
    came: usize,
    fed_ns: u64,
    /// Bytes that were thrown away.
    thrown_away: usize,
    /// The time when it was refused, because too much waits; nothing more is executed.
    refused_ns: Option<u64>,
}

impl Backlog {
    /// Counts received bytes.
    pub(crate) fn came(&mut self, bytes: usize) {
        if self.is_held_up {
            self.came += bytes;
        }
    }

    /// The last look that found at least `least` bytes a second, `period` after the look before: a client that still writes is
    /// not silent, although it takes nothing.
    pub(crate) fn fed_ns(&mut self, now_ns: u64, period: Duration, least: u64) -> u64 {
        let came = std::mem::take(&mut self.came);
        if came as u128 * 1_000 >= u128::from(least) * period.as_millis() {
            self.fed_ns = now_ns;
        }
        self.fed_ns
    }

    /// Throws away the received bytes.
    pub(crate) fn throw_away(&mut self, received: &mut Buffer) {
        self.thrown_away = self.thrown_away.saturating_add(received.len());
        received.clear();
    }

    /// Returns true if more may be thrown away.
    pub(crate) fn may_throw_away(&self) -> bool {
        self.thrown_away < LINGER_BYTES_MAX
    }

    /// Refuses it: nothing more is executed. Bytes that waited before do not count against the limit of the bytes thrown away
    /// later.
    pub(crate) fn refuse(&mut self, now_ns: u64) {
        self.thrown_away = 0;
        self.refused_ns = Some(now_ns);
    }

    /// Returns true if it was refused and keeps sending, or takes nothing of the remaining answers.
    pub(crate) fn is_given_up(&self, stuck_ns: u64, now_ns: u64) -> bool {
        let Some(refused_ns) = self.refused_ns else { return false };
        let waited_ns = now_ns.saturating_sub(refused_ns).min(stuck_ns);
        !self.may_throw_away() || u128::from(waited_ns) >= LINGER_MAX.as_nanos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_client_that_writes_is_not_silent() {
        let mut backlog = Backlog::default();
        backlog.came(1 << 20);
        assert_eq!(backlog.fed_ns(5, SECOND, 1024), 0, "it was not held up");
        backlog.is_held_up = true;
        backlog.came(1023);
        assert_eq!(backlog.fed_ns(6, SECOND, 1024), 0);
        backlog.came(1024);
        assert_eq!(backlog.fed_ns(7, SECOND, 1024), 7);
        assert_eq!(backlog.fed_ns(8, SECOND, 1024), 7);
    }

    #[test]
    fn refused_client_is_closed_after_timeout() {
        let mut backlog = Backlog::default();
        let linger_ns = LINGER_MAX.as_nanos() as u64;
        assert!(!backlog.is_given_up(u64::MAX, u64::MAX));
        backlog.throw_away(&mut Buffer::from(vec![0; LINGER_BYTES_MAX]));
        backlog.refuse(100);
        assert!(!backlog.is_given_up(linger_ns, 99 + linger_ns), "it has some time to take its answers");
        assert!(backlog.is_given_up(linger_ns, 100 + linger_ns));
        assert!(!backlog.is_given_up(linger_ns - 1, 100 + 2 * linger_ns), "it took something lately");
        backlog.throw_away(&mut Buffer::from(vec![0; LINGER_BYTES_MAX]));
        assert!(backlog.is_given_up(0, 100), "it goes on sending");
    }
}
