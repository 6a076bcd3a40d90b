//! The price of the first write of allocated blocks, of the file system alone: `cargo bench -p shoal-device --bench first_write -- FILE [MIB [ROUNDS]]`.
//!
//! Clients write values of 64 KiB side by side into an allocated file, without Shoal; then one of them writes a block of a log and flushes
//! for all, as a commit does. The second pass writes the same blocks again. The ratio is the most that a store can reach on this file
//! system for values on a fresh file, unless it writes zeros ahead.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use shoal_base::BLOCK_BYTES;
use shoal_device::{FileOptions, IoBuf};

const VALUE_BLOCKS: usize = 16;
const VALUE_BYTES: usize = VALUE_BLOCKS * BLOCK_BYTES;
/// The log at the start of the file, which is written before.
const LOG_BLOCKS: usize = 4096;

/// Writes `values` values by `clients` clients to the blocks after the log, and returns puts a second.
fn pass(file: &File, clients: usize, values: usize) -> f64 {
    let (barrier, began) = (Barrier::new(clients), Instant::now());
    let rounds = values / clients;
    let put = |client: usize| {
        let value = IoBuf::new(VALUE_BLOCKS);
        for round in 0..rounds {
            let at = LOG_BLOCKS * BLOCK_BYTES + (round * clients + client) * VALUE_BYTES;
            file.write_all_at(&value, at as u64).expect("a value");
            barrier.wait();
            if client == 0 {
                let block = (round % LOG_BLOCKS) * BLOCK_BYTES;
                file.write_all_at(&value[..BLOCK_BYTES], block as u64).expect("the log");
                file.sync_data().expect("a flush");
            }
            barrier.wait();
        }
    };
    thread::scope(|scope| (0..clients).for_each(|client| drop(scope.spawn(move || put(client)))));
    (rounds * clients) as f64 / began.elapsed().as_secs_f64()
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let path = PathBuf::from(arguments.next().expect("a file that may be overwritten"));
    let mut number =
        |default: usize| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (mib, rounds) = (number(1024), number(3));
    for round in 0..rounds {
        for clients in [1, 16] {
            let values = (mib << 20) / VALUE_BYTES / if clients == 1 { 4 } else { 1 };
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
            let file = options.open(&path).expect("the file opens");
            let device = shoal_device::open(&path, &FileOptions::default()).expect("the file opens");
            device.inner().grow((LOG_BLOCKS + values * VALUE_BLOCKS) as u64).expect("the file grows");
            assert!(device.inner().allocates(), "this file system allocates nothing ahead");
            file.write_all_at(&IoBuf::new(LOG_BLOCKS), 0).expect("the log");
            file.sync_all().expect("a flush");
            let (fresh, written) = (pass(&file, clients, values), pass(&file, clients, values));
            println!(
                "round {round}: {clients:>2} clients: {fresh:>7.0} puts/s fresh, {written:>7.0} written, ratio {:.2}",
                fresh / written
            );
        }
    }
    std::fs::remove_file(&path).expect("the file goes");
}
