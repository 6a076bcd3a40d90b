//! Memory and processor time of the process, as the system tells them.

use rustix::param::{clock_ticks_per_second, page_size};

/// Time on a core, in seconds, and memory, in bytes. Zero where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub user_seconds: f64,
    pub system_seconds: f64,
    pub resident_bytes: u64,
    pub resident_most_bytes: u64,
}

impl Usage {
    /// Of this process, now.
    pub(crate) fn now() -> Self {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
        Self::parse(&read("stat"), &read("status"), clock_ticks_per_second(), page_size() as u64)
    }

    fn parse(stat: &str, status: &str, ticks_a_second: u64, page_bytes: u64) -> Self {
        // The name of the program stands in brackets, and may have spaces in it.
        let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let number =
            |at: usize| behind_name.split_whitespace().nth(at).and_then(|word| word.parse::<u64>().ok());
        let seconds = |at| number(at).unwrap_or(0) as f64 / ticks_a_second.max(1) as f64;
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let most_kib =
            most.and_then(|text| text.trim().strip_suffix(" kB")).and_then(|text| text.parse::<u64>().ok());
        let resident_bytes = number(21).unwrap_or(0) * page_bytes;
        Self {
            user_seconds: seconds(11),
            system_seconds: seconds(12),
            resident_bytes,
            resident_most_bytes: (most_kib.unwrap_or(0) * 1024).max(resident_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_words_are_understood() {
        let stat = "7 (a (b) c) S 1 1 1 0 -1 4194304 10 0 0 0 250 75 0 0 20 0 1 0 100 1000000 300 18446744073709551615";
        let usage = Usage::parse(stat, "Name:\tx\nVmHWM:\t    2048 kB\n", 100, 4096);
        let expected = Usage {
            user_seconds: 2.5,
            system_seconds: 0.75,
            resident_bytes: 300 * 4096,
            resident_most_bytes: 2 << 20,
        };
        assert_eq!(usage, expected);
        assert_eq!(Usage::parse("", "", 100, 4096), Usage::default());
    }

    #[test]
    fn this_process_uses_memory() {
        let usage = Usage::now();
        assert!(usage.resident_bytes > 0 && usage.resident_most_bytes >= usage.resident_bytes, "{usage:?}");
    }
}
