//! The cost of a drift of sizes: `cargo bench -p shoal-engine --bench relocation -- [MIB [FILL_PERCENT [TURNOVERS]]]`.
//!
//! Values with a median that grows from 4 to 64 KiB replace each other at random on an in-memory device at a constant fill. For each
//! turnover of the device: bytes put, bytes moved, runs a value, and values in more than four runs. With `paused` as a further word nothing
//! moves.

use std::sync::Arc;
use std::time::Instant;

use shoal_base::{Entropy, SeededEntropy};
use shoal_device::{Device, MemDevice};
use shoal_engine::{
    Environment, Error, FormatOptions, ObjectKey, OpenOptions, PutOptions, RejectRules, Store, StoreStat,
    Tuning, block_on,
};

/// The longest value.
const BYTES_MAX: f64 = 1_000_000.0;

struct Load {
    store: Store,
    random: SeededEntropy,
    live: Vec<u64>,
    next: u64,
    live_bytes_max: u64,
    value: Vec<u8>,
    full: u64,
}

impl Load {
    fn uniform(&self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn length(&self, median: f64) -> usize {
        let normal =
            (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
        (median * normal.exp()).clamp(100.0, BYTES_MAX) as usize
    }

    fn key(which: u64) -> ObjectKey {
        let name = format!("{:016x}", which.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        ObjectKey::new("default", name.as_bytes()).expect("a fine key")
    }

    /// One put, and the deletes that keep the device at its fill.
    fn step(&mut self, median: f64) -> u64 {
        let is_due = self.next.is_multiple_of(64);
        if is_due {
            let mut excess = self.allocated().saturating_sub(self.live_bytes_max);
            while excess > 0 && !self.live.is_empty() {
                let at = (self.random.next_u64() % self.live.len() as u64) as usize;
                let which = self.live.swap_remove(at);
                block_on(self.store.delete(&Self::key(which), RejectRules::default())).expect("a delete");
                excess = excess.saturating_sub(median as u64 * 3 / 2);
            }
        }
        let bytes = self.length(median);
        self.next += 1;
        match block_on(self.store.put(
            &Self::key(self.next),
            self.value[..bytes].to_vec().into(),
            PutOptions::default(),
        )) {
            Ok(_) => self.live.push(self.next),
            Err(Error::Full { .. }) => self.full += 1,
            Err(error) => panic!("{error}"),
        }
        bytes as u64
    }

    fn allocated(&self) -> u64 {
        self.store.stat().allocated_blocks * 4096
    }
}

fn report(what: f64, load: &Load, before: &StoreStat, bytes: u64, since: Instant) -> StoreStat {
    let stat = load.store.stat();
    let evacuated = stat.bytes_evacuated - before.bytes_evacuated;
    let placed = (stat.values_placed - before.values_placed).max(1);
    println!(
        "turnover {what:.1}  {:>5.1} s  put {} MiB  moved: groups {} MiB ({:.4} of put), in all {} MiB  groups emptied {}  runs a value {:.4}  splintered {} of {placed}  full {}  whole groups {}  allocated/device {:.3}",
        since.elapsed().as_secs_f64(),
        bytes >> 20,
        evacuated >> 20,
        evacuated as f64 / bytes.max(1) as f64,
        (stat.moved_bytes - before.moved_bytes) >> 20,
        stat.groups_emptied - before.groups_emptied,
        (stat.runs_placed - before.runs_placed) as f64 / placed as f64,
        stat.values_splintered - before.values_splintered,
        load.full,
        stat.whole_groups,
        stat.allocated_blocks as f64 / stat.device_blocks as f64,
    );
    stat
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if words.is_empty() {
        println!("usage: relocation MIB [FILL_PERCENT [TURNOVERS [paused]]]");
        return;
    }
    let number =
        |at: usize, default: u64| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(default);
    let (mib, fill, turnovers) = (number(0, 1024), number(1, 90), number(2, 5));
    let blocks = mib * 256;
    let device = Device::new(Arc::new(MemDevice::new(blocks)));
    block_on(Store::format(&device, &FormatOptions::for_blocks(blocks), &Environment::default()))
        .expect("format");
    let options = OpenOptions {
        cache_bytes: 64 << 20,
        pause_relocation: words.iter().any(|word| word == "paused"),
        tuning: Tuning {
            move_load_bytes_per_s: 1 << 30,
            move_idle_bytes_per_s: 1 << 30,
            ..Tuning::default()
        },
        ..OpenOptions::default()
    };
    let store = block_on(Store::open(device, options, Environment::default())).expect("a store");
    let mut load = Load {
        store,
        random: SeededEntropy::new(1),
        live: Vec::new(),
        next: 0,
        live_bytes_max: (mib << 20) * fill / 100,
        value: (0..BYTES_MAX as usize).map(|at| (at * 31 % 251) as u8).collect(),
        full: 0,
    };
    let start = Instant::now();
    let mut bytes = 0;
    while load.allocated() < load.live_bytes_max {
        for _ in 0..64 {
            bytes += load.step(4096.0);
        }
    }
    let mut before = report(0.0, &load, &StoreStat::default(), bytes, start);
    for half in 0..turnovers * 2 {
        let since = Instant::now();
        let median = 4096.0 * 16_f64.powf(half as f64 / (turnovers * 2) as f64);
        let mut bytes = 0;
        while bytes < (mib << 20) / 2 {
            bytes += load.step(median);
        }
        before = report((half + 1) as f64 / 2.0, &load, &before, bytes, since);
    }
    block_on(load.store.close()).expect("close");
}
