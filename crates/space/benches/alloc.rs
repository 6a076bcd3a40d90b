//! Speed, memory and fragmentation of the allocator: `cargo bench -p shoal-space [NAME]`.
//!
//! The load of the allocator for LOSF (docs/sources.md; sizes 1 to 1,024 blocks, rounds of 100,000, half of a round freed)
//! on an empty 16 TiB device until a request fails, and churn at 95 % full (a random victim goes, a new object
//! comes) with log-normal sizes on 64 GiB and uniform ones on 16 TiB. Times are thread CPU time; the percentiles
//! are wall-clock time of every 64th call. Without `--bench` (as `cargo test --benches` calls it) devices are small.

use std::time::Instant;

use shoal_base::{Entropy, Run, SeededEntropy};
use shoal_space::image::{FreeImage, SnapshotReader};
use shoal_space::{Space, group_blocks_for};

const GIB_BLOCKS: u64 = 1 << 18;
const SEED: u64 = 20_260_101;
const ROUND: usize = 100_000;
const SAMPLE_EVERY: usize = 64;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_full = arguments.iter().any(|argument| argument == "--bench");
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let scale = if is_full { 1 } else { 1024 };
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| name.contains(wanted.as_str()));
    println!("seed {SEED}, load {}", load());
    println!("{:<22} {:>6} {:>18} {:>18}  result", "case", "fill", "alloc ns", "free ns");
    if is_wanted("empty-16t") {
        let space = empty(16 << 10, scale);
        println!("{:<22} memory {:.1} MiB", "empty-16t", mib(space.memory_bytes()));
    }
    if is_wanted("open-16t") {
        open("open-16t", (16 << 10) * GIB_BLOCKS / scale);
    }
    if is_wanted("seed-50-16t") {
        seed_load("seed-50-16t", &empty(16 << 10, scale), 50);
    }
    if is_wanted("seed-80-16t") {
        seed_load("seed-80-16t", &empty(16 << 10, scale), 80);
    }
    if is_wanted("churn-lognormal-64g") {
        churn("churn-lognormal-64g", &empty(64, scale.min(16)), 10, &mut log_normal(SEED), 1);
    }
    if is_wanted("churn-uniform-16t") {
        churn("churn-uniform-16t", &empty(16 << 10, scale), 2, &mut uniform(SEED), 1);
    }
    if is_wanted("churn-batch-16t") {
        churn("churn-batch-16t", &empty(16 << 10, scale), 2, &mut uniform(SEED), 1000);
    }
}

/// A device that is wholly free.
fn empty(gib: u64, scale: u64) -> Space {
    let blocks = gib * GIB_BLOCKS / scale;
    let space = Space::new(blocks, group_blocks_for(blocks));
    let step = u32::MAX / 2;
    let mut block = 0;
    while block < blocks {
        let run = Run::new(block, (blocks - block).min(u64::from(step)) as u32);
        space.free(run).expect("nothing is free yet");
        block = run.end();
    }
    space
}

/// Rounds of allocations, `freed_percent` of each freed again, until one fails.
fn seed_load(name: &str, space: &Space, freed_percent: u64) {
    let random = SeededEntropy::new(SEED);
    let mut sizes = uniform(SEED + 1);
    let (mut alloc, mut free) = (Meter::default(), Meter::default());
    let mut next_report = 10;
    loop {
        let wanted: Vec<u32> = (0..ROUND).map(|_| sizes()).collect();
        let mut runs = Vec::with_capacity(ROUND);
        alloc.measure(&wanted, |&blocks| space.allocate(blocks).map(|run| runs.push(run)).is_some());
        let is_over = runs.len() < ROUND;
        shuffle(&mut runs, &random);
        runs.truncate(ROUND * freed_percent as usize / 100);
        if !is_over {
            free.measure(&runs, |&run| space.free(run).is_ok());
        }
        let fill = 100.0 * (1.0 - space.free_blocks() as f64 / space.blocks_max() as f64);
        if is_over || fill >= f64::from(next_report) {
            let note = if is_over { "first contiguous failure" } else { "" };
            let result = format!("{:.3} % full {note}, {}", fill, state(space));
            println!("{name:<22} {fill:>6.1} {alloc} {free}  {result}");
            (alloc, free) = (Meter::default(), Meter::default());
            next_report += 30;
        }
        if is_over {
            space.audit();
            return;
        }
    }
}

/// Fills a device to 95 %, then replaces random objects until its capacity was written `turnovers` times; frees
/// come in batches of `batch` (1: singly).
fn churn(name: &str, space: &Space, turnovers: u64, sizes: &mut dyn FnMut() -> u32, batch: usize) {
    let random = SeededEntropy::new(SEED + 2);
    let reserve = space.blocks_max() / 20;
    let mut live: Vec<Run> = Vec::new();
    while space.free_blocks() > reserve {
        live.extend(space.allocate(sizes()));
    }
    let mut failures = 0_u64;
    for turn in 1..=turnovers {
        let (mut alloc, mut free) = (Meter::default(), Meter::default());
        let mut written = 0;
        while written < space.blocks_max() {
            // Victims and newcomers in small batches, so that the clock is not read for each.
            let mut victims = Vec::with_capacity(1000);
            let mut wanted = Vec::with_capacity(1000);
            let mut balance = space.free_blocks() as i64 - reserve as i64;
            while wanted.len() < 1000 {
                let blocks = sizes();
                balance -= i64::from(blocks);
                wanted.push(blocks);
                while balance < 0 {
                    let victim = live.swap_remove(random.below(live.len() as u64) as usize);
                    balance += i64::from(victim.blocks);
                    victims.push(victim);
                }
                written += u64::from(blocks);
            }
            if batch == 1 {
                free.measure(&victims, |&run| space.free(run).is_ok());
            } else {
                let batches: Vec<&[Run]> = victims.chunks(batch).collect();
                free.measure(&batches, |runs| space.free_batch(runs).is_ok());
                free.calls += (victims.len() - batches.len()) as u64;
            }
            if batch == 1 {
                let placed = |&blocks: &u32| space.allocate(blocks).map(|run| live.push(run)).is_some();
                failures += alloc.measure(&wanted, placed);
            } else {
                let mut out = Vec::with_capacity(wanted.len());
                let batches: Vec<&[u32]> = wanted.chunks(batch).collect();
                alloc.measure(&batches, |sizes| {
                    space.allocate_batch(sizes, &mut out);
                    true
                });
                alloc.calls += (wanted.len() - batches.len()) as u64;
                failures += out.iter().filter(|run| run.is_none()).count() as u64;
                live.extend(out.into_iter().flatten());
            }
        }
        if turn == 1 || turn == 3 || turn == turnovers {
            let fill = 100.0 * (1.0 - space.free_blocks() as f64 / space.blocks_max() as f64);
            let result = format!("turn {turn}: {failures} failures, {}", state(space));
            println!("{name:<22} {fill:>6.1} {alloc} {free}  {result}");
        }
    }
    space.audit();
}

