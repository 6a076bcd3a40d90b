//! Figures about a running store.

use shoal_base::BLOCK_BYTES_U64;
use shoal_base::histogram::Durations;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_device::DeviceCounters;
use shoal_image::losses::Losses;
use shoal_pool::PoolCounters;

use crate::store::last_backup::BackupNote;
use crate::store::standstill::Look;
use crate::store::{Inner, Store};

/// Keys of a memtable whose kinds are counted to estimate the numbers of puts and deletes; its lock is held meanwhile.
const KEYS_SAMPLED: usize = 1024;

/// Figures about a running store.
#[derive(Clone, Debug, Default)]
pub struct StoreStat {
    /// Objects in the trees, expired ones that are not deleted yet included; objects only in the memtables are not
    /// counted.
    pub objects: u64,
    /// Writes of existing objects that count by estimate: until a compaction, each may be a new object, and have replaced a value of another
    /// length.
    pub unsettled: u64,
    /// The number of `objects` with a deadline; 0 also if some tablet did not count them.
    pub expiring: u64,
    /// Stored results of writes with a request id, which are no objects. Approximate: a result in a memtable may
    /// replace one in the trees. Results of an earlier run count from [`Store::count_results`] on.
    pub results: u64,
    /// Estimates of the keys that the memtables write and of the keys that they delete, without a look into the trees
    /// for these keys. Results, uploads and parts are left out.
    pub log_puts: u64,
    /// See `log_puts`.
    pub log_deletes: u64,
    /// An estimate of the bytes of the values that the memtables hold, without results.
    pub log_value_bytes: u64,
    /// Records that the log holds and the trees do not yet, and their bytes in memory.
    pub memtable_records: u64,
    /// See `memtable_records`.
    pub memtable_bytes: u64,
    /// The limit on `memtable_bytes`.
    pub memtable_bytes_max: u64,
    /// Blocks of the device that are usable now, and the number that it may grow to.
    pub device_blocks: u64,
    /// See `device_blocks`.
    pub blocks_max: u64,
    /// Blocks that may be allocated now, without holes.
    pub free_blocks: u64,
    /// Blocks that the space can grow by, holes included: up to `blocks_max` as far as its file system had room some seconds ago.
    pub growable_blocks: u64,
    /// The reason why the file could not grow when it was tried last; `None` if it could.
    pub cannot_grow: Option<String>,
    /// Freed blocks that are not reusable yet (R9).
    pub pending_blocks: u64,
    /// Blocks of the longest free run.
    pub largest_free_run: u64,
    /// Blocks of the log between tail and head, and of its ring.
    pub log_used_blocks: u64,
    /// See `log_used_blocks`.
    pub log_blocks: u64,
    /// Blocks of the log's ring that are prepared for batches: only these take disk. All of the ring on a block device.
    pub log_prepared_blocks: u64,
    /// Tablets.
    pub tablets: u16,
    /// The reason why the store is read-only; `None` if it is not.
    pub poisoned: Option<String>,
    /// The reason why no write gets room in the data file at present: its file system is full, for instance. Reads work, and the
    /// field is `None` again as soon as a write got room.
    pub no_room: Option<String>,
    /// Losses of repairs that no user has acknowledged.
    pub losses: Losses,
    /// Operations since the store was opened.
    pub puts: u64,
    /// See `puts`.
    pub gets: u64,
    /// See `puts`.
    pub deletes: u64,
    /// Bytes of values put and got since the store was opened.
    pub value_bytes_written: u64,
    /// See `value_bytes_written`.
    pub value_bytes_read: u64,
    /// Bytes that puts copied, of values with their own extents.
    pub value_bytes_copied: u64,
    /// Log batches, their records and their blocks.
    pub batches: u64,
    /// See `batches`.
    pub records: u64,
    /// See `batches`.
    pub log_blocks_written: u64,
    /// The times of the log's batches, each from the write to the end of its flush.
    pub commit_times: Durations,
    /// Layers of all tablets, and the entries in them, tombstones included.
    pub layers: u64,
    /// See `layers`.
    pub layer_entries: u64,
    /// The largest number of layers of one tablet.
    pub layers_most: u64,
    /// Completed compactions of layers, and the bytes of entries that compactions took.
    pub merges: u64,
    /// See `merges`.
    pub merged_bytes: u64,
    /// Nanoseconds in which applies paused so that late compactions could catch up.
    pub paused_ns: u64,
    /// Applies, and the blocks of pages and of values that they wrote.
    pub applies: u64,
    /// See `applies`.
    pub page_blocks_written: u64,
    /// See `applies`. Moved values are included.
    pub home_blocks_written: u64,
    /// Blocks of values with their own extents that puts wrote.
    pub extent_blocks_written: u64,
    /// Blocks of zeros that the growth of the file wrote.
    pub growth_blocks_written: u64,
    /// Values that applies moved out of packed runs with too few live bytes, and their bytes.
    pub moved_values: u64,
    /// See `moved_values`.
    pub moved_bytes: u64,
    /// Values with their own runs, the number of these runs, and the values with more than four.
    pub values_placed: u64,
    /// See `values_placed`.
    pub runs_placed: u64,
    /// See `values_placed`.
    pub values_splintered: u64,
    /// True if relocation is paused.
    pub relocation_paused: bool,
    /// Groups that are wholly free, and the number of further groups to empty.
    pub whole_groups: u64,
    /// See `whole_groups`.
    pub groups_to_empty: u64,
    /// Groups that are being emptied, and the bytes to move out of them.
    pub groups_closed: u64,
    /// See `groups_closed`.
    pub bytes_to_move: u64,
    /// Groups that were emptied since the store was opened, and bytes of the values moved out of them.
    pub groups_emptied: u64,
    /// See `groups_emptied`.
    pub bytes_evacuated: u64,
    /// Bytes that were returned to the device.
    pub bytes_discarded: u64,
    /// Objects that were deleted because they had expired.
    pub expired: u64,
    /// Keys that the walks for expired objects examined, and how often a write without room deleted expired
    /// objects.
    pub expiry_examined: u64,
    /// See `expiry_examined`.
    pub reaps_for_room: u64,
    /// Steps of writes without room to make some: applies, growth, compactions, rewriting of packed runs.
    pub room_steps: u64,
    /// Keys of deleted and expired objects that listings skipped, and the most that one page skipped.
    pub keys_passed: u64,
    /// See `keys_passed`.
    pub keys_passed_most: u64,
    /// Steps of the wall clock since the store was opened, and their sum in nanoseconds; a negative sum is a step back.
    pub clock_steps: u64,
    /// See `clock_steps`.
    pub clock_skew_ns: i64,
    /// Bytes of the values in the trees, stored results, uploads and parts included.
    pub live_value_bytes: u64,
    /// Bytes of the stored results, uploads and parts in the trees.
    pub result_value_bytes: u64,
    /// Blocks that trees, values and unapplied records own, without log and superblocks.
    pub allocated_blocks: u64,
    /// Free blocks that were returned to the device: a file has no room for them.
    pub hole_blocks: u64,
    /// Blocks of the disk that the file or device takes, as of some seconds ago: log, superblocks and free blocks included.
    pub taken_blocks: u64,
    /// Buckets with their own space, and the blocks of their groups.
    pub own_buckets: u64,
    /// See `own_buckets`.
    pub own_blocks: u64,
    /// Packed runs of small values, their blocks, and the bytes of their live values.
    pub packed_runs: u64,
    /// See `packed_runs`.
    pub packed_blocks: u64,
    /// See `packed_runs`.
    pub packed_live_bytes: u64,
    /// True if a pass of a scrub in the background is under way.
    pub scrub_runs: bool,
    /// Scrub passes completed since the store was opened, the bytes that they read, and the problems that they found.
    pub scrub_passes: u64,
    /// See `scrub_passes`.
    pub scrub_bytes: u64,
    /// See `scrub_passes`.
    pub scrub_problems: u64,
    /// The end of the last pass, in nanoseconds of the Unix epoch; 0: no pass is complete since the opening.
    pub scrub_ended_ns: u64,
    /// The last complete backup without gaps, as [`Store::note_backup`] noted it; `None`: none was noted, or
    /// [`Store::recall_backup`] was not called.
    pub last_backup: Option<BackupNote>,
    /// Records of buckets, once they are loaded.
    pub bucket_records: u64,
    /// Damaged ranges of keys that reads and listings met since the opening.
    pub damaged_ranges: u64,
    /// The device's counts.
    pub device: DeviceCounters,
    /// The pool's counts.
    pub pool: PoolCounters,
}

