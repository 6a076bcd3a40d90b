//! The surroundings of a figure: the machine, other work on it, and the resources of this process: processor time, memory, and
//! written bytes.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

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
    fn used_memory_is_counted() {
        let before = Memory::now();
        let memory = std::hint::black_box(vec![1_u8; 64 << 20]);
        let now = Memory::now();
        assert!(now.anonymous >= before.anonymous + (32 << 20), "{before:?} {now:?}");
        assert!(now.resident >= now.anonymous && memory.len() == 64 << 20);
        assert_eq!(figure("a: 1\nwrite_bytes: 23 B\n", "write_bytes:"), Some(23));
        assert_eq!(figure("a: 1\n", "write_bytes:"), None);
    }
}
