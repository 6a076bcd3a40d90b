//! Counts for `stat`, benchmarks and tests.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts since the pool was built, and its present state. Taken while other threads work, they need not match exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounters {
    /// Units found resident.
    pub hits: u64,
    /// Units that were not resident: each started a load.
    pub misses: u64,
    /// Misses of inner pages of trees, asked for with [`Hint::Index`](crate::Hint::Index).
    pub index_misses: u64,
    /// Misses of leaves and values of gets, asked for with [`Hint::Lookup`](crate::Hint::Lookup).
    pub lookup_misses: u64,
    /// Fetches that joined a load that was under way.
    pub coalesced: u64,
    /// Misses that a prefetch started.
    pub prefetched: u64,
    /// Units evicted to make room.
    pub evictions: u64,
    /// Units that stayed after their write, and so became resident without a read.
    pub adopted: u64,
    /// Write requests completed.
    pub writes: u64,
    /// Blocks written by them.
    pub blocks_written: u64,
    /// Write requests failed.
    pub write_errors: u64,
    /// Read requests failed.
    pub read_errors: u64,
    /// Units that were read and did not match their checksum.
    pub corrupt: u64,
    /// Requests that timed out while they waited for a frame.
    pub exhausted: u64,
    /// Requests that had to wait for a frame.
    pub starved: u64,
    /// Total microseconds of these waits.
    pub starved_us: u64,
    /// Pages that were copied into a side buffer to be written from there.
    pub set_aside: u64,
    /// Misses served from a side buffer.
    pub queue_hits: u64,
    /// Pages of streams that were read ahead and then wanted.
    pub ahead_used: u64,
    /// Pages of streams that were read ahead in vain.
    pub ahead_wasted: u64,
    /// The time of a read in microseconds: a moving estimate.
    pub read_us: u64,
    /// Frames of the pool.
    pub frames: usize,
    /// Frames that hold something or are under I/O.
    pub frames_used: usize,
    /// Frames of pinned units.
    pub frames_pinned: usize,
    /// Side buffers.
    pub side_buffers: usize,
    /// Side buffers that hold an image which the device does not have.
    pub side_buffers_used: usize,
}

/// The counts that no other structure keeps. A hit touches none: the pin word counts hits, and they come here when it
/// is reused.
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) misses: Count,
    pub(crate) index_misses: Count,
    pub(crate) lookup_misses: Count,
    pub(crate) coalesced: Count,
    pub(crate) prefetched: Count,
    pub(crate) evictions: Count,
    pub(crate) adopted: Count,
    pub(crate) writes: Count,
    pub(crate) blocks_written: Count,
    pub(crate) write_errors: Count,
    pub(crate) read_errors: Count,
    pub(crate) corrupt: Count,
    pub(crate) exhausted: Count,
    pub(crate) starved: Count,
    pub(crate) starved_us: Count,
    pub(crate) set_aside: Count,
    pub(crate) queue_hits: Count,
    pub(crate) ahead_used: Count,
    pub(crate) ahead_wasted: Count,
}

/// Groups of threads; some state is kept once for each group. Two threads of one group on two cores slow each other
/// down, so there are more groups than threads that work at once in a store.
pub(crate) const CELLS: usize = 32;

/// The group of this thread.
pub(crate) fn cell() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static CELL: usize = THREADS.fetch_add(1, Ordering::Relaxed) % CELLS;
    }
    // An exiting thread belongs to the first group.
    CELL.try_with(|&cell| cell).unwrap_or(0)
}

/// A value alone in its cache line, because it changes often while its neighbours are read.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct Alone<T>(pub(crate) T);

impl<T> Deref for Alone<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A count without memory ordering. Threads count in different cells, so that they do not take the cache line from each
/// other at every miss.
#[derive(Default)]
pub(crate) struct Count([Alone<AtomicU64>; CELLS]);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        if count > 0 {
            self.0[cell()].fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|cell| cell.load(Ordering::Relaxed)).sum()
    }
}