impl StoreStat {
    /// Objects, the log's included: exact if the log holds only new objects and deletes of old ones. Until the next
    /// apply, which comes within seconds, an overwrite of an object in the trees counts one object too many, and a
    /// delete of an object that only the log holds counts one too few.
    #[must_use]
    pub fn objects_with_log(&self) -> u64 {
        // The note of a backup and the records of buckets are objects of the store's own.
        let own = u64::from(self.last_backup.is_some()) + self.bucket_records;
        (self.objects + self.log_puts).saturating_sub(self.log_deletes + own)
    }

    /// Blocks for objects that are free or that the file can grow by: the smaller of the limits of the cap and of the file
    /// system.
    #[must_use]
    pub fn room_blocks(&self) -> u64 {
        self.free_blocks + self.growable_blocks
    }

    /// Bytes of the values of objects, the log's included. Until the next apply, a value that another one in the log
    /// replaces or deletes counts, too.
    #[must_use]
    pub fn value_bytes_with_log(&self) -> u64 {
        self.live_value_bytes.saturating_sub(self.result_value_bytes) + self.log_value_bytes
    }

    /// Bytes of the file that trees, values and unapplied records use, without log and superblocks.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.allocated_blocks.saturating_mul(BLOCK_BYTES_U64)
    }

    /// Bytes of the disk that the file or device takes, as of some seconds ago: log, superblocks and free blocks outside of holes included.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.taken_blocks.saturating_mul(BLOCK_BYTES_U64)
    }

    /// Bytes of `disk_bytes` that the log's ring takes.
    #[must_use]
    pub fn log_disk_bytes(&self) -> u64 {
        self.log_prepared_blocks.saturating_mul(BLOCK_BYTES_U64)
    }

    /// The figures as name, unit and value, in a fixed order, as `shoal stat` shows them.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, &'static str, u64)> {
        let mut figures = self.store_figures();
        figures.extend(self.maintenance_figures());
        figures.extend(self.device_figures());
        figures
    }

    fn store_figures(&self) -> Vec<(&'static str, &'static str, u64)> {
        vec![
            ("store.tablets", "count", u64::from(self.tablets)),
            ("objects.estimated", "count", self.unsettled),
            ("objects.expiring", "count", self.expiring),
            ("objects.value_bytes", "bytes", self.value_bytes_with_log()),
            ("results", "count", self.results),
            ("losses.lost", "count", self.losses.lost),
            ("losses.reverted", "count", self.losses.reverted),
            ("losses.resurrected", "count", self.losses.resurrected),
            ("space.device", "blocks", self.device_blocks),
            ("space.device_max", "blocks", self.blocks_max),
            ("space.room", "blocks", self.room_blocks()),
            ("space.cannot_grow", "count", u64::from(self.cannot_grow.is_some())),
            ("space.pending", "blocks", self.pending_blocks),
            ("space.largest_free_run", "blocks", self.largest_free_run),
            ("space.no_room", "count", u64::from(self.no_room.is_some())),
            ("space.allocated", "blocks", self.allocated_blocks),
            ("space.holes", "blocks", self.hole_blocks),
            ("bytes.objects", "bytes", self.value_bytes_with_log()),
            ("bytes.used", "bytes", self.used_bytes()),
            ("bytes.disk", "bytes", self.disk_bytes()),
            ("bytes.log", "bytes", self.log_disk_bytes()),
            ("space.live_values", "bytes", self.live_value_bytes),
            ("own.buckets", "count", self.own_buckets),
            ("own.groups", "blocks", self.own_blocks),
            ("packed.runs", "count", self.packed_runs),
            ("packed.blocks", "blocks", self.packed_blocks),
            ("packed.live", "bytes", self.packed_live_bytes),
            ("overlay.records", "count", self.memtable_records),
            ("overlay.puts", "count", self.log_puts),
            ("overlay.deletes", "count", self.log_deletes),
            ("memtable.bytes", "bytes", self.memtable_bytes),
            ("log.used", "blocks", self.log_used_blocks),
            ("log.ring", "blocks", self.log_blocks),
            ("log.batches", "count", self.batches),
            ("log.records", "count", self.records),
            ("log.commit_us_p50", "us", self.commit_times.quantile_ns(500).unwrap_or(0) / 1_000),
            ("log.commit_us_p99", "us", self.commit_times.quantile_ns(990).unwrap_or(0) / 1_000),
            ("operations.puts", "count", self.puts),
            ("operations.gets", "count", self.gets),
            ("operations.deletes", "count", self.deletes),
            ("operations.expired", "count", self.expired),
            ("expiry.examined", "count", self.expiry_examined),
            ("expiry.reaps_for_room", "count", self.reaps_for_room),
            ("space.room_steps", "count", self.room_steps),
            ("listing.passed", "count", self.keys_passed),
            ("listing.passed_most", "count", self.keys_passed_most),
            ("clock.steps", "count", self.clock_steps),
            ("clock.ahead", "ms", self.clock_skew_ns.max(0) as u64 / 1_000_000),
            ("clock.behind", "ms", self.clock_skew_ns.min(0).unsigned_abs() / 1_000_000),
            ("operations.value_bytes_written", "bytes", self.value_bytes_written),
            ("operations.value_bytes_read", "bytes", self.value_bytes_read),
            ("operations.value_bytes_copied", "bytes", self.value_bytes_copied),
            ("layers", "count", self.layers),
            ("layers.entries", "count", self.layer_entries),
            ("layers.most", "count", self.layers_most),
            ("layers.merges", "count", self.merges),
            ("layers.merged", "bytes", self.merged_bytes),
            ("layers.paused", "ms", self.paused_ns / 1_000_000),
            ("applies", "count", self.applies),
            ("written.log", "blocks", self.log_blocks_written),
            ("written.pages", "blocks", self.page_blocks_written),
            ("written.home", "blocks", self.home_blocks_written),
            ("written.extents", "blocks", self.extent_blocks_written),
            ("written.growth", "blocks", self.growth_blocks_written),
        ]
    }

    /// The figures of the background work.
    fn maintenance_figures(&self) -> [(&'static str, &'static str, u64); 20] {
        [
            ("moved.values", "count", self.moved_values),
            ("moved.bytes", "bytes", self.moved_bytes),
            ("space.values_placed", "count", self.values_placed),
            ("space.runs_placed", "count", self.runs_placed),
            ("space.values_splintered", "count", self.values_splintered),
            ("relocation.paused", "count", u64::from(self.relocation_paused)),
            ("relocation.groups_whole", "count", self.whole_groups),
            ("relocation.groups_to_empty", "count", self.groups_to_empty),
            ("relocation.groups_closed", "count", self.groups_closed),
            ("relocation.bytes_left", "bytes", self.bytes_to_move),
            ("relocation.groups_emptied", "count", self.groups_emptied),
            ("relocation.bytes_moved", "bytes", self.bytes_evacuated),
            ("relocation.bytes_discarded", "bytes", self.bytes_discarded),
            ("scrub.passes", "count", self.scrub_passes),
            ("scrub.bytes", "bytes", self.scrub_bytes),
            ("scrub.problems", "count", self.scrub_problems),
            ("scrub.ended", "s", self.scrub_ended_ns / 1_000_000_000),
            ("backup.version", "count", self.last_backup.map_or(0, |backup| backup.version.0)),
            ("backup.taken", "s", self.last_backup.map_or(0, |backup| backup.taken_ns / 1_000_000_000)),
            ("damage.ranges", "count", self.damaged_ranges),
        ]
    }

    /// The figures of the device and the pool.
    fn device_figures(&self) -> [(&'static str, &'static str, u64); 29] {
        [
            ("device.reads", "count", self.device.reads),
            ("device.blocks_read", "blocks", self.device.blocks_read),
            ("device.writes", "count", self.device.writes),
            ("device.blocks_written", "blocks", self.device.blocks_written),
            ("device.flushes", "count", self.device.flushes),
            ("device.errors", "count", self.device.errors),
            ("pool.frames", "count", self.pool.frames as u64),
            ("pool.frames_used", "count", self.pool.frames_used as u64),
            ("pool.frames_pinned", "count", self.pool.frames_pinned as u64),
            ("pool.hits", "count", self.pool.hits),
            ("pool.misses", "count", self.pool.misses),
            ("pool.index_misses", "count", self.pool.index_misses),
            ("pool.lookup_misses", "count", self.pool.lookup_misses),
            ("pool.coalesced", "count", self.pool.coalesced),
            ("pool.queue_hits", "count", self.pool.queue_hits),
            ("pool.prefetched", "count", self.pool.prefetched),
            ("pool.ahead_used", "count", self.pool.ahead_used),
            ("pool.ahead_wasted", "count", self.pool.ahead_wasted),
            ("pool.evictions", "count", self.pool.evictions),
            ("pool.adopted", "count", self.pool.adopted),
            ("pool.writes", "count", self.pool.writes),
            ("pool.blocks_written", "blocks", self.pool.blocks_written),
            ("pool.read_us", "us", self.pool.read_us),
            ("pool.starved", "count", self.pool.starved),
            ("pool.starved_us", "us", self.pool.starved_us),
            ("pool.exhausted", "count", self.pool.exhausted),
            ("pool.read_errors", "count", self.pool.read_errors),
            ("pool.write_errors", "count", self.pool.write_errors),
            ("pool.corrupt", "count", self.pool.corrupt),
        ]
    }
}

