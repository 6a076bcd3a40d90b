//! The options for formatting and running a store. Every size is configuration, so that tests make rare things common.

use std::sync::Arc;

use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::{BLOCK_BYTES, Clock, Entropy, SystemClock, SystemEntropy};

/// The sources of time and randomness.
#[derive(Clone)]
pub struct Environment {
    /// Wall clock and monotonic clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness for identities and secrets.
    pub entropy: Arc<dyn Entropy>,
}

impl Default for Environment {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock::new()), entropy: Arc::new(SystemEntropy) }
    }
}

/// Limit on the tablets of a store: their table is a part of the superblock.
pub const TABLETS_MAX: u16 = 32;

/// The layout of a new store. Fixed for its lifetime, except for the cap: [`OpenOptions::grow_to`].
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Largest number of blocks of the store; for a raw device its size.
    pub blocks_max: u64,
    /// Tablets, 1 to 32.
    pub tablets: u16,
    /// Blocks of the log's ring; `None`: in proportion to `blocks_max`.
    pub log_blocks: Option<u32>,
    /// Blocks of the ring that a new file gets, at least 8; the others follow as writes need them. `None`: 8 MiB. Ignored if the device
    /// cannot grow.
    pub log_prepared: Option<u32>,
    /// Zeroed blocks of a new file, which grows from there. Ignored if the device cannot grow.
    pub initial_blocks: Option<u64>,
    /// The version of the first write, at least 1. A restored store starts above all versions that clients of the lost one saw.
    pub first_version: u64,
    /// Also formats a device that is not blank, and destroys its contents; the first and the last 16 MiB are zeroed.
    pub overwrite: bool,
}

impl FormatOptions {
    /// The default layout for a store of at most `blocks_max` blocks.
    #[must_use]
    pub fn for_blocks(blocks_max: u64) -> Self {
        let cores = std::thread::available_parallelism().map_or(4, std::num::NonZero::get);
        let tablets = u16::try_from(cores.clamp(4, usize::from(TABLETS_MAX))).unwrap_or(TABLETS_MAX);
        Self {
            blocks_max,
            tablets,
            log_blocks: None,
            log_prepared: None,
            initial_blocks: None,
            first_version: 1,
            overwrite: false,
        }
    }

    /// Blocks of the log's ring: 1/128 of the device, at least 64 KiB and at most 256 MiB, so that reading it takes
    /// well under a second.
    #[must_use]
    pub fn log_blocks(&self) -> u32 {
        self.log_blocks.unwrap_or_else(|| log_blocks_for(self.blocks_max))
    }
}

/// Blocks of the log's ring of a store with a cap of `blocks_max` blocks.
#[must_use]
pub fn log_blocks_for(blocks_max: u64) -> u32 {
    (blocks_max / 128).clamp(16, 65_536) as u32
}

/// The options of running a store. They may differ from opening to opening.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Memory for cached pages and values, in bytes.
    pub cache_bytes: usize,
    /// Memory for records that are in the log but not yet in the trees, in bytes; `None`: in proportion to cache and log.
    pub memtable_bytes: Option<usize>,
    /// True if the store runs its own threads (committer, apply, growth). Otherwise writers also do that work on their own threads: for
    /// tests that must be deterministic.
    pub background: bool,
    /// Writes nothing to the device, which need not be writable: the log is recovered in memory, every write is refused
    /// ([`Error::ReadOnly`](crate::error::Error::ReadOnly)), and no threads run. Writes that a crash left unflushed are
    /// visible in such a store but may be gone after a power cut: only an opening for writing makes them durable.
    pub read_only: bool,
    /// Opens a log that lost promised records, without the records after the damage. The loss is logged.
    pub accept_damaged_log: bool,
    /// Buckets whose values are stored in separate groups, apart from all others; at most `OWN_SPACES_MAX`. Not a quota: if no other space
    /// is free, other buckets also use their groups.
    pub own_space: Vec<String>,
    /// Opens with relocation paused: `Store::resume_relocation`.
    pub pause_relocation: bool,
    /// Releases blocks that have been free for some seconds on the device, in the background and at a limited rate: a file gets holes,
    /// whose room is taken again before they are used, and a raw device learns that they are unused. `None`: for a file only.
    pub discard: Option<bool>,
    /// Raises the cap of the store ([`FormatOptions::blocks_max`]) to this many blocks, durably, before it is open; the present cap changes
    /// nothing. The opening fails with [`Error::Invalid`](crate::error::Error::Invalid) if the store has a larger cap, if the device is too
    /// small for it, or if the store is opened read-only; the store is unchanged then.
    pub grow_to: Option<u64>,
    /// The device can be opened on another machine, too, where no lock reaches. The opening claims it with a superblock before it reads the
    /// log, and each flush of the log is followed by a look at the superblocks: once another opening wrote one, nothing more is
    /// acknowledged. **An alarm, not a fence**: the last batch may have overwritten the other opening's log.
    pub shared_device: bool,
    /// Keeps the log for an archive: no record above its floor is overwritten, and no block of a value that such a record names is reused,
    /// until `Store::release_log` raises the floor. Writers wait while the log is full of such records, and freed space may wait, too. The
    /// archive reads the log from the ring; up to 4 MiB of its newest batches stay in memory. Without effect if the store is opened read-only.
    pub archived: bool,
    /// Sizes that tests shrink.
    pub tuning: Tuning,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 1 << 30,
            memtable_bytes: None,
            background: true,
            read_only: false,
            accept_damaged_log: false,
            own_space: Vec::new(),
            pause_relocation: false,
            discard: None,
            grow_to: None,
            shared_device: false,
            archived: false,
            tuning: Tuning::default(),
        }
    }
}

