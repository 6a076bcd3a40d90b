//! The surroundings of a figure: the machine, other work on it, and the resources of this process: processor time, memory, and
//! written bytes.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Ticks of `/proc/PID/stat` in a second: the same on all Linux.
const TICKS_PER_S: u64 = 100;

/// Cores, memory and kernel in one line.
#[must_use]
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = read("/proc/meminfo");
    let kib = figure(&memory, "MemTotal:").unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{cores} cores, {:.1} GiB, Linux {}", kib as f64 / f64::from(1 << 20), kernel.trim())
}

/// The load averages over 1, 5 and 15 minutes.
#[must_use]
pub fn load() -> String {
    read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Processor time that this process has used.
#[must_use]
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or_default(), time.tv_nsec.try_into().unwrap_or_default())
}

/// User and system time of a process with all its threads, to a hundredth of a second; `None` if the kernel does not
/// report it.
#[must_use]
pub fn cpu_time_of(process: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in brackets, may contain any character. After it are the fields from the third one on; these are 14 and 15.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS_PER_S))
}

/// Memory of this process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All resident memory, including the pages of mapped files.
    pub resident: u64,
    /// The resident part that belongs to no file.
    pub anonymous: u64,
}

impl Memory {
    /// The current memory; zeros if the kernel does not report it.
    #[must_use]
    pub fn now() -> Self {
        let status = read("/proc/self/status");
        let bytes = |name| figure(&status, name).unwrap_or_default() << 10;
        Self { resident: bytes("VmRSS:"), anonymous: bytes("RssAnon:") }
    }
}

/// Bytes that this process has written to block devices or handed to the kernel for that; `None` if the kernel does not report
/// them.
#[must_use]
pub fn written_bytes() -> Option<u64> {
    figure(&read("/proc/self/io"), "write_bytes:")
}

/// Bytes that a process has read from block devices; `None` if the kernel does not report them.
#[must_use]
pub fn read_bytes_of(process: u32) -> Option<u64> {
    figure(&read(&format!("/proc/{process}/io")), "read_bytes:")
}

/// Resident memory of a process in bytes; `None` if the kernel does not report it.
#[must_use]
pub fn resident_bytes_of(process: u32) -> Option<u64> {
    figure(&read(&format!("/proc/{process}/status")), "VmRSS:").map(|kib| kib << 10)
}

/// The number after `name` in lines of a name and a number.
fn figure(lines: &str, name: &str) -> Option<u64> {
    let rest = lines.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_description_is_not_empty() {
        assert!(describe().contains("cores"));
        assert_eq!(load().split(' ').count(), 3);
        let before = cpu_time();
        assert!((0..1_000_000_u64).map(std::hint::black_box).sum::<u64>() > 0);
        assert!(cpu_time() > before);
    }

    #[test]
    fn process_time_is_sum_of_threads() {
        let own = std::process::id();
        let before = cpu_time_of(own).unwrap();
        let spin = move || while cpu_time_of(own).unwrap() < before + Duration::from_millis(60) {};
        std::thread::spawn(spin).join().unwrap();
        assert!(cpu_time_of(own).unwrap() <= cpu_time() + Duration::from_millis(50));
    }

    #[test]
    fn used_memory_is_counted() {
        let before = Memory::now();
        let memory = std::hint::black_box(vec![1_u8; 64 << 20]);
        let now = Memory::now();
        assert!(now.anonymous >= before.anonymous + (32 << 20), "{before:?} {now:?}");
        assert!(now.resident >= now.anonymous && memory.len() == 64 << 20);
        assert!(resident_bytes_of(std::process::id()).unwrap() >= 32 << 20);
        assert_eq!(figure("a: 1\nwrite_bytes: 23 B\n", "write_bytes:"), Some(23));
        assert_eq!(figure("a: 1\n", "write_bytes:"), None);
    }
}
