//! Memory, processor time and files of the process, as the system reports them.

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// Time on a core in seconds, memory in bytes, files and threads. Zero for a figure that the system does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Time in the program.
    pub user_seconds: f64,
    /// Time in the system.
    pub system_seconds: f64,
    /// Memory now.
    pub resident_bytes: u64,
    /// The peak of its memory.
    pub resident_most_bytes: u64,
    /// Address space.
    pub virtual_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// The moment of its start, in seconds of the Unix epoch.
    pub started_s: f64,
    /// Open file descriptors.
    pub open_files: u64,
    /// The limit of open file descriptors; none: there is no limit.
    pub open_files_max: Option<u64>,
}

fn read(file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{file}")).unwrap_or_default()
}

impl Usage {
    /// Of this process, now.
    #[must_use]
    pub fn now() -> Self {
        let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Self {
            // One of them is the folder being read.
            open_files: (files as u64).saturating_sub(1),
            open_files_max: getrlimit(Resource::Nofile).current,
            ..Self::read([&read("self/stat"), &read("self/status"), &read("stat")])
        }
    }

    /// Its processor time, present memory and threads, for a caller that asks every second: open files are not counted, which takes longer
    /// the more there are, and nor are the other figures that change seldom.
    #[must_use]
    pub fn brief() -> Self {
        Self::read([&read("self/stat"), "", ""])
    }

    fn read(texts: [&str; 3]) -> Self {
        Self::parse(texts, clock_ticks_per_second(), page_size() as u64)
    }

    /// From the texts of the system about the process, its memory, and the machine.
    fn parse([stat, status, machine]: [&str; 3], ticks_a_second: u64, page_bytes: u64) -> Self {
        // The name of the program is in brackets, and may contain spaces.
        let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let number =
            |at: usize| behind_name.split_whitespace().nth(at).and_then(|word| word.parse::<u64>().ok());
        let seconds = |at| number(at).unwrap_or(0) as f64 / ticks_a_second.max(1) as f64;
        let value = |text: &str, name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
            rest.trim().trim_end_matches(" kB").parse::<u64>().ok()
        };
        let resident_bytes = number(21).unwrap_or(0) * page_bytes;
        Self {
            user_seconds: seconds(11),
            system_seconds: seconds(12),
            resident_bytes,
            resident_most_bytes: (value(status, "VmHWM:").unwrap_or(0) * 1024).max(resident_bytes),
            virtual_bytes: number(20).unwrap_or(0),
            threads: number(17).unwrap_or(0),
            started_s: value(machine, "btime ").map_or(0.0, |boot_s| boot_s as f64 + seconds(19)),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let stat = "7 (a (b) c) S 1 1 1 0 -1 4194304 10 0 0 0 250 75 0 0 20 0 3 0 100 1000000 300 18446744073709551615";
        let usage = Usage::parse([stat, "Name:\tx\nVmHWM:\t    2048 kB\n", "cpu 1\nbtime 1000\n"], 100, 4096);
        let expected = Usage {
            user_seconds: 2.5,
            system_seconds: 0.75,
            resident_bytes: 300 * 4096,
            resident_most_bytes: 2 << 20,
            virtual_bytes: 1_000_000,
            threads: 3,
            started_s: 1001.0,
            ..Usage::default()
        };
        assert_eq!(usage, expected);
        assert_eq!(Usage::parse([""; 3], 100, 4096), Usage::default());
    }

    #[test]
    fn this_process_uses_memory() {
        let usage = Usage::now();
        assert!(usage.resident_bytes > 0 && usage.resident_most_bytes >= usage.resident_bytes, "{usage:?}");
        let brief = Usage::brief();
        assert!(brief.resident_bytes > 0 && brief.threads > 0 && brief.open_files == 0, "{brief:?}");
        assert!(usage.open_files > 0 && usage.threads > 0 && usage.started_s > 1e9, "{usage:?}");
    }
}
