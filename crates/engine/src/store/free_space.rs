//! All free runs of a store at one moment, for a map or a dump of its space.
//!
//! The runs are copied under the allocator's lock and packed into some 4 bytes each, so that a device with millions of
//! free runs costs tens of megabytes while a caller reads them, and the lock is held for some 10 ns a run.

use shoal_base::Run;
use shoal_base::codec::{Reader, put_varint};

use crate::store::Store;

/// The free runs, in ascending order, merged with their neighbours.
#[derive(Clone, Debug)]
pub struct FreeRunIter {
    device_blocks: u64,
    group_blocks: u32,
    /// For each run the blocks between it and the end of the previous run, and its blocks, as varints.
    packed: Vec<u8>,
    /// The offset in `packed` of the next run.
    at: usize,
    /// The end of the last returned run.
    end: u64,
}

impl Store {
    /// The free runs now, holes included. Freed blocks that may not be reused yet are left out.
    #[must_use]
    pub fn free_space(&self) -> FreeRunIter {
        let space = self.0.space.allocator();
        let mut packed = Packed::default();
        let mut holes = self.0.space.holes().all().into_iter().map(|hole| hole.run).peekable();
        space.for_each_run(&mut |run| {
            while let Some(hole) = holes.next_if(|hole| hole.block < run.block) {
                packed.push(hole);
            }
            packed.push(run);
        });
        holes.for_each(|hole| packed.push(hole));
        let packed = packed.finish();
        let device_blocks = self.stat().device_blocks;
        FreeRunIter { device_blocks, group_blocks: space.group_blocks(), packed, at: 0, end: 0 }
    }
}

/// Free runs as a list of varints; neighbours are one run.
#[derive(Default)]
struct Packed {
    bytes: Vec<u8>,
    end: u64,
    /// The newest run, which may continue.
    last: Option<(u64, u64)>,
}

impl Packed {
    fn push(&mut self, run: Run) {
        match &mut self.last {
            Some((block, end)) if *end == run.block && run.end() - *block <= u64::from(u32::MAX) => {
                *end = run.end();
            }
            last => {
                let before = last.replace((run.block, run.end()));
                self.put(before);
            }
        }
    }

    fn put(&mut self, run: Option<(u64, u64)>) {
        let Some((block, end)) = run else { return };
        // A hole that was filled between two looks may be there twice: its second half is left out.
        let block = block.max(self.end);
        if block < end {
            assert!(self.end <= block, "free runs are in order");
            put_varint(&mut self.bytes, block - self.end);
            put_varint(&mut self.bytes, end - block);
            self.end = end;
        }
    }

    fn finish(mut self) -> Vec<u8> {
        let last = self.last.take();
        self.put(last);
        self.bytes
    }
}

impl FreeRunIter {
    /// Blocks of the device that are usable now.
    #[must_use]
    pub fn device_blocks(&self) -> u64 {
        self.device_blocks
    }

    /// Blocks of a group of the allocator.
    #[must_use]
    pub fn group_blocks(&self) -> u32 {
        self.group_blocks
    }
}

impl Iterator for FreeRunIter {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let rest = self.packed.get(self.at..).filter(|rest| !rest.is_empty())?;
        let mut reader = Reader::new(rest);
        let (Ok(gap), Ok(blocks)) = (reader.varint(), reader.varint()) else {
            unreachable!("a list packed here can be unpacked");
        };
        self.at = self.packed.len() - reader.rest().len();
        let run = Run::new(self.end + gap, blocks as u32);
        self.end = run.end();
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixtures::in_memory_as;
    use crate::{Environment, FormatOptions, ObjectKey, OpenOptions, PutOptions, block_on};

    #[test]
    fn free_runs_match_allocator() {
        let device = in_memory_as(&FormatOptions::for_blocks(8192));
        block_on(async {
            let store = Store::open(device, OpenOptions::default(), Environment::default()).await.unwrap();
            for index in 0..20u8 {
                let key = ObjectKey::new("default", &[index]).unwrap();
                store.put(&key, vec![index; 40_000].into(), PutOptions::default()).await.unwrap();
            }
            let mut expected = Vec::new();
            store.0.space.allocator().for_each_run(&mut |run| expected.push(run));
            let found = store.free_space();
            assert_eq!((found.device_blocks(), found.group_blocks()), (8192, 128));
            let found: Vec<Run> = found.collect();
            assert_eq!(found, expected);
            assert!(!found.is_empty() && found.iter().all(|run| run.end() <= 8192), "{found:?}");
            store.close().await.unwrap();
        });
    }
}