impl Inner {
    /// Blocks of the device that are usable now.
    pub(crate) fn usable_blocks(&self) -> u64 {
        let newest = self.checkpointer.publisher.try_take().map(|superblock| superblock.device_blocks);
        newest.unwrap_or_else(|| self.device.blocks())
    }

    /// Blocks that the file can grow by.
    fn growable_blocks(&self) -> u64 {
        let holes = self.space.holes().blocks();
        self.checkpointer
            .growth
            .room_to_grow(self.device.blocks().saturating_sub(holes), self.layout().blocks_max)
    }

    /// Looks at the room of the file system. Not from `stat`: a dispatch thread must not wait for a file system that hangs.
    pub(crate) fn look_at_room(&self) {
        // The image does not use its holes, so they take no room, and data after them may use it.
        let holes = self.layout().unused_areas(self.device.blocks()).map(|part| part.end - part.start);
        self.checkpointer.growth.note_room(self.device.inner().room().map(|room| room + holes[0] + holes[1]));
        self.checkpointer.growth.note_taken(self.device.inner().taken());
    }

    /// Looks at the room of the file system, and checks that writes get through.
    pub(crate) fn look_at_writes(&self) {
        self.look_at_room();
        let (committer, room) = (&self.log.committer, &self.log.committer.room);
        self.maintenance.standstill.look(Look {
            now_ns: self.now_ns(),
            durable: committer.durable(),
            is_pending: committer.assigned() > committer.durable() || committer.has_work(),
            room_blocks: self.space.available() + self.growable_blocks(),
            without_room: room.refusals(),
            lacks_room: room.reason_of_any().is_some(),
        });
    }
}

