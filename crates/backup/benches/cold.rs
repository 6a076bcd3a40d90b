//! A backup from a cold cache: `cargo bench -p shoal-backup --bench cold -- FILE [DELAY_US [ROUNDS]]`.
//!
//! FILE is one that `--bench cold` of `shoal-engine` made. The cache has 1 MiB, the bytes of the backup are thrown away, and every read
//! takes longer by the delay than from the file.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use shoal_backup::BackupStream;
use shoal_device::{FileOptions, open};
use shoal_engine::{Environment, OpenOptions, Store, block_on};
use shoal_testkit::device::Late;
use shoal_testkit::task::run_as_runtime;

const CACHE_BYTES: usize = 1 << 20;

/// The bytes of a whole backup.
async fn backup(store: &Store) -> usize {
    let mut stream = BackupStream::begin(store, 1).await.expect("a snapshot");
    let mut bytes = 0;
    while let Some(some) = stream.next().await.expect("the store reads") {
        bytes += some.len();
    }
    bytes
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let path = PathBuf::from(arguments.next().expect("a file"));
    let mut number = |default: u64| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (delay, rounds) = (Duration::from_micros(number(0)), number(1));
    for _ in 0..rounds {
        let device = open(&path, &FileOptions::default()).expect("the file opens");
        let device = Late::over(device.inner().clone(), delay);
        let options = OpenOptions { cache_bytes: CACHE_BYTES, read_only: true, ..OpenOptions::default() };
        let store = block_on(Store::open(device.clone(), options, Environment::default())).expect("open");
        let (before, start) = (device.counters(), Instant::now());
        let bytes = run_as_runtime(backup(&store));
        let (seconds, after) = (start.elapsed().as_secs_f64(), device.counters());
        println!(
            "backup {seconds:>8.3} s  {:>6.0} MiB/s  {:>8} reads  {:>6} MiB read",
            bytes as f64 / f64::from(1 << 20) / seconds,
            after.reads - before.reads,
            (after.blocks_read - before.blocks_read) >> 8,
        );
    }
}
