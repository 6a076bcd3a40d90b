//! Reads and verifies many values at a time, straight from the device and past the pool: for a check, a scrub and a
//! repair.
//!
//! The units of the values come in windows. The reads of a window start with one submission, and neighbours share a
//! request. An error counts for its value alone: if a shared request fails, each of its units is read again by itself.

use shoal_base::{Lsn, Run};
use shoal_common::error::{Error, Result};
use shoal_device::{Device, IoBuf};
use shoal_pool::{Hint, Pool, Unit};

use crate::entry::{Entry, Home};
use crate::read::{Located, UnitPlace, read, unit_range};

/// Blocks that one window reads; the last unit may exceed them.
const WINDOW_BLOCKS: u64 = 256;
/// Blocks that neighbouring units read with one request; a single unit may have more.
const REQUEST_BLOCKS: u32 = 64;

/// Reads and verifies every stored byte of an entry.
///
/// # Errors
/// [`Error::Corrupt`] if anything does not match, or is beyond `device_blocks`; errors of the device.
pub async fn verify_direct(
    device: &Device,
    pool: &Pool,
    device_blocks: u64,
    entry: &Entry,
    version: Lsn,
) -> Result<()> {
    let verified = verify_all(device, pool, device_blocks, &[(version, entry)]).await;
    verified.into_iter().collect()
}

/// Reads and verifies the bytes that the record of a joined value brought: its manifest, and the metadata before its value. The parts were
/// durable before.
///
/// # Errors
/// As [`verify_direct`].
pub async fn verify_adopting(
    device: &Device,
    pool: &Pool,
    device_blocks: u64,
    entry: &Entry,
    version: Lsn,
) -> Result<()> {
    let located = locate(device, pool, device_blocks, entry, version).await?;
    if !located.is_joined() {
        return verify_direct(device, pool, device_blocks, entry, version).await;
    }
    let front = u64::from(entry.meta_in_front());
    read(device, pool, &located, 0, front, Hint::Scan).await.map(drop)
}

/// The stored bytes of an entry that are not inline, read and verified as [`verify_direct`] does.
///
/// # Errors
/// As [`verify_direct`].
pub async fn read_direct(
    device: &Device,
    pool: &Pool,
    device_blocks: u64,
    entry: &Entry,
    version: Lsn,
) -> Result<Vec<u8>> {
    let mut stored = Vec::new();
    let see = |unit: &[u8]| stored.extend_from_slice(unit);
    let read = read_all(device, pool, device_blocks, &[(version, entry)], see).await;
    read.into_iter().collect::<Result<()>>()?;
    Ok(stored)
}

/// As [`verify_direct`] for each of the entries, in their order.
pub async fn verify_all(
    device: &Device,
    pool: &Pool,
    device_blocks: u64,
    entries: &[(Lsn, &Entry)],
) -> Vec<Result<()>> {
    read_all(device, pool, device_blocks, entries, |_| {}).await
}

/// Reads and verifies entries, and shows the units of each in their order, up to the first damaged one.
async fn read_all(
    device: &Device,
    pool: &Pool,
    device_blocks: u64,
    entries: &[(Lsn, &Entry)],
    mut see: impl FnMut(&[u8]) + Send,
) -> Vec<Result<()>> {
    let mut results = Vec::new();
    let mut window = Window { device, units: Vec::new(), blocks: 0 };
    for (value, &(version, entry)) in entries.iter().enumerate() {
        results.push(Ok(()));
        if entry.home == Home::Inline {
            continue;
        }
        let located = match locate(device, pool, device_blocks, entry, version).await {
            Ok(located) => located,
            Err(error) => {
                results[value] = Err(error);
                continue;
            }
        };
        for index in 0..located.units() {
            let read = match located.unit(index) {
                Ok(UnitPlace::Whole(unit)) => {
                    window.add(value, unit);
                    if window.blocks >= WINDOW_BLOCKS {
                        window.read(&mut results, &mut see).await;
                    }
                    Ok(())
                }
                Ok(UnitPlace::Split { run, at, bytes, crc }) => {
                    window.read(&mut results, &mut see).await;
                    located.read_split(device, run, at, bytes, crc).await.map(|unit| see(&unit))
                }
                Err(error) => Err(error),
            };
            if results[value].is_ok() {
                results[value] = read;
            }
            if results[value].is_err() {
                break;
            }
        }
    }
    window.read(&mut results, &mut see).await;
    assert_eq!(results.len(), entries.len(), "each value has its result");
    results
}

