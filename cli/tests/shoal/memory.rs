//! Bounded memory (T7): a server under load in a control group with a limit. It lives, its memory stays level, and it stops
//! in order.
//!
//! The same bound is checked against the process's private memory, swap included, at each look: if control groups cannot be made
//! (no root, none mounted), nothing else checks it. The pages of the program's file are not private: the kernel takes them back
//! when memory is short.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shoal_base::{Entropy, SeededEntropy};
use shoal_client::{ByteRange, Client, Error, ListRequest, PutOptions, RejectRules};
use shoal_testkit::Value;
use shoal_testkit::lab;

use crate::harness::assert_clean;
use crate::kill::{CACHE_BYTES, Server};
use crate::machine::{disk_folder, runtime};
use crate::process::{mib, middle, own_memory};

/// Memory that a server with a small cache may take besides it: memtables, I/O memory that is kept, requests and answers of the clients,
/// stacks, and memory that the allocator holds back.
pub(crate) const BESIDE_CACHE_BYTES: u64 = 64 << 20;
const CLIENTS: u64 = 8;
const KEYS: u64 = 3_000;
/// Between two looks at the memory.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The maximum excess of the last quarter over the one before, in hundredths: level, not growing.
pub(crate) const GROWTH_PERCENT_MAX: u64 = 5;
/// A shorter run is still filling its cache: it is held to the limit only.
pub(crate) const LEVEL_AFTER: Duration = Duration::from_secs(20);

/// So often is memory that seems to grow looked at for as long again.
const TIMES_MAX: u64 = 3;

/// A separate control group, and the process in it.
pub(crate) struct Group(PathBuf);

impl Group {
    /// A group with the process. None if the machine does not allow it.
    fn limit(pid: u32, bytes: u64) -> Option<Self> {
        let group = Self::of(&format!("shoal-test-{pid}"), bytes)?;
        fs::write(group.processes(), pid.to_string()).ok()?;
        Some(group)
    }

    /// A group without processes. None if the machine does not allow it.
    pub(crate) fn of(name: &str, bytes: u64) -> Option<Self> {
        let (first, second) = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup");
        let (root, limit) =
            if Path::new(first).exists() { (first, "memory.limit_in_bytes") } else { (second, "memory.max") };
        let group = Self(Path::new(root).join(name));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join(limit), bytes.to_string()).ok()?;
        // A process that leaks shall be killed and not swapped; a machine without swap has neither file, and needs none.
        let with_swap = [("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", bytes)];
        with_swap.iter().for_each(|(file, most)| drop(fs::write(group.0.join(file), most.to_string())));
        Some(group)
    }

    /// The most memory that its processes had, with the pages of files that the kernel kept for them.
    pub(crate) fn peak(&self) -> Option<u64> {
        let files = ["memory.max_usage_in_bytes", "memory.peak"];
        files.iter().find_map(|file| fs::read_to_string(self.0.join(file)).ok()?.trim().parse().ok())
    }

    /// The file that takes the ids of processes.
    pub(crate) fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The process is gone: the group is empty.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Every kind of request, of values of every home, until `end`.
async fn load(client: Client, id: u64, end: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    let dice = SeededEntropy::new(id);
    while !end.load(Ordering::Relaxed) {
        let key = dice.below(KEYS);
        let name = format!("load/{key}").into_bytes();
        let most = [900, 16_000, 70_000, 70_000, 400_000][dice.below(5) as usize];
        let outcome = match dice.below(20) {
            0..9 => {
                let value = Value { key, seed: dice.next_u64(), bytes: dice.below(most) as usize };
                let put = client.put("default", &name, value.to_vec().into(), PutOptions::default());
                put.await.map(drop)
            }
            9..16 => client.get("default", &name, ByteRange::ALL).await.map(drop),
            16..18 => client.delete("default", &name, RejectRules::default()).await.map(drop),
            _ => {
                let request = ListRequest { prefix: "load/".to_owned().into(), ..ListRequest::default() };
                client.list(&request).await.map(drop)
            }
        };
        match outcome {
            // Overload and a full store cost the sender (P4).
            Ok(()) | Err(Error::Busy(_) | Error::Full(_)) => {}
            Err(error) => panic!("under load: {error}"),
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn memory_is_bounded_and_level_under_load() {
    let runtime = runtime();
    let folder = disk_folder();
    let data = folder.path().join("data");
    let mut server = Server::start(&data, "127.0.0.1:0");
    let pid = server.child.id();
    let limit = CACHE_BYTES + BESIDE_CACHE_BYTES;
    let group = Group::limit(pid, limit);
    let (end, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients = (0..CLIENTS).map(|id| {
        let client = runtime.block_on(server.client());
        runtime.spawn(load(client, id, end.clone(), done.clone()))
    });
    let clients: Vec<_> = clients.collect();
    let wanted = Duration::from_secs(lab::number("MEMORY_S", 4));
    let (mut peak, mut times) = (0, 0);
    // The allocator holds back more or less memory; a leak grows each time.
    let (third, last) = loop {
        let (began, mut samples) = (Instant::now(), Vec::new());
        while began.elapsed() < wanted {
            std::thread::sleep(LOOK_EVERY);
            assert_eq!(
                server.child.try_wait().unwrap(),
                None,
                "the server was killed: more than {limit} bytes"
            );
            samples.push(own_memory(pid));
        }
        times += 1;
        peak = samples.iter().copied().max().unwrap().max(peak);
        let quarter = samples.len() / 4;
        let [third, last] =
            [2, 3].map(|place| middle(samples[place * quarter..(place + 1) * quarter].to_vec()));
        let is_level = last <= third + third * GROWTH_PERCENT_MAX / 100;
        if wanted < LEVEL_AFTER || is_level || times == TIMES_MAX {
            break (third, last);
        }
        println!("from {:.1} to {:.1} MiB: looking on", mib(third), mib(last));
    };
    end.store(true, Ordering::Relaxed);
    for client in clients {
        runtime.block_on(client).unwrap();
    }
    println!(
        "{} requests of {CLIENTS} clients in {} s, cache {} MiB, limit {} MiB ({}): at most {:.1} MiB, {:.1} MiB in the \
         third quarter, {:.1} MiB in the last",
        done.load(Ordering::Relaxed),
        wanted.as_secs() * times,
        CACHE_BYTES >> 20,
        limit >> 20,
        if group.is_some() { "control group" } else { "measured" },
        mib(peak),
        mib(third),
        mib(last),
    );
    assert!(peak <= limit, "{peak} bytes at the peak, {limit} are allowed");
    if wanted >= LEVEL_AFTER {
        assert!(last <= third + third * GROWTH_PERCENT_MAX / 100, "it grows: from {third} to {last} bytes");
    }
    server.child.stop();
    assert_clean(&data);
}
