//! Random operations on a tiny pool against a plain map.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use shoal_base::task::block_on;
use shoal_base::{BLOCK_BYTES, Run};

use super::*;
use crate::{Hint, Keep, PoolError, WriterOptions};

const PAGES: u64 = 48;
/// After the pages: blocks of values, which never change.
const VALUES: u64 = 32;

#[derive(Clone, Debug)]
enum Step {
    Get(u64),
    Fetch(u64, Hint),
    FetchSubmitted(u64, Hint),
    FetchAll(Vec<u64>),
    FetchOld(u64),
    FetchFailing(u64),
    Value(u64, u16, u32),
    Prefetch(u64, u64),
    Hold(u64),
    Release,
    Write(Vec<(u64, u8)>, bool),
    Forget(u64, u32),
}

fn hint() -> impl Strategy<Value = Hint> {
    prop_oneof![Just(Hint::Lookup), Just(Hint::Scan), Just(Hint::Index)]
}

fn step() -> impl Strategy<Value = Step> {
    let page = || 0..PAGES;
    prop_oneof![
        3 => page().prop_map(Step::Get),
        6 => (page(), hint()).prop_map(|(block, hint)| Step::Fetch(block, hint)),
        2 => (page(), hint()).prop_map(|(block, hint)| Step::FetchSubmitted(block, hint)),
        2 => prop::collection::vec(page(), 0..6).prop_map(Step::FetchAll),
        1 => page().prop_map(Step::FetchOld),
        1 => page().prop_map(Step::FetchFailing),
        2 => (0..VALUES - 5, 0_u16..4096, 1_u32..=16384).prop_map(|(block, offset, bytes)| Step::Value(block, offset, bytes)),
        1 => (page(), 1_u64..4).prop_map(|(block, count)| Step::Prefetch(block, count)),
        1 => page().prop_map(Step::Hold),
        2 => Just(Step::Release),
        3 => (prop::collection::vec((page(), 0_u8..5), 1..20), any::<bool>()).prop_map(|(pages, end)| Step::Write(pages, end)),
        1 => (page(), 1_u32..12).prop_map(|(block, blocks)| Step::Forget(block, blocks)),
    ]
}

struct Model {
    pool: Pool,
    device: Arc<TestDevice>,
    versions: HashMap<u64, u64>,
    held: Vec<(Pinned, Vec<u8>)>,
    writes: u64,
}

impl Model {
    fn unit(&self, block: u64) -> Unit {
        page_unit(block, self.version(block))
    }

    fn version(&self, block: u64) -> u64 {
        self.versions.get(&block).copied().unwrap_or(0)
    }

    fn check(&self, block: u64, pinned: &Pinned) {
        assert_eq!(pinned.page()[..], content(block, self.version(block))[..]);
    }

