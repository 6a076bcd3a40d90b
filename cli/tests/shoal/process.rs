//! The kernel's figures of a process that is tested.

use std::fs;

/// Linux reports processor time in these units, independent of its internal ones (USER_HZ).
const TICKS_A_SECOND: f64 = 100.0;

/// A field of the process's status, in bytes.
pub(crate) fn status(pid: u32, field: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Its memory, swap included, in bytes.
pub(crate) fn memory(pid: u32) -> u64 {
    status(pid, "VmRSS").unwrap() + status(pid, "VmSwap").unwrap_or(0)
}

/// As [`memory`], without the pages of files, which the kernel has for all.
pub(crate) fn own_memory(pid: u32) -> u64 {
    ["RssAnon", "RssShmem", "VmSwap"].iter().filter_map(|field| status(pid, field)).sum()
}

/// The most memory that it ever had, in bytes.
pub(crate) fn memory_peak(pid: u32) -> u64 {
    status(pid, "VmHWM").unwrap()
}

/// Its open files.
pub(crate) fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Its connections and listeners: the files that come and go with clients. (Each thread opens a ring when it first uses the device, at
/// any time.)
pub(crate) fn sockets(pid: u32) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

/// The seconds of processor time that it has used.
pub(crate) fn processor_seconds(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name, which is in parentheses, may have spaces.
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = [fields[11], fields[12]].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / TICKS_A_SECOND
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

pub(crate) fn middle(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples[samples.len() / 2]
}
