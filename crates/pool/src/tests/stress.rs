//! Many threads on a tiny pool: every byte is checked, nothing leaks, no thread hangs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shoal_base::task::block_on;
use shoal_base::{BLOCK_BYTES, Run, SeededEntropy};

use super::*;
use crate::{Hint, Keep, PoolError, WriterOptions};

const BLOCKS: u64 = 240;
/// Blocks from here on are rewritten; block `CHANGING + i` and its twin `SPARE + i` take turns, as copy-on-write does.
const CHANGING: u64 = 160;
const SPARE: u64 = 200;
const CHANGING_COUNT: u64 = 40;

struct World {
    pool: Pool,
    device: Arc<TestDevice>,
    /// Version of each changing page. Odd versions are at home, even ones in the spare block; 0 at the start.
    versions: Vec<AtomicU64>,
    stop: AtomicBool,
    served: AtomicU64,
}

fn place(index: u64, version: u64) -> u64 {
    if version % 2 == 1 { CHANGING + index } else { SPARE + index }
}

impl World {
    fn read(&self, random: &SeededEntropy, blocking: bool) {
        let hint = [Hint::Lookup, Hint::Scan, Hint::Index][random.below(3) as usize];
        let wait = |unit: Unit| {
            let fetch = self.pool.fetch(unit, hint);
            if blocking { block_on(fetch) } else { run(fetch) }
        };
        match random.below(20) {
            0 => {
                let (unit, data) =
                    bytes_unit(&self.device, random.below(140), random.below(4096) as u16, 20_000);
                self.served(wait(unit), |pinned| assert_eq!(all_bytes(pinned), data));
            }
            1 => {
                let first = random.below(CHANGING - 6);
                let units: Vec<_> = (first..first + 6).map(|block| page_unit(block, 0)).collect();
                let fetch = self.pool.fetch_all(&units, hint);
                let results = if blocking { block_on(fetch) } else { run(fetch) };
                for (unit, result) in units.iter().zip(results) {
                    self.served(result, |pinned| {
                        assert_eq!(pinned.page()[..], content(unit.id.block, 0)[..])
                    });
                }
            }
            2 => {
                let first = random.below(CHANGING - 3);
                let units: Vec<_> = (first..first + 3).map(|block| page_unit(block, 0)).collect();
                self.pool.prefetch(&units, Hint::Scan);
            }
            3 => self.pool.forget(Run::new(random.below(CHANGING), 5)),
            4..9 => self.read_changing(random.below(CHANGING_COUNT), wait),
            _ => {
                let block = random.below(1 + random.below(CHANGING));
                self.served(wait(page_unit(block, 0)), |pinned| {
                    assert_eq!(pinned.page()[..], content(block, 0)[..]);
                });
            }
        }
    }

    /// A version may be overwritten on the device while it is read: that returns an error, never wrong bytes.
    fn read_changing(&self, index: u64, wait: impl Fn(Unit) -> Result<Pinned, PoolError>) {
        let version = self.versions[index as usize].load(Ordering::Acquire);
        let block = place(index, version);
        match wait(page_unit(block, version)) {
            Ok(pinned) => assert_eq!(pinned.page()[..], content(block, version)[..]),
            Err(PoolError::Corrupt { .. }) => {
                assert!(self.versions[index as usize].load(Ordering::Acquire) > version || version == 0);
            }
            Err(error) => assert!(matches!(error, PoolError::Exhausted { .. }), "{error}"),
        }
    }

    fn served(&self, result: Result<Pinned, PoolError>, check: impl FnOnce(&Pinned)) {
        match result {
            Ok(pinned) => {
                check(&pinned);
                self.served.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => assert!(matches!(error, PoolError::Exhausted { .. }), "{error}"),
        }
    }

    /// Rewrites changing pages in small applies, and publishes their versions when they are written.
    fn apply(&self, random: &SeededEntropy) {
        let options =
            WriterOptions { in_flight_bytes_max: 8 * BLOCK_BYTES, request_bytes_max: 4 * BLOCK_BYTES };
        let mut writer = self.pool.writer(options);
        let first = random.below(CHANGING_COUNT - 8);
        let next: Vec<_> = (first..first + 8)
            .map(|index| (index, self.versions[index as usize].load(Ordering::Relaxed)))
            .collect();
        for &(index, version) in &next {
            let block = place(index, version + 1);
            let unit = page_unit(block, version + 1);
            let keep = match random.below(3) {
                0 => Keep::Free,
                1 => Keep::Resident(Hint::Lookup),
                _ => Keep::Inherit(page_unit(place(index, version), version).id),
            };
            let mut page = match run(writer.page()) {
                Ok(page) => page,
                Err(error) => {
                    assert!(matches!(error, PoolError::Exhausted { .. }), "{error}");
                    return;
                }
            };
            page.copy_from_slice(&content(block, version + 1));
            run(writer.write(page, unit.id, keep)).unwrap();
        }
        run(writer.finish()).unwrap();
        for (index, version) in next {
            self.versions[index as usize].store(version + 1, Ordering::Release);
        }
    }
}

#[test]
fn eight_threads_never_see_wrong_bytes() {
    for frames in [24, 150] {
        let (pool, device) = pool_with(PoolOptions { pin_wait_ms: 200, ..PoolOptions::new(frames) }, BLOCKS);
        device.delay(Duration::from_micros(20));
        (0..CHANGING_COUNT).for_each(|index| device.put(SPARE + index, &content(SPARE + index, 0)));
        let versions = (0..CHANGING_COUNT).map(|_| AtomicU64::new(0)).collect();
        let world = World { pool, device, versions, stop: AtomicBool::new(false), served: AtomicU64::new(0) };
        thread::scope(|scope| {
            for thread in 0..8_u64 {
                let world = &world;
                scope.spawn(move || {
                    let random = SeededEntropy::new(thread + 1);
                    while !world.stop.load(Ordering::Relaxed) {
                        if thread == 0 { world.apply(&random) } else { world.read(&random, thread % 2 == 1) }
                    }
                });
            }
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(1500) {
                assert!(world.pool.counters().frames_used <= frames);
                thread::sleep(Duration::from_millis(20));
            }
            world.stop.store(true, Ordering::Relaxed);
        });
        let pool = &world.pool;
        assert!(world.served.load(Ordering::Relaxed) > 1000, "{:?}", pool.counters());
        assert!(world.versions.iter().map(|version| version.load(Ordering::Relaxed)).sum::<u64>() > 0);
        eventually(|| pool.shared().prefetching.load(Ordering::Relaxed) == 0);
        eventually(|| pool.counters().frames_pinned == 0);
        pool.forget(Run::new(0, u32::MAX));
        assert_eq!(
            (pool.counters().frames_used, pool.shared().policy.scan_frames()),
            (0, 0),
            "{:?}",
            pool.counters()
        );
    }
}
