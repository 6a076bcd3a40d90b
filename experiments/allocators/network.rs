//! The value of contiguous placement on a network device: values of 256 KiB in 1, 2, 4 and 8 runs on a simulated device
//! with 10 ms a request that serves 32 at once.
//!
//! All runs of a value are requested together. So one client waits once, for any number of runs; many clients share the
//! device's parallel requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use shoal_base::Run as Blocks;
use shoal_base::task::block_on;
use shoal_device::sim::{Image, Latency, SimDevice, SimOptions};
use shoal_device::{Device, IoBuf};

use super::allocator::Allocator;
use super::figures::Figures;
use super::load::Random;
use super::reference::Tree;
use super::run::SEED;

/// The time of a request of the device, and the number that it serves at once.
const REQUEST: Duration = Duration::from_millis(10);
const PARALLEL: usize = 32;

/// Blocks of a value, of the device, and values on it.
const VALUE_BLOCKS: u32 = 64;
const DEVICE_BLOCKS: u64 = 1 << 15;
const VALUES: usize = 256;

/// Clients that share the device, besides the one whose latency is measured alone.
const CLIENTS: u64 = 64;

/// Requests of the client that is alone.
const ALONE: usize = 20;

/// Values in `runs` runs each: latency of one client, throughput of many.
pub(crate) fn network(runs: u32, time: Duration) -> Result<Figures> {
    let latency = Latency {
        read_ns: REQUEST.as_nanos() as u64,
        write_ns: REQUEST.as_nanos() as u64,
        ..Latency::default()
    };
    let options = SimOptions { latency, parallel: PARALLEL, record: false, ..SimOptions::default() };
    let device = Device::new(SimDevice::with_options(Image::new(DEVICE_BLOCKS), options));
    let values = place(runs);
    let mut figures = Figures { values: values.len() as u64, ..Figures::default() };
    figures.runs = figures.values * u64::from(runs);
    figures.write_ms = Some(alone(&values, |value| write(&device, value))?);
    figures.read_ms = Some(alone(&values, |value| read(&device, value))?);
    figures.writes_per_s = Some(together(&values, time, |value| write(&device, value))?);
    figures.reads_per_s = Some(together(&values, time, |value| read(&device, value))?);
    Ok(figures)
}

/// Values whose runs do not touch: pieces of a device in which everything else is in use.
fn place(runs: u32) -> Vec<Vec<Blocks>> {
    let tree = Tree::new(0, DEVICE_BLOCKS);
    let piece = VALUE_BLOCKS / runs;
    let value = |_| {
        let one = |_| {
            let found = tree.allocate(piece).ok()?;
            // A neighbour that stays keeps the next piece away.
            tree.allocate(1).ok().map(|_| found)
        };
        (0..runs).filter_map(one).collect()
    };
    (0..VALUES).map(value).collect()
}

fn write(device: &Device, value: &[Blocks]) -> Result<()> {
    let mut batch = device.batch();
    let buffers = value.iter().map(|run| (run.block, IoBuf::new(run.blocks as usize)));
    let writes: Vec<_> = buffers.map(|(block, buffer)| batch.add(device.write(block, buffer))).collect();
    batch.start_in_background();
    writes.into_iter().try_for_each(|write| block_on(write).ok().map(drop))?;
    Ok(())
}

fn read(device: &Device, value: &[Blocks]) -> Result<()> {
    let mut batch = device.batch();
    let buffers = value.iter().map(|run| (run.block, IoBuf::new(run.blocks as usize)));
    let reads: Vec<_> = buffers.map(|(block, buffer)| batch.add(device.read(block, buffer))).collect();
    batch.start_in_background();
    reads.into_iter().try_for_each(|read| block_on(read).ok().map(drop))?;
    Ok(())
}

/// Median milliseconds of one client.
fn alone(values: &[Vec<Blocks>], io: impl Fn(&[Blocks]) -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for value in values.iter().take(ALONE) {
        let began = Instant::now();
        io(value)?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64() * 1000.0)
}

/// Values a second of many clients.
fn together(
    values: &[Vec<Blocks>],
    time: Duration,
    io: impl Fn(&[Blocks]) -> Result<()> + Sync,
) -> Result<f64> {
    let done = AtomicU64::new(0);
    let began = Instant::now();
    let work = |client: u64| -> Result<()> {
        let mut random = Random::new(SEED + client);
        loop {
            io(&values[random.below(values.len() as u64) as usize])?;
            done.fetch_add(1, Ordering::Relaxed);
            // At least one of each client.
            if began.elapsed() >= time {
                return Ok(());
            }
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || work(client))).collect();
        clients.into_iter().try_for_each(|client| match client.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}