/// Finds the place of a value, and checks that all its blocks are on the device.
async fn locate(
    device: &Device,
    pool: &Pool,
    device_blocks: u64,
    entry: &Entry,
    version: Lsn,
) -> Result<Located> {
    let in_range = |runs: &[Run]| match runs.iter().find(|run| run.end() > device_blocks) {
        None => Ok(()),
        Some(run) => {
            Err(Error::Corrupt { what: "a value is after the end of the device".into(), block: run.block })
        }
    };
    if let Home::Manifest { runs, .. } = &entry.home {
        in_range(runs)?;
    }
    let located = Located::find(device, pool, entry, version).await?;
    in_range(located.runs())?;
    Ok(located)
}

/// Units to read with one submission.
struct Window<'a> {
    device: &'a Device,
    /// Each unit with the number of its value.
    units: Vec<(usize, Unit)>,
    blocks: u64,
}

impl Window<'_> {
    fn add(&mut self, value: usize, unit: Unit) {
        self.units.push((value, unit));
        self.blocks += unit.blocks() as u64;
    }

    /// Reads the collected units and shows the units of each value up to the first damaged one, which sets the value's
    /// result.
    async fn read(&mut self, results: &mut [Result<()>], see: &mut (impl FnMut(&[u8]) + Send)) {
        self.blocks = 0;
        let units = std::mem::take(&mut self.units);
        let (runs, run_of) = neighbours(&units);
        let mut batch = self.device.batch();
        let read = |run: &Run| batch.add(self.device.read(run.block, IoBuf::unfilled(run.blocks as usize)));
        let reads: Vec<_> = runs.iter().map(read).collect();
        batch.start();
        let mut loaded = Vec::with_capacity(reads.len());
        for read in reads {
            loaded.push(read.await.ok());
        }
        for ((value, unit), which) in units.into_iter().zip(run_of) {
            if results[value].is_err() {
                continue;
            }
            let run = runs[which];
            results[value] = match &loaded[which] {
                Ok(bytes) => unit_range(&unit, run.block, bytes).map(|range| see(&bytes[range])),
                // A block of another unit may be the unreadable one.
                Err(_) if run != unit.run() => self.read_alone(&unit, see).await,
                Err(error) => Err(error.clone().into()),
            };
        }
    }

    async fn read_alone(&self, unit: &Unit, see: &mut (impl FnMut(&[u8]) + Send)) -> Result<()> {
        let run = unit.run();
        let bytes = self.device.read(run.block, IoBuf::unfilled(run.blocks as usize)).await.ok()?;
        unit_range(unit, run.block, &bytes).map(|range| see(&bytes[range]))
    }
}

/// The requests that read `units`, in the order of their blocks, and for each unit the number of its request. Units may
/// share blocks.
fn neighbours(units: &[(usize, Unit)]) -> (Vec<Run>, Vec<usize>) {
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|&at| units[at].1.id.block);
    let (mut runs, mut run_of) = (Vec::<Run>::new(), vec![0; units.len()]);
    for at in order {
        let run = units[at].1.run();
        match runs.last_mut() {
            Some(last)
                if run.block <= last.end()
                    && run.end().max(last.end()) - last.block <= u64::from(REQUEST_BLOCKS) =>
            {
                last.blocks = (run.end().max(last.end()) - last.block) as u32;
            }
            _ => runs.push(run),
        }
        run_of[at] = runs.len() - 1;
    }
    (runs, run_of)
}
