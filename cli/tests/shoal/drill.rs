//! The drill of `docs/operate/backup.md` with a disaster at its end: a store under load, a backup and an increment, a kill, a data file
//! full of flipped bits, a restore, and every object compared with the acknowledged state at the version of the increment.
//!
//! `SHOAL_DRILL_MIB=2048` runs it with that many MiB of objects (24 without).

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use shoal_base::entropy::{Entropy, SeededEntropy};
use shoal_client::{ByteRange, Client, ConnectOptions, ListRequest, PutOptions, RejectRules};

use crate::harness::{Done, assert_clean, check, command, run, run_with, started};
use crate::machine::disk_folder;

/// Objects of 0 to 64 KiB, 32 KiB in the mean.
const BYTES_MAX: u64 = 64 << 10;
const BUCKET: &str = "drill";
/// Writers at a time; each has separate keys, so that it knows their states.
const WRITERS: u32 = 8;
const FLIPS: u64 = 1_000;

/// A state of an object: its version, its number, and the round that put it; none if it was deleted.
type State = (u64, u32, Option<u32>);

fn mib() -> u32 {
    std::env::var("SHOAL_DRILL_MIB").map_or(24, |mib| mib.parse().expect("SHOAL_DRILL_MIB is a number"))
}

fn key(which: u32) -> Vec<u8> {
    format!("{:08x}/{which}", which.wrapping_mul(0x9E37_79B9)).into_bytes()
}

fn value(which: u32, round: u32) -> Bytes {
    let random = SeededEntropy::new(u64::from(which) << 32 | u64::from(round));
    let bytes = (random.next_u64() % (BYTES_MAX + 1)) as usize;
    shoal_testkit::bytes::random(bytes, random.next_u64()).into()
}

async fn connect(url: &str) -> Client {
    Client::connect(ConnectOptions::new(url)).await.unwrap()
}

/// Puts the objects of a writer once, then overwrites, deletes and puts them until the stop; notes the acknowledged states.
async fn write(
    client: &Client,
    writer: u32,
    objects: u32,
    filled: &AtomicU32,
    stop: &AtomicBool,
) -> Vec<State> {
    let mut states = Vec::new();
    for round in 0.. {
        for which in (writer..objects).step_by(WRITERS as usize) {
            if round > 0 && stop.load(Ordering::Acquire) {
                return states;
            }
            let name = key(which);
            let is_put = round == 0 || !(which / WRITERS + round).is_multiple_of(5);
            let version = if is_put {
                client.put(BUCKET, &name, value(which, round), PutOptions::default()).await.unwrap().version
            } else {
                client.delete(BUCKET, &name, RejectRules::default()).await.unwrap().version
            };
            states.push((version.0, which, is_put.then_some(round)));
        }
        if round == 0 {
            filled.fetch_add(1, Ordering::Release);
        }
    }
    unreachable!("the writer is told to stop")
}

/// The objects at a version, each with the round that put it.
fn state_at(version: u64, states: &[State]) -> BTreeMap<Vec<u8>, (u32, u32)> {
    let mut expected = BTreeMap::new();
    for &(_, which, round) in states.iter().filter(|(put, ..)| *put <= version) {
        match round {
            Some(round) => expected.insert(key(which), (which, round)),
            None => expected.remove(&key(which)),
        };
    }
    expected
}

/// Compares all objects of a server with the expected state; returns their number.
async fn compare(client: &Client, expected: &BTreeMap<Vec<u8>, (u32, u32)>) -> usize {
    let mut expected = expected.iter();
    let mut request = ListRequest { bucket: BUCKET.into(), ..ListRequest::default() };
    let mut objects = 0;
    loop {
        let page = client.list(&request).await.unwrap();
        for entry in &page.entries {
            let (name, &(which, round)) = expected.next().expect("no object too many");
            assert_eq!(entry.key, name);
            let object = client.get(BUCKET, name, ByteRange::ALL).await.unwrap().expect("it was listed");
            assert!(
                object.value.to_vec() == value(which, round),
                "object {which} is not that of round {round}"
            );
            objects += 1;
        }
        match page.next {
            Some(next) => request.start_after = next,
            None => break,
        }
    }
    assert!(expected.next().is_none(), "no object is missing");
    objects
}

fn flip_bits(data: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(data).unwrap();
    let bytes = file.metadata().unwrap().len();
    let random = SeededEntropy::new(7);
    for _ in 0..FLIPS {
        let (at, bit) = (random.next_u64() % bytes, random.next_u64() % 8);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0] ^= 1 << bit;
        file.write_all_at(&byte, at).unwrap();
    }
}

fn version_of(done: &Done) -> u64 {
    assert_eq!(done.code, 0, "{}", done.stderr);
    done.json()["version"].as_u64().unwrap()
}

#[test]
fn a_store_comes_back_from_a_backup_and_an_increment() {
    let objects = (u64::from(mib()) << 20) / (BYTES_MAX / 2);
    let objects = u32::try_from(objects).unwrap();
    let folder = disk_folder();
    let at = |name: &str| folder.path().join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    let size = format!("{}M", 4 * mib() + 128);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let serve = |name: &str| {
        let listen =
            ["serve", "--listen", "127.0.0.1:0", "--size", &size, "--cache", "64M", "--log", "error"];
        started(command(&[&listen[..], &["--data", &text(name)]].concat()))
    };
    let (mut server, url) = serve("data");
    let client = runtime.block_on(connect(&url));
    let (filled, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let states = Mutex::new(Vec::new());
    let backup = |words: &[&str]| {
        let mut command = command(&[&["backup", "--json"][..], words].concat());
        command.env("SHOAL_SERVER", &url);
        version_of(&run_with(command, b""))
    };
    let (full, version) = std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (runtime, client, filled, stop, states) = (&runtime, &client, &filled, &stop, &states);
            scope.spawn(move || {
                let noted = runtime.block_on(write(client, writer, objects, filled, stop));
                states.lock().unwrap().extend(noted);
            });
        }
        while filled.load(Ordering::Acquire) < WRITERS {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let full = backup(&[&text("full")]);
        std::thread::sleep(std::time::Duration::from_millis(200));
        let version = backup(&[&text("increment"), "--incremental-from", &text("full")]);
        stop.store(true, Ordering::Release);
        (full, version)
    });
    server.kill().unwrap();
    server.wait().unwrap();
    flip_bits(&at("data"));
    assert_ne!(check(&at("data"), &[]).code, 0, "the damage is seen");
    let mut states = states.into_inner().unwrap();
    states.sort_unstable();
    let between = states.iter().filter(|(put, ..)| (full + 1..=version).contains(put)).count();
    assert!(between > 0, "something was written between the two backups");
    let restored = run(&[
        "restore",
        "--data",
        &text("new"),
        "--size",
        &size,
        &text("full"),
        &text("increment"),
        "--json",
    ]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    let (mut server, url) = serve("new");
    let expected = state_at(version, &states);
    let same = runtime.block_on(async { compare(&connect(&url).await, &expected).await });
    assert_eq!(same, expected.len());
    let bytes = |name: &str| fs::metadata(at(name)).unwrap().len() >> 20;
    println!(
        "{same} objects are as they were; {between} writes between a backup of {} MiB and an increment of {} MiB",
        bytes("full"),
        bytes("increment")
    );
    server.kill().unwrap();
    server.wait().unwrap();
    assert_clean(&at("new"));
}
