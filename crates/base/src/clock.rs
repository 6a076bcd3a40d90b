//! Time as an argument.
//!
//! Three clocks. The *wall clock* shows civil time, and is set forward and back while programs run. *Monotonic time* measures durations
//! within one process. *Boot time* is elapsed time that continues while the machine is suspended, and that two processes of the same boot
//! share, unless they are in different time namespaces: with the clock's identity it measures the time for which a store was closed.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::hash::hash64;

/// Source of wall-clock, monotonic and boot time.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the Unix epoch; goes back when the clock is set.
    fn wall_ns(&self) -> u64;
    /// Nanoseconds since an arbitrary moment; never goes back.
    fn monotonic_ns(&self) -> u64;
    /// Nanoseconds since the machine was started, suspension included; never goes back.
    fn boot_ns(&self) -> u64;
    /// The identity of the clock of [`Self::boot_ns`]; zeros if it is unknown. Two readings with the same identity have the same origin:
    /// the same start of the machine, and the same offset of the time namespace.
    fn boot_id(&self) -> [u8; 16];
}

/// A process that reads the clock this much later than intended was stopped, or had no CPU.
pub const STALL: Duration = Duration::from_secs(1);

/// Returns the part of `elapsed` that counts as silence of a peer, between two looks at the clock that were meant to be at most
/// `period` apart.
///
/// A reading that is late by [`STALL`] counts nothing: bytes that came while this process was stopped have not been read yet.
#[must_use]
pub fn awake_time(elapsed: Duration, period: Duration) -> Duration {
    if elapsed >= period.saturating_add(STALL) { Duration::ZERO } else { elapsed.min(period) }
}

/// A clock for the timeouts of peers: it stops while this process is stopped. Its owner reads it at least once a period.
#[derive(Clone, Copy, Debug)]
pub struct AwakeClock {
    period: Duration,
    looked_ns: u64,
    awake_ns: u64,
}

impl AwakeClock {
    /// A clock that shows `now_ns`, the monotonic time, and is read once in `period` or more often.
    #[must_use]
    pub fn new(now_ns: u64, period: Duration) -> Self {
        Self { period, looked_ns: now_ns, awake_ns: now_ns }
    }

    /// Reads the clock when monotonic time is `now_ns`; returns the nanoseconds that it shows.
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
            namespace_offset().map_or([0; 16], |offset| clock_id(id_of(&text), &offset))
        });
        *ID
    }
}

/// The inode of the initial time namespace, a constant of the kernel.
const INITIAL_TIME_NAMESPACE: u64 = 0xEFFF_FFFA;

/// The offset of the boot-time clock of this process from that of the machine, as text; empty if they are the same
/// clock, and `None` if that cannot be determined.
fn namespace_offset() -> Option<String> {
    let inode = |name: &str| match std::fs::metadata(format!("/proc/self/ns/{name}")) {
        Ok(found) => Some(found.ino()),
        // The kernel has no time namespaces.
        Err(error) if error.kind() == ErrorKind::NotFound => Some(INITIAL_TIME_NAMESPACE),
        Err(_) => None,
    };
    let namespace = inode("time")?;
    if namespace == INITIAL_TIME_NAMESPACE {
        return Some(String::new());
    }
    // The offsets are those of the namespace for children. It differs from that of the process after `unshare`.
    if inode("time_for_children")? != namespace {
        return Some(format!("namespace {namespace}"));
    }
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").ok()?;
    boot_offset(&offsets)
}

/// The line for the boot-time clock in the text of `timens_offsets`; empty if it is zero.
fn boot_offset(offsets: &str) -> Option<String> {
    let mut words = offsets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = words.find(|words| words.first() == Some(&"boottime"))?;
    let is_zero = line[1..].iter().all(|&number| number == "0");
    Some(if is_zero { String::new() } else { line.join(" ") })
}

/// The identity of a clock: that of the boot, changed by the offset of a time namespace if there is one.
fn clock_id(boot: [u8; 16], offset: &str) -> [u8; 16] {
    if boot == [0; 16] || offset.is_empty() {
        return boot;
    }
    (u128::from_be_bytes(boot) ^ u128::from(hash64(offset.as_bytes()))).to_be_bytes()
}

/// The id in a text of 32 hexadecimal digits, with hyphens; zeros if it is not one.
fn id_of(text: &str) -> [u8; 16] {
    let digits: String = text.trim().chars().filter(|&digit| digit != '-').collect();
    if digits.len() == 32 { u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes() } else { [0; 16] }
}

