//! Time as an argument.
//!
//! Three clocks. The *wall clock* says what people say, and is set forth and back while programs run. *Monotonic time* measures how long
//! something took within one process. *Boot time* is elapsed time that goes on while the machine is suspended, and that two processes of
//! the same boot share: with the boot's id it tells how long a store was closed.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Source of wall-clock, monotonic and boot time.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the Unix epoch; goes back where somebody sets the clock.
    fn wall_ns(&self) -> u64;
    /// Nanoseconds since an arbitrary moment; never goes back.
    fn monotonic_ns(&self) -> u64;
    /// Nanoseconds since the machine was started, suspension included; never goes back.
    fn boot_ns(&self) -> u64;
    /// Which start of the machine [`Self::boot_ns`] counts from; zeros where it is not known.
    fn boot_id(&self) -> [u8; 16];
}

/// A process that looks at the clock this much later than it meant to stood still: it was stopped, or had no CPU.
pub const STALL: Duration = Duration::from_secs(1);

/// Returns the part of `elapsed` that counts as silence of a peer, between two looks at the clock that were meant to be at most
/// `period` apart.
///
/// A look that is late by [`STALL`] counts nothing: bytes that came while this process stood still have not been read yet.
#[must_use]
pub fn awake_time(elapsed: Duration, period: Duration) -> Duration {
    if elapsed >= period.saturating_add(STALL) { Duration::ZERO } else { elapsed.min(period) }
}

/// A clock for the timeouts of peers: it stands still while this process does. Its owner looks at the clock at least once a
/// period.
#[derive(Clone, Copy, Debug)]
pub struct AwakeClock {
    period: Duration,
    looked_ns: u64,
    awake_ns: u64,
}

impl AwakeClock {
    /// A clock that shows `now_ns`, the monotonic time, and is looked at once in `period` or more often.
    #[must_use]
    pub fn new(now_ns: u64, period: Duration) -> Self {
        Self { period, looked_ns: now_ns, awake_ns: now_ns }
    }

    /// Looks at the clock when monotonic time is `now_ns`; returns the nanoseconds that it shows.
    pub fn look(&mut self, now_ns: u64) -> u64 {
        let elapsed = Duration::from_nanos(now_ns.saturating_sub(self.looked_ns));
        self.looked_ns = now_ns;
        self.awake_ns += awake_time(elapsed, self.period).as_nanos() as u64;
        self.awake_ns
    }
}

/// The machine's clocks.
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall_ns(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn monotonic_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn boot_ns(&self) -> u64 {
        let time = clock_gettime(ClockId::Boottime);
        let (seconds, nanoseconds) = (time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u64);
        seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
    }

    fn boot_id(&self) -> [u8; 16] {
        static ID: LazyLock<[u8; 16]> = LazyLock::new(|| {
            let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            id_of(&text)
        });
        *ID
    }
}

/// The id that a text of 32 hexadecimal digits, with hyphens, stands for; zeros where it is none.
fn id_of(text: &str) -> [u8; 16] {
    let digits: String = text.trim().chars().filter(|&digit| digit != '-').collect();
    if digits.len() == 32 { u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes() } else { [0; 16] }
}

/// Clocks that move only when told to.
pub struct ManualClock {
    wall: AtomicU64,
    /// Boot time; monotonic time, too.
    boot: AtomicU64,
    boots: AtomicU64,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new(0)
    }
}

impl ManualClock {
    /// Clocks that all stand at `ns`.
    #[must_use]
    pub fn new(ns: u64) -> Self {
        Self { wall: AtomicU64::new(ns), boot: AtomicU64::new(ns), boots: AtomicU64::new(1) }
    }

    /// `ns` nanoseconds go by, on all clocks.
    pub fn advance(&self, ns: u64) {
        self.wall.fetch_add(ns, Ordering::Relaxed);
        self.boot.fetch_add(ns, Ordering::Relaxed);
    }

    /// Somebody sets the wall clock; no time goes by.
    pub fn set_wall(&self, ns: u64) {
        self.wall.store(ns, Ordering::Relaxed);
    }

    /// Somebody sets the wall clock `by_ns` nanoseconds forth, or back to the epoch at most; no time goes by.
    pub fn step_wall(&self, by_ns: i64) {
        let _ = self
            .wall
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |wall| Some(wall.saturating_add_signed(by_ns)));
    }

    /// The machine starts anew: boot time begins at 0. Monotonic time, too, so no store may be open.
    pub fn reboot(&self) {
        self.boots.fetch_add(1, Ordering::Relaxed);
        self.boot.store(0, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn wall_ns(&self) -> u64 {
        self.wall.load(Ordering::Relaxed)
    }

    fn monotonic_ns(&self) -> u64 {
        self.boot.load(Ordering::Relaxed)
    }

    fn boot_ns(&self) -> u64 {
        self.boot.load(Ordering::Relaxed)
    }

    fn boot_id(&self) -> [u8; 16] {
        u128::from(self.boots.load(Ordering::Relaxed)).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_and_odd_ones_are_none() {
        let id = id_of("00112233-4455-6677-8899-aabbccddeeff\n");
        assert_eq!((id[0], id[1], id[15]), (0x00, 0x11, 0xff));
        for odd in ["", "00112233-4455-6677-8899-aabbccddee", "0011223344556677889900aabbccddeezz"] {
            assert_eq!(id_of(odd), [0; 16]);
        }
    }

    #[test]
    fn the_machine_says_which_boot_it_is_and_how_long_it_runs() {
        let (one, other) = (SystemClock::new(), SystemClock::new());
        let before = one.boot_ns();
        assert!(before > 0 && other.boot_ns() >= before);
        assert_eq!(one.boot_id(), other.boot_id());
    }

    /// Symptom: a server that was stopped for 70 s closed clients as silent. Cause: timers counted its own standstill. Fix: a late
    /// look counts nothing.
    #[test]
    fn a_standstill_is_no_silence_of_a_peer() {
        const SECOND_NS: u64 = 1_000_000_000;
        let mut clock = AwakeClock::new(5, Duration::from_secs(1));
        assert_eq!(clock.look(5 + SECOND_NS / 4), 5 + SECOND_NS / 4);
        assert_eq!(clock.look(5 + SECOND_NS), 5 + SECOND_NS);
        assert_eq!(clock.look(5 + 71 * SECOND_NS), 5 + SECOND_NS, "it was stopped");
        assert_eq!(clock.look(5 + 72 * SECOND_NS), 5 + 2 * SECOND_NS);
        // A little late: no more than a period counts.
        assert_eq!(clock.look(5 + 73 * SECOND_NS + SECOND_NS / 2), 5 + 3 * SECOND_NS);
        assert_eq!(clock.look(0), 5 + 3 * SECOND_NS, "it never goes back");
    }

    #[test]
    fn a_wall_clock_steps_without_time_going_by() {
        let clock = ManualClock::new(100);
        clock.step_wall(-30);
        clock.advance(5);
        assert_eq!((clock.wall_ns(), clock.boot_ns(), clock.monotonic_ns()), (75, 105, 105));
        clock.step_wall(-1_000);
        let boot = clock.boot_id();
        clock.reboot();
        assert_eq!((clock.wall_ns(), clock.boot_ns()), (0, 0));
        assert_ne!(clock.boot_id(), boot);
    }
}