    fn step(&mut self, step: Step) {
        let pool = self.pool.clone();
        match step {
            Step::Get(block) => {
                let is_quiet = pool.shared().prefetching.load(Ordering::Acquire) == 0;
                let resident = pool.is_resident(&self.unit(block).id);
                let found = pool.get(&self.unit(block));
                // A prefetch that completes between the two looks brings the unit, or takes its place.
                if is_quiet {
                    assert_eq!(found.is_some(), resident);
                }
                found.iter().for_each(|pinned| self.check(block, pinned));
            }
            Step::Fetch(block, hint) => {
                self.check(block, &block_on(pool.fetch(self.unit(block), hint)).unwrap())
            }
            Step::FetchSubmitted(block, hint) => {
                self.check(block, &run(pool.fetch(self.unit(block), hint)).unwrap())
            }
            Step::FetchAll(blocks) => {
                let units: Vec<_> = blocks.iter().map(|&block| self.unit(block)).collect();
                for (block, result) in blocks.iter().zip(block_on(pool.fetch_all(&units, Hint::Lookup))) {
                    match result {
                        Ok(pinned) => self.check(*block, &pinned),
                        Err(error) => assert!(matches!(error, PoolError::Exhausted { .. }), "{error}"),
                    }
                }
            }
            Step::FetchOld(block) => {
                let error = block_on(pool.fetch(page_unit(block, u64::MAX), Hint::Lookup)).unwrap_err();
                assert!(matches!(error, PoolError::Corrupt { .. }), "{error}");
            }
            Step::FetchFailing(block) => {
                self.device.fail_reads(block, true);
                let resident = pool.is_resident(&self.unit(block).id);
                match block_on(pool.fetch(self.unit(block), Hint::Lookup)) {
                    Ok(pinned) => self.check(block, &pinned),
                    Err(error) => assert!(!resident && matches!(error, PoolError::Device(_)), "{error}"),
                }
                self.device.fail_reads(block, false);
            }
            Step::Value(block, offset, bytes) => {
                let (unit, data) = bytes_unit(&self.device, PAGES + block, offset, bytes);
                match block_on(pool.fetch(unit, Hint::Scan)) {
                    Ok(pinned) => assert_eq!(all_bytes(&pinned), data),
                    Err(error) => assert!(matches!(error, PoolError::Exhausted { .. }), "{error}"),
                }
            }
            Step::Prefetch(block, count) => {
                let blocks = block..(block + count).min(PAGES);
                pool.prefetch(&blocks.map(|block| self.unit(block)).collect::<Vec<_>>(), Hint::Lookup);
            }
            Step::Hold(block) => {
                if self.held.len() < 4 {
                    let pinned = block_on(pool.fetch(self.unit(block), Hint::Lookup)).unwrap();
                    self.held.push((pinned, content(block, self.version(block))));
                }
            }
            Step::Release => drop(self.held.pop()),
            Step::Write(pages, finish) => self.write(pages, finish),
            Step::Forget(block, blocks) => {
                let run = Run::new(block, blocks);
                // A load in flight is not forgotten.
                eventually(|| pool.shared().prefetching.load(Ordering::Relaxed) == 0);
                pool.forget(run);
                (run.block..run.end().min(PAGES))
                    .for_each(|block| assert!(!pool.is_resident(&self.unit(block).id)));
            }
        }
        for (pinned, expected) in &self.held {
            assert_eq!(pinned.page()[..], expected[..]);
        }
        assert!(pool.counters().frames_used <= pool.counters().frames);
    }

    /// Writes each block at most once a writer, as an apply does. Without `finish` the writer is dropped: pages that
    /// were not handed to the device are lost, which the model repairs.
    fn write(&mut self, mut pages: Vec<(u64, u8)>, finish: bool) {
        pages.sort_unstable();
        pages.dedup_by_key(|(block, _)| *block);
        let options =
            WriterOptions { in_flight_bytes_max: 6 * BLOCK_BYTES, request_bytes_max: 3 * BLOCK_BYTES };
        let mut writer = self.pool.writer(options);
        for &(block, keep) in &pages {
            let old = self.unit(block).id;
            self.writes += 1;
            self.versions.insert(block, self.writes);
            let keep = match keep {
                0 => Keep::Free,
                1 => Keep::Inherit(old),
                2 => Keep::Inherit(self.unit((block + 1) % PAGES).id),
                3 => Keep::Resident(Hint::Index),
                _ => Keep::Resident(Hint::Lookup),
            };
            let mut page = block_on(writer.page()).unwrap();
            page.copy_from_slice(&content(block, self.writes));
            block_on(writer.write(page, self.unit(block).id, keep)).unwrap();
            if block % 3 == 0 {
                self.check(block, &block_on(self.pool.fetch(self.unit(block), Hint::Lookup)).unwrap());
            }
        }
        if finish {
            block_on(writer.finish()).unwrap();
            for &(block, _) in &pages {
                assert_eq!(self.device.peek(block, 0, BLOCK_BYTES), content(block, self.version(block)));
            }
            return;
        }
        drop(writer);
        let pinned = self.held.len();
        eventually(|| self.pool.counters().frames_pinned <= pinned);
        pages.iter().for_each(|&(block, _)| self.device.put(block, &content(block, self.version(block))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_map(frames in 8_usize..32, k in 1_usize..5, steps in prop::collection::vec(step(), 1..150)) {
        let options = PoolOptions { k, history: frames, pin_wait_ms: 10, ..PoolOptions::new(frames) };
        let (pool, device) = pool_with(options, PAGES + VALUES);
        let mut model = Model { pool, device, versions: HashMap::new(), held: Vec::new(), writes: 0 };
        steps.into_iter().for_each(|step| model.step(step));
        model.held.clear();
        let pool = model.pool;
        eventually(|| pool.shared().prefetching.load(Ordering::Relaxed) == 0);
        prop_assert_eq!(pool.counters().frames_pinned, 0);
        pool.forget(Run::new(0, u32::MAX));
        prop_assert_eq!(pool.counters().frames_used, 0);
        prop_assert_eq!(pool.shared().policy.scan_frames(), 0);
    }
}
