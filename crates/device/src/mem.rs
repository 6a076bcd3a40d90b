//! A device in memory, for tests and for stores that need not last.
//!
//! Requests are run by the thread that starts them, also submitted ones. Memory is taken when a part is first written;
//! a part that was never written reads as zeros.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use shoal_base::BLOCK_BYTES;

use crate::counters::Counters;
use crate::{BlockDevice, DeviceCounters, DeviceError, IoRequest, Op, Submission};

/// Blocks that are allocated and locked together: 1 MiB.
const PART_BLOCKS: u64 = 256;

type Part = RwLock<Option<Box<[u8]>>>;

/// See the module.
pub struct MemDevice {
    parts: RwLock<Vec<Part>>,
    blocks: AtomicU64,
    growable: bool,
    counters: Counters,
}

fn parts_for(blocks: u64) -> usize {
    usize::try_from(blocks.div_ceil(PART_BLOCKS)).unwrap_or(usize::MAX)
}

impl MemDevice {
    /// A device of `blocks` zeroed blocks that cannot grow.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Self::with_growth(blocks, false)
    }

    /// A device of `blocks` zeroed blocks that can grow.
    #[must_use]
    pub fn growable(blocks: u64) -> Self {
        Self::with_growth(blocks, true)
    }

    fn with_growth(blocks: u64, growable: bool) -> Self {
        let parts = (0..parts_for(blocks)).map(|_| Part::default()).collect();
        Self {
            parts: RwLock::new(parts),
            blocks: AtomicU64::new(blocks),
            growable,
            counters: Counters::default(),
        }
    }

    fn serve(&self, request: &mut IoRequest<'_>) -> Result<(), DeviceError> {
        let result = request.check_range(self.blocks());
        if result.is_ok() {
            match request.op() {
                Op::Read => self.read(request),
                Op::Write | Op::WriteDurable => self.write(request),
                Op::Flush | Op::Discard { .. } => {}
            }
        }
        self.counters.count(request.op(), request.blocks(), result.is_ok());
        result
    }

    fn read(&self, request: &mut IoRequest<'_>) {
        let parts = self.parts.read();
        request.fill_blocks(|block, memory| match parts[part_of(block)].read().as_deref() {
            Some(part) => memory.copy_from_slice(&part[offset_of(block)..][..BLOCK_BYTES]),
            None => memory.fill(0),
        });
    }

    fn write(&self, request: &IoRequest<'_>) {
        let parts = self.parts.read();
        request.view_blocks(|block, memory| {
            let mut part = parts[part_of(block)].write();
            let part =
                part.get_or_insert_with(|| vec![0; PART_BLOCKS as usize * BLOCK_BYTES].into_boxed_slice());
            part[offset_of(block)..][..BLOCK_BYTES].copy_from_slice(memory);
        });
    }
}

const fn part_of(block: u64) -> usize {
    (block / PART_BLOCKS) as usize
}

const fn offset_of(block: u64) -> usize {
    (block % PART_BLOCKS) as usize * BLOCK_BYTES
}

impl BlockDevice for MemDevice {
    fn submit(&self, submissions: Vec<Submission>) {
        self.execute(submissions);
    }

    fn execute(&self, submissions: Vec<Submission>) {
        for submission in submissions {
            submission.run(|request| self.serve(request));
        }
    }

    fn run(&self, mut request: IoRequest<'_>) -> Option<Result<(), DeviceError>> {
        Some(self.serve(&mut request))
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn grow(&self, blocks: u64) -> io::Result<()> {
        let mut parts = self.parts.write();
        if blocks <= self.blocks() {
            return Ok(());
        }
        if !self.growable {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this device in memory has a fixed size"));
        }
        parts.resize_with(parts_for(blocks), Part::default);
        assert!(parts.len() >= parts_for(blocks), "each block has a part");
        // Pairs with the acquire in `blocks`: a thread that sees the size finds the parts.
        self.blocks.store(blocks, Ordering::Release);
        Ok(())
    }

    fn describe(&self) -> String {
        format!("{} blocks of memory", self.blocks())
    }

    fn can_grow(&self) -> bool {
        self.growable
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }
}
