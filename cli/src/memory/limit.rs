//! The memory limit of this program: the memory of the machine, or the limit of its control group (a container, a systemd unit).

use std::fs;
use std::path::{Path, PathBuf};

use crate::arguments::size::Size;

/// Divisor of the machine's memory for a server without a control group: other programs run there.
const MACHINE_SHARE: u64 = 2;

/// Divisor of the memory for the cache of a command: the rest is for values in flight, recent writes and others.
const CACHE_SHARE: u64 = 8;

/// The smallest default cache, in bytes.
const CACHE_MIN: u64 = 16 << 20;

/// A program with less memory returns freed memory at once.
const SCARCE_BELOW: u64 = 512 << 20;

/// Returns true if this program may use little memory.
pub(crate) fn is_scarce() -> bool {
    limit(Path::new("/")).is_some_and(|limit| limit < SCARCE_BELOW)
}

/// The default maximum memory of a server: the limit of its control group, or half of the machine's memory. None if the system
/// reports neither.
pub(crate) fn default_memory() -> Option<Size> {
    memory_within(Path::new("/"))
}

fn memory_within(root: &Path) -> Option<Size> {
    let machine = machine(root);
    match (limit(root), machine) {
        (Some(limit), Some(machine)) if limit >= machine => Some(Size(machine / MACHINE_SHARE)),
        (limit, _) => limit.map(Size),
    }
}

/// The cache of a command that opens a data file: `usual`, or an eighth of the memory limit if that is less.
pub(crate) fn default_cache(usual: Size) -> Size {
    cache_within(usual, limit(Path::new("/")))
}

fn cache_within(usual: Size, limit: Option<u64>) -> Size {
    let share = limit.map_or(u64::MAX, |limit| (limit / CACHE_SHARE).max(CACHE_MIN));
    Size(usual.0.min(share))
}

/// The memory limit in the files below `root`; none if they have no limit.
pub(crate) fn limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    groups.lines().filter_map(|line| of_group(root, line)).chain(machine(root)).min()
}

/// The smallest limit of a control group and its parents; `line` is `NUMBER:CONTROLLERS:PATH`.
fn of_group(root: &Path, line: &str) -> Option<u64> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let (hierarchy, file) = match controllers {
        // Version 2 has one hierarchy of all controllers; beside version 1 it is in a separate folder.
        "" => (vec!["sys/fs/cgroup", "sys/fs/cgroup/unified"], "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            (vec!["sys/fs/cgroup/memory"], "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let groups = hierarchy.into_iter().flat_map(|hierarchy| {
        let top = root.join(hierarchy);
        let own = top.join(path.trim_start_matches('/'));
        // In a container the path may be that of the machine, of which only the top is visible.
        let groups: Vec<PathBuf> =
            own.ancestors().take_while(|group| group.starts_with(&top)).map(Path::to_owned).collect();
        groups
    });
    groups.filter_map(|group| parse(&fs::read_to_string(group.join(file)).ok()?)).min()
}

/// A limit in bytes. `max` is none; version 1 has a number above all memory, with the same effect.
fn parse(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// All memory of the machine.
fn machine(root: &Path) -> Option<u64> {
    let all = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The limit that follows from these files (path below the root, content).
    fn limit_of(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        limit(root.path())
    }

    #[test]
    fn cgroup_v2_uses_smallest_limit_on_path() {
        let group = ("proc/self/cgroup", "0::/system.slice/shoal.service\n");
        let own = "sys/fs/cgroup/system.slice/shoal.service/memory.max";
        assert_eq!(limit_of(&[group, (own, "536870912\n")]), Some(512 * MIB));
        assert_eq!(limit_of(&[group, (own, "max\n")]), None);
        let outer = ("sys/fs/cgroup/system.slice/memory.max", "1048576\n");
        assert_eq!(limit_of(&[group, (own, "536870912\n"), outer]), Some(MIB));
        assert_eq!(limit_of(&[group, (own, "max\n"), outer]), Some(MIB));
        // A container sees its own group as the top.
        let top = ("sys/fs/cgroup/memory.max", "1073741824\n");
        assert_eq!(limit_of(&[("proc/self/cgroup", "0::/\n"), top]), Some(1024 * MIB));
        assert_eq!(limit_of(&[("proc/self/cgroup", "0::/../../elsewhere\n"), top]), Some(1024 * MIB));
    }

    #[test]
    fn cgroup_v1_uses_memory_hierarchy() {
        let group =
            ("proc/self/cgroup", "12:cpu,cpuacct:/x\n7:memory:/docker/ab12\n1:name=systemd:/y\n0::/z\n");
        let own = "sys/fs/cgroup/memory/docker/ab12/memory.limit_in_bytes";
        let top = "sys/fs/cgroup/memory/memory.limit_in_bytes";
        let none = "9223372036854771712\n";
        assert_eq!(limit_of(&[group, (own, "268435456\n"), (top, none)]), Some(256 * MIB));
        // The path is that of the machine; the container's own limit is at its top.
        assert_eq!(limit_of(&[group, (top, "134217728\n")]), Some(128 * MIB));
        let machine = ("proc/meminfo", "MemFree:  5 kB\nMemTotal:       2048 kB\n");
        assert_eq!(limit_of(&[group, (top, none), machine]), Some(2 * MIB));
    }

    #[test]
    fn missing_or_malformed_files_set_no_limit() {
        assert_eq!(limit_of(&[]), None);
        let strange = [("proc/self/cgroup", "nonsense\n:\n0::\n"), ("sys/fs/cgroup/memory.max", "-1\n")];
        assert_eq!(limit_of(&strange), None);
        assert_eq!(limit_of(&[("proc/meminfo", "MemTotal: many kB\n")]), None);
        assert!(limit(Path::new("/")).is_some(), "this machine has memory");
    }

    #[test]
    fn command_cache_is_at_most_an_eighth_of_memory() {
        let usual = Size(256 * MIB);
        assert_eq!(cache_within(usual, None), usual);
        assert_eq!(cache_within(usual, Some(2 << 30)), usual);
        assert_eq!(cache_within(usual, Some(512 * MIB)), Size(64 * MIB));
        assert_eq!(cache_within(usual, Some(0)), Size(CACHE_MIN));
    }

    #[test]
    fn server_budget_is_cgroup_limit_or_half_of_machine() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        assert_eq!(memory_within(root.path()), None);
        write("proc/meminfo", "MemTotal: 4194304 kB\n");
        assert_eq!(memory_within(root.path()), Some(Size(2048 * MIB)));
        write("proc/self/cgroup", "0::/\n");
        write("sys/fs/cgroup/memory.max", "max\n");
        assert_eq!(memory_within(root.path()), Some(Size(2048 * MIB)));
        write("sys/fs/cgroup/memory.max", "536870912\n");
        assert_eq!(memory_within(root.path()), Some(Size(512 * MIB)));
        write("sys/fs/cgroup/memory.max", "8589934592\n");
        assert_eq!(memory_within(root.path()), Some(Size(2048 * MIB)), "more than the machine has");
    }
}
