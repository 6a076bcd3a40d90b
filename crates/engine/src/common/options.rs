//! How a store is laid out and run. Every size is configuration, so that tests make rare things common.

use std::sync::Arc;

use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::{BLOCK_BYTES, Clock, Entropy, SystemClock, SystemEntropy};

/// Where time and randomness come from.
#[derive(Clone)]
pub struct Environment {
    /// Wall clock and monotonic clock.
    pub clock: Arc<dyn Clock>,
    /// Identities and seeds.
    pub entropy: Arc<dyn Entropy>,
}

impl Default for Environment {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock::new()), entropy: Arc::new(SystemEntropy) }
    }
}

/// Most tablets that a store may have: their table is a part of the superblock.
pub const TABLETS_MAX: u16 = 32;

/// How a new store is laid out. Fixed for its life.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Blocks that the store may grow to; for a raw device its size.
    pub blocks_max: u64,
    /// Tablets, 1 to 32.
    pub tablets: u16,
    /// Blocks of the log's ring; none: in proportion to `blocks_max`.
    pub log_blocks: Option<u32>,
    /// Blocks of the ring that a file gets at first, at least 8; the others follow as writes need them. None: 8 MiB. Ignored where
    /// the device cannot grow.
    pub log_prepared: Option<u32>,
    /// Blocks that a file gets at first, zeroed; it grows from there. Ignored where the device cannot grow.
    pub initial_blocks: Option<u64>,
    /// Formats what is not blank, too, and destroys what it holds; also the first and the last 16 MiB are zeroed then.
    pub overwrite: bool,
}

impl FormatOptions {
    /// The default layout for a store that may grow to `blocks_max` blocks.
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
            overwrite: false,
        }
    }

    /// Blocks of the log's ring: 1/128 of the device, at least 64 KiB and at most 256 MiB, so that it is read back in
    /// well under a second.
    #[must_use]
    pub fn log_blocks(&self) -> u32 {
        self.log_blocks.unwrap_or_else(|| (self.blocks_max / 128).clamp(16, 65_536) as u32)
    }
}

/// How a store is run. May differ from opening to opening.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Memory for cached pages and values, in bytes.
    pub cache_bytes: usize,
    /// Memory for what the log holds and the trees do not yet, in bytes; none: in proportion to cache and log.
    pub overlay_bytes: Option<usize>,
    /// Whether the store runs its own threads (committer, apply, growth). Without them whoever writes does their work
    /// too, on its own thread: for tests that must be deterministic.
    pub background: bool,
    /// Writes nothing to the device, which need not be writable: what the log holds is recovered in memory, every write is refused
    /// ([`Error::ReadOnly`](crate::Error::ReadOnly)), and no threads are run. What such a store shows of writes that a crash left
    /// unflushed may be gone after a power cut: only an opening for writing makes it durable.
    pub read_only: bool,
    /// Opens a log that lost promised records, dropping what follows the damage. The loss is reported in the log.
    pub accept_damaged_log: bool,
    /// Buckets whose values lie in groups of their own, apart from everybody else's; at most
    /// [`OWN_SPACES_MAX`](crate::OWN_SPACES_MAX). Not a quota: where nothing else is free, others get their space too.
    pub own_space: Vec<String>,
    /// Opens with moving paused: [`Store::resume_relocation`](crate::Store::resume_relocation).
    pub pause_relocation: bool,
    /// Gives groups of blocks that are wholly free back to the device, in the background and at a limited rate: a file
    /// gets holes there, a raw device learns that they hold nothing. Writing into a hole of a file costs
    /// more at the next flush than overwriting.
    pub discard: bool,
    /// Sizes that tests shrink.
    pub tuning: Tuning,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 1 << 30,
            overlay_bytes: None,
            background: true,
            read_only: false,
            accept_damaged_log: false,
            own_space: Vec::new(),
            pause_relocation: false,
            discard: false,
            tuning: Tuning::default(),
        }
    }
}

impl OpenOptions {
    /// The limit on the overlays of all tablets together, in bytes, for a log ring of `log_blocks` blocks: what the
    /// caller says, else an eighth of the cache but at least 16 MiB and at most 128 MiB; never above a third of the log, so that a
    /// frozen and an active overlay and the batches' padding fit in it.
    #[must_use]
    pub fn overlay_bytes(&self, log_blocks: u32) -> usize {
        let wanted = self.overlay_bytes.unwrap_or((self.cache_bytes / 8).clamp(16 << 20, 128 << 20));
        wanted.min(log_blocks as usize * BLOCK_BYTES / 3).max(BLOCK_BYTES)
    }
}

/// Sizes and periods inside the engine.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// A value up to this many bytes lies in its leaf, where key, metadata and value fit in 1,300 bytes.
    pub leaf_value_bytes_max: usize,
    /// A value up to this many bytes rides in its log record and goes home at the apply; a larger one is written to
    /// its own extent at once. One of up to twice as many bytes rides there, too, where blocks of its own would waste a
    /// sixteenth of its length.
    pub log_value_bytes_max: usize,
    /// Bytes of records in one batch of the log.
    pub batch_bytes_max: usize,
    /// Records in all overlays together.
    pub overlay_records_max: usize,
    /// Bytes of a run in which an apply packs such values, at most; 16 KiB to 1 MiB. A small store takes shorter ones.
    pub packed_run_bytes_max: usize,
    /// Bytes of packed runs that one apply reads to rewrite them, at most; never more than an eighth of the cache.
    pub move_bytes_max: usize,
    /// Groups of blocks to keep wholly free, in thousandths of all.
    pub reserve_permille: u32,
    /// Bytes that the background moves, reads and writes counted, in a second on a store that nobody uses.
    pub move_idle_bytes_per_s: u64,
    /// The same on a store in use. Where values are in splinters it is sixteen times the other one in either case.
    pub move_load_bytes_per_s: u64,
    /// Bytes that a scrub in the background reads in a second; 0: there is none.
    pub scrub_bytes_per_s: u64,
    /// Pause between the end of a scrub and the beginning of the next one, in nanoseconds. The first one of an opening begins after
    /// ten minutes, or after this where it is less.
    pub scrub_every_ns: u64,
    /// Bytes that an apply has under way at the device at a time: a commit's flush waits for them.
    pub apply_bytes_in_flight: usize,
    /// Blocks that a file grows by; fewer where the file system has no room for so many.
    pub growth_blocks: u64,
    /// How often it is looked whether the data file is still at its place, in nanoseconds.
    pub file_look_ns: u64,
    /// Idle time after which the log's last batch is sealed, in nanoseconds.
    pub seal_after_ns: u64,
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
            batch_bytes_max: 2 << 20,
            overlay_records_max: 1_000_000,
            scrub_bytes_per_s: 8 << 20,
            scrub_every_ns: 7 * 24 * 3_600_000_000_000,
            apply_bytes_in_flight: 1 << 20,
            growth_blocks: 65_536,
            file_look_ns: 3_000_000_000,
            seal_after_ns: 10_000_000,
        }
    }
}

/// Blocks of a unit of a value.
pub(crate) const UNIT_BLOCKS: u32 = (VALUE_UNIT_BYTES / BLOCK_BYTES) as u32;