impl OpenOptions {
    /// The limit on all tablets' memtables, in bytes: the caller's value, else a tenth of the cache but at least 12 MiB and at most
    /// 104 MiB. A short log allows less; an apply lends a quarter more.
    #[must_use]
    pub fn memtable_bytes(&self) -> usize {
        self.memtable_bytes.unwrap_or((self.cache_bytes / 10).clamp(12 << 20, 104 << 20)).max(BLOCK_BYTES)
    }
}

/// Sizes and periods inside the engine.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// A value up to this many bytes is stored in its leaf if key, metadata and value fit in 1,300 bytes.
    pub leaf_value_bytes_max: usize,
    /// A value up to this many bytes is stored in its log record and goes home at the apply; a larger one is written to its own extent at
    /// once. A value of up to twice this size is also stored in the record if separate blocks would waste a sixteenth of its length.
    pub log_value_bytes_max: usize,
    /// Minimum of a tablet's entries for its applies to write layers and filters.
    pub layers_from: u64,
    /// Minimum of records for a leaf of the base to be rewritten by an apply; fewer go to a layer.
    pub dense_records: usize,
    /// Minimum of records of the first layer above a base.
    pub layer_records_min: usize,
    /// Entries of layers per thousand of the base at which the layers are compacted into it.
    pub merge_permille: u64,
    /// Searches of reads in layers that pay for one entry of a compaction if none is due by size.
    pub searches_per_entry: u64,
    /// Bytes of entries that one slice of a compaction takes from the layers.
    pub merge_slice_bytes: usize,
    /// Bytes of the keys with the earliest deadlines that the store remembers.
    pub deadlines_bytes_max: usize,
    /// Keys that a write without room examines in search of expired objects before it is refused.
    pub walked_for_room_max: u64,
    /// Bytes of all values that one transaction reads: they are in memory at the same time.
    pub looks_bytes_max: u64,
    /// Memory for short values that are read often, in bytes; taken as they are read.
    pub read_cache_bytes: usize,
    /// Bytes of records in one batch of the log.
    pub batch_bytes_max: usize,
    /// Records in all memtables.
    pub memtable_records_max: usize,
    /// Bytes of a memtable from which on its apply lends writers its room step by step; the room of a smaller one becomes free at the end.
    pub lend_bytes_min: usize,
    /// Limit on the bytes of a packed run, 16 KiB to 1 MiB. A small store uses shorter runs.
    pub packed_run_bytes_max: usize,
    /// Limit on the bytes of packed runs that one apply reads for rewriting; never more than an eighth of the cache.
    pub move_bytes_max: usize,
    /// Groups of blocks to keep wholly free, in thousandths of all groups.
    pub reserve_permille: u32,
    /// Bytes that relocation moves per second in a store without requests, reads and writes counted.
    pub move_idle_bytes_per_s: u64,
    /// The same in a store with requests. While values are in splinters, the limit is sixteen times the other one in either case.
    pub move_load_bytes_per_s: u64,
    /// Bytes that a scrub in the background reads per second; 0: there is no scrub.
    pub scrub_bytes_per_s: u64,
    /// Pause between two scrubs, in nanoseconds. The first scrub after an opening starts after ten minutes, or after this pause if it is
    /// shorter.
    pub scrub_every_ns: u64,
    /// Bytes of an apply in flight at the device: a commit's flush waits for them.
    pub apply_bytes_in_flight: usize,
    /// Blocks of a step of growth; fewer if the file system has no room for them.
    pub growth_blocks: u64,
    /// Time between two checks that the data file is still at its place, in nanoseconds.
    pub file_look_ns: u64,
    /// Time after which the log's last batch is sealed, in nanoseconds: from its start, and twice its duration more.
    pub seal_after_ns: u64,
    /// The longest time for which a snapshot holds the space that it reaches, in nanoseconds; then it is dropped.
    pub snapshot_max_age_ns: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            leaf_value_bytes_max: 1024,
            log_value_bytes_max: 16 << 10,
            packed_run_bytes_max: 1 << 20,
            move_bytes_max: 64 << 20,
            reserve_permille: 20,
            move_idle_bytes_per_s: 512 << 20,
            move_load_bytes_per_s: 64 << 20,
            layers_from: 64 << 10,
            dense_records: 8,
            layer_records_min: 1024,
            merge_permille: 500,
            searches_per_entry: 4,
            merge_slice_bytes: 4 << 20,
            deadlines_bytes_max: 16 << 20,
            walked_for_room_max: 65_536,
            looks_bytes_max: 64 << 20,
            read_cache_bytes: 16 << 20,
            batch_bytes_max: 2 << 20,
            memtable_records_max: 1_000_000,
            lend_bytes_min: 1 << 20,
            scrub_bytes_per_s: 8 << 20,
            scrub_every_ns: 7 * 24 * 3_600_000_000_000,
            apply_bytes_in_flight: 1 << 20,
            growth_blocks: 65_536,
            file_look_ns: 3_000_000_000,
            seal_after_ns: 10_000_000,
            snapshot_max_age_ns: 24 * 3_600_000_000_000,
        }
    }
}

/// Blocks of a unit of a value.
pub const UNIT_BLOCKS: u32 = (VALUE_UNIT_BYTES / BLOCK_BYTES) as u32;
