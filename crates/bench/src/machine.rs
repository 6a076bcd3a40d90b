//! The surroundings of a figure: the machine, other work on it, and the processor time of this process.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Cores, memory and kernel in one line.
#[must_use]
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = read("/proc/meminfo");
    let kib = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<u64>().ok())
        .unwrap_or_default();
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

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_known_about_the_machine() {
        assert!(describe().contains("cores"));
        assert_eq!(load().split(' ').count(), 3);
        let before = cpu_time();
        assert!((0..1_000_000_u64).map(std::hint::black_box).sum::<u64>() > 0);
        assert!(cpu_time() > before);
    }
}