impl Store {
    /// The reason why the store accepts no writes any more: the device failed one, or the store was opened
    /// read-only.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<String> {
        self.0.log.poison.reason().map(str::to_owned)
    }

    /// The reason why no write got through for at least ten seconds although some were tried: each was refused as full, or the
    /// device makes none durable. `None` again when one gets through, or when there is room for the one that was refused.
    #[must_use]
    pub fn standstill_reason(&self) -> Option<String> {
        // The thread that looks otherwise may hang in the same device.
        self.0.look_at_writes();
        let no_room = self.0.log.committer.room.reason_of_any();
        let full = match (no_room, self.0.checkpointer.growth.cannot_grow()) {
            (Some(why), _) => format!("the data file has no room: {why}"),
            (None, Some(why)) => format!("the data file cannot grow ({why})"),
            (None, None) => "the store is full".to_owned(),
        };
        self.0.maintenance.standstill.reason(&full)
    }

    /// The reason why no write is accepted at present, although the store is not read-only: the log has no room in the data file.
    /// `None` again as soon as it has.
    #[must_use]
    pub fn no_room_reason(&self) -> Option<String> {
        self.0.log.committer.room.reason_of_log().map(|why| format!("the data file has no room: {why}"))
    }

    /// Figures about the store.
    #[must_use]
    pub fn stat(&self) -> StoreStat {
        let inner = &*self.0;
        let (records, bytes) = inner.tablets.admission.held();
        let commits = inner.log.committer.counters();
        let device_blocks = inner.usable_blocks();
        let pending_blocks = inner.space.pending_blocks();
        let free_blocks = inner.space.allocator().free_blocks() + inner.space.holes().blocks();
        let counted = self.with_counters(self.stat_of_tablets());
        inner.log.tick();
        let (clock_steps, clock_skew_ns) = inner.log.expiry.skew();
        StoreStat {
            memtable_records: records as u64,
            memtable_bytes: bytes as u64,
            memtable_bytes_max: inner.tablets.admission.bytes_max() as u64,
            device_blocks,
            blocks_max: inner.layout().blocks_max,
            growable_blocks: inner.growable_blocks(),
            cannot_grow: inner.checkpointer.growth.cannot_grow(),
            free_blocks: inner.space.available(),
            pending_blocks,
            largest_free_run: u64::from(inner.space.allocator().largest_run()),
            log_used_blocks: inner.log.committer.ring.used_blocks(),
            log_blocks: u64::from(inner.layout().log_blocks),
            log_prepared_blocks: u64::from(inner.log.committer.ring.prepared()),
            tablets: inner.tablets.all().len() as u16,
            poisoned: inner.log.poison.failure().map(str::to_owned),
            no_room: inner.log.committer.room.reason_of_any(),
            losses: inner.losses,
            batches: commits.batches,
            records: commits.records,
            log_blocks_written: commits.log_blocks,
            commit_times: inner.log.committer.times(),
            relocation_paused: inner.checkpointer.move_limits.is_paused(),
            whole_groups: inner.space.allocator().whole_groups() as u64 + inner.space.hole_groups(),
            groups_to_empty: inner.relocator.groups_wanted(),
            groups_closed: inner.space.closed.groups().len() as u64,
            bytes_to_move: inner.relocator.bytes_to_move(),
            clock_steps,
            clock_skew_ns,
            hole_blocks: inner.space.holes().blocks(),
            taken_blocks: inner.checkpointer.growth.taken(),
            allocated_blocks: inner
                .layout()
                .data_blocks(device_blocks)
                .saturating_sub(free_blocks + pending_blocks),
            own_buckets: inner.own.count() as u64,
            own_blocks: inner.own.blocks(&inner.space),
            scrub_runs: inner.maintenance.scrub_runs.load(Ordering::Relaxed),
            last_backup: *inner.last_backup.lock(),
            bucket_records: inner.buckets.known().map_or(0, |known| known.states.len() as u64),
            damaged_ranges: inner.tablets.met.all().len() as u64,
            device: inner.device.counters(),
            pool: inner.pool.counters(),
            ..counted
        }
    }

    /// The figures that are sums over the tablets; all others are 0.
    fn stat_of_tablets(&self) -> StoreStat {
        let mut stat = StoreStat::default();
        for tablet in self.0.tablets.all() {
            let view = tablet.view();
            let results = tablet.results_of(&view);
            let others = view.totals.runs + results.count as u64;
            stat.objects += view.trees.live().saturating_sub(others);
            stat.expiring += view.totals.expiring.unwrap_or(0).saturating_sub(results.expiring as u64);
            stat.results += (results.count - results.hidden).max(0) as u64;
            stat.result_value_bytes += results.value_bytes as u64;
            let layers = view.trees.layers.list.len() as u64;
            stat.layers += layers;
            stat.layers_most = stat.layers_most.max(layers);
            stat.layer_entries += view.trees.layers.entries();
            stat.unsettled += view.trees.layers.unsettled;
            for memtable in view.frozen.iter().chain([&view.active]) {
                let written = memtable.written(KEYS_SAMPLED);
                stat.log_puts += written.puts;
                stat.log_deletes += written.deletes;
                stat.log_value_bytes += written.value_bytes;
                stat.results += written.results;
            }
            stat.packed_runs += view.totals.runs;
            stat.packed_blocks += view.totals.packed_blocks;
            stat.packed_live_bytes += view.totals.packed_live_bytes;
            stat.live_value_bytes += view.totals.value_bytes;
        }
        stat
    }

    /// `stat` with the figures that are counted as things happen.
    fn with_counters(&self, stat: StoreStat) -> StoreStat {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (inner, counters) = (&*self.0, &self.0.counters);
        StoreStat {
            puts: get(&counters.puts),
            gets: get(&counters.gets),
            deletes: get(&counters.deletes),
            value_bytes_written: get(&counters.value_bytes_written),
            value_bytes_read: get(&counters.value_bytes_read),
            value_bytes_copied: get(&counters.value_bytes_copied),
            merges: get(&counters.merges),
            merged_bytes: get(&counters.merged_bytes),
            paused_ns: get(&counters.paused_ns),
            applies: get(&counters.applies),
            page_blocks_written: get(&counters.pages_written),
            home_blocks_written: get(&counters.home_blocks_written),
            extent_blocks_written: get(&counters.extent_blocks_written),
            growth_blocks_written: get(&counters.growth_blocks_written),
            moved_values: get(&counters.moved_values),
            moved_bytes: get(&counters.moved_bytes),
            values_placed: get(&inner.space.placed[0]),
            runs_placed: get(&inner.space.placed[1]),
            values_splintered: get(&inner.space.placed[2]),
            groups_emptied: get(&inner.relocator.groups_emptied),
            bytes_evacuated: get(&inner.relocator.bytes_moved),
            bytes_discarded: get(&inner.relocator.bytes_discarded),
            expired: get(&counters.expired),
            expiry_examined: get(&counters.expiry_examined),
            reaps_for_room: get(&counters.reaps_for_room),
            room_steps: get(&counters.room_steps),
            keys_passed: get(&counters.keys_passed),
            keys_passed_most: get(&counters.keys_passed_most),
            scrub_passes: get(&counters.scrub_passes),
            scrub_bytes: get(&counters.scrub_bytes),
            scrub_problems: get(&counters.scrub_problems),
            scrub_ended_ns: get(&counters.scrub_ended_ns),
            ..stat
        }
    }
}