/// The cost of opening a store: a snapshot of a million free runs read into an image, and a space made of it.
fn open(name: &str, blocks: u64) {
    let random = SeededEntropy::new(SEED);
    let mut image = FreeImage::new(blocks, group_blocks_for(blocks));
    let mut block = random.below(4096);
    while block + 2048 < blocks {
        let run = Run::new(block, 1 + random.below(2048) as u32);
        image.free(run).expect("it is after the last one");
        block = run.end() + 1 + random.below(6144);
    }
    let started = Instant::now();
    let pieces: Vec<Vec<u8>> = image.snapshot([0; 16], 1).map(|piece| piece.bytes).collect();
    let written = started.elapsed();
    let started = Instant::now();
    let empty = FreeImage::new(blocks, image.group_blocks());
    let mut reader = SnapshotReader::new(empty, [0; 16], 1, pieces.len() as u32);
    for (sequence, piece) in pieces.iter().enumerate() {
        reader.piece(sequence as u32, piece).expect("it was just written");
    }
    let (read, _) = reader.finish();
    let read_in = started.elapsed();
    let started = Instant::now();
    let space = Space::from_image(&read);
    let made_in = started.elapsed();
    let bytes: usize = pieces.iter().map(Vec::len).sum();
    println!(
        "{name:<22} write {written:.0?}, read {read_in:.0?}, space {made_in:.0?}; {:.1} MiB in {} pieces, {}",
        mib(bytes),
        pieces.len(),
        state(&space)
    );
}

/// Share of the free space in runs of 4 MiB and more, number of runs, memory.
fn state(space: &Space) -> String {
    let (mut large, mut runs) = (0_u64, 0_u64);
    space.for_each_run(&mut |run| {
        runs += 1;
        large += if run.blocks >= 1024 { u64::from(run.blocks) } else { 0 };
    });
    let share = 100.0 * large as f64 / space.free_blocks().max(1) as f64;
    format!("{runs} runs, {share:.1} % in >= 4 MiB, {:.1} MiB", mib(space.memory_bytes()))
}

/// Mean thread CPU time a call, and percentiles of samples.
#[derive(Default)]
struct Meter {
    cpu_ns: u64,
    calls: u64,
    samples: Vec<u64>,
}

impl Meter {
    /// Calls `work` for each item; returns the number of calls that returned false.
    fn measure<T>(&mut self, items: &[T], mut work: impl FnMut(&T) -> bool) -> u64 {
        let cpu_before = thread_cpu_ns();
        let mut failures = 0;
        for (index, item) in items.iter().enumerate() {
            let is_done = if index % SAMPLE_EVERY == 0 {
                let before = Instant::now();
                let is_done = work(item);
                self.samples.push(before.elapsed().as_nanos() as u64);
                is_done
            } else {
                work(item)
            };
            failures += u64::from(!is_done);
        }
        self.cpu_ns += thread_cpu_ns().saturating_sub(cpu_before);
        self.calls += items.len() as u64;
        failures
    }
}

impl std::fmt::Display for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut samples = self.samples.clone();
        samples.sort_unstable();
        let at = |permille: usize| samples.get(samples.len() * permille / 1000).copied().unwrap_or(0);
        let mean = self.cpu_ns.checked_div(self.calls).unwrap_or(0);
        let percentiles = format!("{}/{}/{}", at(500), at(990), at(999));
        write!(f, "{mean:>4} {percentiles:>13}")
    }
}

/// CPU time of this thread; the kernel's own count, without a system call library.
fn thread_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

/// Sizes 1 to 1,024 blocks, all alike.
fn uniform(seed: u64) -> impl FnMut() -> u32 {
    let random = SeededEntropy::new(seed);
    move || random.below(1024) as u32 + 1
}

/// Log-normal sizes: median 16 KiB, sigma 1.5, at most 4 MiB (mean 12.8 blocks).
fn log_normal(seed: u64) -> impl FnMut() -> u32 {
    let random = SeededEntropy::new(seed);
    move || {
        let unit = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        // Box and Muller; the shift keeps the logarithm finite.
        let normal = (-2.0 * (1.0 - unit()).ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
        let bytes = 16_384.0 * (1.5 * normal).exp();
        ((bytes / 4096.0).ceil() as u32).clamp(1, 1024)
    }
}

fn shuffle<T>(items: &mut [T], random: &SeededEntropy) {
    for index in (1..items.len()).rev() {
        items.swap(index, random.below(index as u64 + 1) as usize);
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / (1 << 20) as f64
}