/// Clocks that move only by calls.
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
    /// Clocks that all show `ns`.
    #[must_use]
    pub fn new(ns: u64) -> Self {
        Self { wall: AtomicU64::new(ns), boot: AtomicU64::new(ns), boots: AtomicU64::new(1) }
    }

    /// Lets `ns` nanoseconds pass, on all clocks.
    pub fn advance(&self, ns: u64) {
        self.wall.fetch_add(ns, Ordering::Relaxed);
        self.boot.fetch_add(ns, Ordering::Relaxed);
    }

    /// Sets the wall clock; no time passes.
    pub fn set_wall(&self, ns: u64) {
        self.wall.store(ns, Ordering::Relaxed);
    }

    /// Sets the wall clock `by_ns` nanoseconds forward, or back to the epoch at most; no time passes.
    pub fn step_wall(&self, by_ns: i64) {
        let _ = self
            .wall
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |wall| Some(wall.saturating_add_signed(by_ns)));
    }

    /// The process moves to a time namespace whose boot-time clock differs by `by_ns`. Monotonic time, too, so no store
    /// may be open.
    pub fn enter_time_namespace(&self, by_ns: i64) {
        self.boots.fetch_add(1 << 32, Ordering::Relaxed);
        self.skew_boot(by_ns);
    }

    /// The boot-time clock jumps and keeps its identity, as in a virtual machine that is restored from a snapshot.
    pub fn skew_boot(&self, by_ns: i64) {
        let skewed = |boot: u64| Some(boot.saturating_add_signed(by_ns));
        let _ = self.boot.try_update(Ordering::Relaxed, Ordering::Relaxed, skewed);
    }

    /// The machine restarts: boot time starts at 0. Monotonic time, too, so no store may be open.
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
    fn boot_ids_parse_and_malformed_ones_do_not() {
        let id = id_of("00112233-4455-6677-8899-aabbccddeeff\n");
        assert_eq!((id[0], id[1], id[15]), (0x00, 0x11, 0xff));
        for odd in ["", "00112233-4455-6677-8899-aabbccddee", "0011223344556677889900aabbccddeezz"] {
            assert_eq!(id_of(odd), [0; 16]);
        }
    }

    #[test]
    fn time_namespace_offset_changes_clock_identity() {
        let boot = id_of("00112233-4455-6677-8899-aabbccddeeff");
        let id = |offsets| boot_offset(offsets).map(|offset| clock_id(boot, &offset));
        let shifted = id("monotonic           0         0\nboottime    100000000         0\n");
        assert!(shifted.is_some_and(|id| id != boot));
        assert_eq!(shifted, id("monotonic  7 0\nboottime 100000000 0\n"), "only boot time counts");
        assert_ne!(shifted, id("monotonic  0 0\nboottime 100000000 1\n"));
        assert_ne!(shifted, id("monotonic  0 0\nboottime -100000000 0\n"));
        // Stores without a time namespace keep the identity that they know.
        assert_eq!(id("monotonic           5         0\nboottime            0         0\n"), Some(boot));
        assert_eq!(id(""), None, "unknown");
        assert_eq!(clock_id([0; 16], "boottime 1 0"), [0; 16], "unknown stays unknown");
    }

    /// Run again in a time namespace: prints the identity of its clock there.
    #[test]
    fn process_in_time_namespace_has_other_clock() {
        let clock = |name: &str| format!("{name}={:x}", u128::from_be_bytes(SystemClock::new().boot_id()));
        if std::env::var_os("SHOAL_PRINT_CLOCK").is_some() {
            println!("{};", clock("clock"));
            return;
        }
        let shifted = |offset: &str| {
            let mut command = std::process::Command::new("unshare");
            command.args(["-T", "--boottime", offset]).arg(std::env::current_exe().unwrap());
            command.args(["a_process_in_a_time_namespace", "--nocapture"]).env("SHOAL_PRINT_CLOCK", "1");
            let output = command.output().ok().filter(|output| output.status.success())?;
            let output = String::from_utf8(output.stdout).unwrap();
            Some(output.split("clock=").nth(1)?.split(';').next()?.to_owned())
        };
        let (Some(ahead), Some(same)) = (shifted("100000000"), shifted("0")) else {
            println!("skipped: this machine makes no time namespace");
            return;
        };
        let own = clock("");
        assert_ne!(format!("={ahead}"), own);
        assert_eq!(format!("={same}"), own, "an offset of zero is the same clock");
    }

    #[test]
    fn boot_id_and_uptime_are_read() {
        let (one, other) = (SystemClock::new(), SystemClock::new());
        let before = one.boot_ns();
        assert!(before > 0 && other.boot_ns() >= before);
        assert_eq!(one.boot_id(), other.boot_id());
    }

    /// Symptom: a server that was stopped for 70 s closed clients as silent. Cause: timers counted the time for which it was stopped. Fix:
    /// a late reading counts nothing.
    #[test]
    fn process_stop_does_not_count_as_peer_silence() {
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
    fn wall_clock_step_leaves_monotonic_time() {
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
