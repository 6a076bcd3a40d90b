//! A server without clients sleeps: it has few threads, and no timer that polls.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Frontends, command, run_with};

/// Wake-ups a second of the whole process. Three timers of a tenth of a second together exceed it; without clients about three a second
/// remain: the watch of the data file every three seconds, and each thread's look every ten.
const WAKE_UPS_MAX: u64 = 30;
const WINDOW: Duration = Duration::from_secs(3);
/// The applies and seals of the last writes are over by then.
const QUIET_WITHIN: Duration = Duration::from_secs(60);
/// The store's own threads.
const OF_THE_STORE: [&str; 5] = ["shoal-apply", "shoal-commit", "shoal-merge", "shoal-room", "shoal-tidy"];

/// The folder of each thread of the process, its name, and the number of times that it went to sleep.
fn threads(pid: u32) -> BTreeMap<PathBuf, (String, u64)> {
    let folders = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let threads = folders.filter_map(|folder| {
        let folder = folder.ok()?.path();
        let name = fs::read_to_string(folder.join("comm")).ok()?.trim().to_owned();
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some((folder, (name, sleeps.trim().parse().ok()?)))
    });
    // The kernel's own threads of a ring.
    threads.filter(|(_, (name, _))| !name.starts_with("iou-")).collect()
}

/// The sleeps of each thread in one window.
fn sleeps_in_a_window(pid: u32) -> Vec<(String, u64)> {
    let before = threads(pid);
    thread::sleep(WINDOW);
    let sleeps = threads(pid).into_iter().map(|(folder, (name, after))| {
        let before = before.get(&folder).map_or(0, |(_, before)| *before);
        (name, after - before)
    });
    sleeps.collect()
}

/// Voluntary switches do not rise with the load of other processes: a thread makes one when it waits. A loaded machine only delays
/// the quiet, so the quietest window of a minute counts.
#[test]
fn a_server_without_clients_sleeps() {
    let folder = tempfile::tempdir().unwrap();
    let server = Frontends::start(Frontends::command(&folder.path().join("data"), "256M"));
    let client = |arguments: &[&str]| {
        let mut command = command(arguments);
        command.env("SHOAL_SERVER", server.grpc.trim());
        run_with(command, b"value")
    };
    for number in 0..20 {
        assert_eq!(client(&["put", &format!("key {number}"), "-"]).code, 0);
    }
    // A deadline that is far away: the clocks are stored every ten seconds.
    assert_eq!(client(&["put", "for a day", "-", "--ttl", "1d"]).code, 0);
    let began = Instant::now();
    let limit = WAKE_UPS_MAX * WINDOW.as_secs();
    loop {
        let sleeps = sleeps_in_a_window(server.pid());
        if sleeps.iter().map(|(_, count)| count).sum::<u64>() <= limit {
            break;
        }
        assert!(began.elapsed() < QUIET_WITHIN, "more than {limit} in {WINDOW:?}: {sleeps:?}");
    }
    let mut of_the_store: Vec<String> = threads(server.pid()).into_values().map(|(name, _)| name).collect();
    of_the_store.retain(|name| {
        let is_other = ["shoal-redis", "shoal-stop"].contains(&name.as_str()) || name.starts_with("shoal-io");
        name.starts_with("shoal-") && !is_other
    });
    of_the_store.sort_unstable();
    assert_eq!(of_the_store, OF_THE_STORE);
    // It wakes up for a client, which is not counted among the clients.
    let shown = client(&["stat"]);
    let line = |name: &str| shown.text().lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("objects").contains("21, "), "{}", shown.text());
    assert!(line("connections").contains("grpc 0, redis 0"), "{}", shown.text());
    assert!(line("requests").contains("grpc 0 a second"), "{}", shown.text());
    server.stop();
}
