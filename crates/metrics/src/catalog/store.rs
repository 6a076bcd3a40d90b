//! The metrics of the store, from its figures at a scrape.

use shoal_base::BLOCK_BYTES_U64;
use shoal_engine::StoreStat;

use super::{Kind, MetricFamily, Samples};

const fn bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK_BYTES_U64)
}

/// The cap in parts that do not overlap.
fn space(stat: &StoreStat, samples: &mut Samples) {
    let known = stat.free_blocks + stat.pending_blocks + stat.allocated_blocks;
    samples.with(["free"], bytes(stat.free_blocks) as f64);
    samples.with(["pending"], bytes(stat.pending_blocks) as f64);
    samples.with(["data"], bytes(stat.allocated_blocks) as f64);
    samples.with(["reserved"], bytes(stat.device_blocks.saturating_sub(known)) as f64);
    let rest = stat.blocks_max.saturating_sub(stat.device_blocks);
    let growable = stat.growable_blocks.min(rest);
    samples.with(["unformatted"], bytes(growable) as f64);
    samples.with(["out_of_reach"], bytes(rest - growable) as f64);
}

pub(super) const METRICS: &[MetricFamily] = &[
    MetricFamily {
        name: "shoal_objects",
        kind: Kind::Gauge,
        labels: &[],
        help: "Objects, with those that only the log holds, and with expired ones until they are deleted: about, for the few seconds until the next checkpoint, as it is not known whether a write is over an object",
        read: |now, samples| now.stat(|stat| samples.count(stat.objects_with_log())),
    },
    MetricFamily {
        name: "shoal_expiring_objects",
        kind: Kind::Gauge,
        labels: &[],
        help: "Objects in the trees that have a time to live, expired ones that are not deleted yet included",
        read: |now, samples| now.stat(|stat| samples.count(stat.expiring)),
    },
    MetricFamily {
        name: "shoal_results",
        kind: Kind::Gauge,
        labels: &[],
        help: "Stored results of writes with a request id, which are kept for half an hour and are no objects: about, like shoal_objects",
        read: |now, samples| now.stat(|stat| samples.count(stat.results)),
    },
    MetricFamily {
        name: "shoal_no_room",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 if writes within the data file find no room, as its file system is full, a quota or a limit is reached; 0 otherwise",
        read: |now, samples| now.stat(|stat| samples.count(u64::from(stat.no_room.is_some()))),
    },
    MetricFamily {
        name: "shoal_read_only",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 if the store takes no more writes, as the device failed one; 0 otherwise",
        read: |now, samples| now.stat(|stat| samples.count(u64::from(stat.poisoned.is_some()))),
    },
    MetricFamily {
        name: "shoal_cannot_grow",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 if the data file could not grow at the last attempt, as its file system, a quota or a limit has no room; 0 otherwise",
        read: |now, samples| now.stat(|stat| samples.count(u64::from(stat.cannot_grow.is_some()))),
    },
    MetricFamily {
        name: "shoal_size_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "The cap: the size that the store may grow to",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.blocks_max))),
    },
    MetricFamily {
        name: "shoal_space_bytes",
        kind: Kind::Gauge,
        labels: &["class"],
        help: "The cap by use: see below; the classes together are shoal_size_bytes",
        read: |now, samples| now.stat(|stat| space(stat, samples)),
    },
    MetricFamily {
        name: "shoal_live_value_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Bytes of the values in the trees, stored results included",
        read: |now, samples| now.stat(|stat| samples.count(stat.live_value_bytes)),
    },
    MetricFamily {
        name: "shoal_largest_free_run_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "The longest free run of blocks",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.largest_free_run))),
    },
    MetricFamily {
        name: "shoal_packed_bytes",
        kind: Kind::Gauge,
        labels: &["part"],
        help: "Packed runs of small values: all of them, and the values in them that are alive",
        read: |now, samples| {
            now.stat(|stat| {
                samples.with(["all"], bytes(stat.packed_blocks) as f64);
                samples.with(["live"], stat.packed_live_bytes as f64);
            });
        },
    },
    MetricFamily {
        name: "shoal_log_size_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "The log's ring",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.log_blocks))),
    },
    MetricFamily {
        name: "shoal_log_used_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "The log between its tail and its head, which a start replays",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.log_used_blocks))),
    },
    MetricFamily {
        name: "shoal_unapplied_records",
        kind: Kind::Gauge,
        labels: &[],
        help: "Records that only the log and the memtables hold",
        read: |now, samples| now.stat(|stat| samples.count(stat.memtable_records)),
    },
    MetricFamily {
        name: "shoal_unapplied_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Their memory",
        read: |now, samples| now.stat(|stat| samples.count(stat.memtable_bytes)),
    },
    MetricFamily {
        name: "shoal_operations_total",
        kind: Kind::Counter,
        labels: &["operation"],
        help: "Operations of the store itself, whichever frontend asked for them; expire: objects whose time was over",
        read: |now, samples| {
            now.stat(|stat| {
                samples.with(["put"], stat.puts as f64);
                samples.with(["get"], stat.gets as f64);
                samples.with(["delete"], stat.deletes as f64);
                samples.with(["expire"], stat.expired as f64);
            });
        },
    },
    MetricFamily {
        name: "shoal_value_written_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes of values that were put",
        read: |now, samples| now.stat(|stat| samples.count(stat.value_bytes_written)),
    },
    MetricFamily {
        name: "shoal_value_read_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes of values that were got",
        read: |now, samples| now.stat(|stat| samples.count(stat.value_bytes_read)),
    },
    MetricFamily {
        name: "shoal_commit_batches_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Batches of the log that were made durable: one flush each",
        read: |now, samples| now.stat(|stat| samples.count(stat.batches)),
    },
    MetricFamily {
        name: "shoal_commit_records_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Records in them",
        read: |now, samples| now.stat(|stat| samples.count(stat.records)),
    },
    MetricFamily {
        name: "shoal_commit_duration_seconds",
        kind: Kind::Histogram,
        labels: &[],
        help: "Batches of the log with records, from the beginning of their writing to the end of their flush",
        read: |now, samples| now.stat(|stat| samples.durations([], &stat.commit_times)),
    },
    MetricFamily {
        name: "shoal_checkpoints_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Applies of a memtable to its tree",
        read: |now, samples| now.stat(|stat| samples.count(stat.applies)),
    },
    MetricFamily {
        name: "shoal_layers",
        kind: Kind::Gauge,
        labels: &[],
        help: "Layers above the base of the trees, of all tablets together",
        read: |now, samples| now.stat(|stat| samples.count(stat.layers)),
    },
    MetricFamily {
        name: "shoal_tablet_layers_max",
        kind: Kind::Gauge,
        labels: &[],
        help: "Layers of the tablet that has most of them: a get may look into each",
        read: |now, samples| now.stat(|stat| samples.count(stat.layers_most)),
    },
    MetricFamily {
        name: "shoal_layer_entries",
        kind: Kind::Gauge,
        labels: &[],
        help: "Entries in layers, those of deletes included: a compaction brings them into the base",
        read: |now, samples| now.stat(|stat| samples.count(stat.layer_entries)),
    },
    MetricFamily {
        name: "shoal_layer_merges_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Compactions of layers that ended, into the base or among layers",
        read: |now, samples| now.stat(|stat| samples.count(stat.merges)),
    },
    MetricFamily {
        name: "shoal_layer_merged_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes of entries that compactions of layers took",
        read: |now, samples| now.stat(|stat| samples.count(stat.merged_bytes)),
    },
    MetricFamily {
        name: "shoal_apply_pause_seconds_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Time in which applies paused for late compactions: more than a few percent mean that the load is at the limit of the machine",
        read: |now, samples| now.stat(|stat| samples.one(stat.paused_ns as f64 / 1e9)),
    },
    MetricFamily {
        name: "shoal_written_bytes_total",
        kind: Kind::Counter,
        labels: &["kind"],
        help: "Bytes written to the device by purpose: the log, pages of trees, values going home, values with separate extents, growth of the file",
        read: |now, samples| {
            now.stat(|stat| {
                samples.with(["log"], bytes(stat.log_blocks_written) as f64);
                samples.with(["pages"], bytes(stat.page_blocks_written) as f64);
                samples.with(["home"], bytes(stat.home_blocks_written) as f64);
                samples.with(["extents"], bytes(stat.extent_blocks_written) as f64);
                samples.with(["growth"], bytes(stat.growth_blocks_written) as f64);
            });
        },
    },
    MetricFamily {
        name: "shoal_cache_size_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "The cache",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.pool.frames as u64))),
    },
    MetricFamily {
        name: "shoal_cache_used_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "The part of it in use",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.pool.frames_used as u64))),
    },
    MetricFamily {
        name: "shoal_cache_pinned_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "The part of it that is being read or sent, and cannot be evicted",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.pool.frames_pinned as u64))),
    },
    MetricFamily {
        name: "shoal_cache_hits_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Units of the cache that were asked for and found; reads of a value that the thread itself keeps (the read cache) are not in it",
        read: |now, samples| now.stat(|stat| samples.count(stat.pool.hits + stat.pool.queue_hits)),
    },
    MetricFamily {
        name: "shoal_cache_misses_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Units that had to be read from the device, or were on their way",
        read: |now, samples| now.stat(|stat| samples.count(stat.pool.misses + stat.pool.coalesced)),
    },
    MetricFamily {
        name: "shoal_cache_index_misses_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Inner pages of trees among them: more than a few for each hundred gets mean that the cache is too small for the \
               index",
        read: |now, samples| now.stat(|stat| samples.count(stat.pool.index_misses)),
    },
    MetricFamily {
        name: "shoal_cache_evictions_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Units that were thrown out",
        read: |now, samples| now.stat(|stat| samples.count(stat.pool.evictions)),
    },
    MetricFamily {
        name: "shoal_cache_read_seconds_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Time of the cache's reads of the device, all together",
        read: |now, samples| now.stat(|stat| samples.one(stat.pool.read_us as f64 / 1e6)),
    },
    MetricFamily {
        name: "shoal_cache_starved_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Requests that waited for a free frame",
        read: |now, samples| now.stat(|stat| samples.count(stat.pool.starved)),
    },
    MetricFamily {
        name: "shoal_device_operations_total",
        kind: Kind::Counter,
        labels: &["operation"],
        help: "Requests to the device",
        read: |now, samples| {
            now.stat(|stat| {
                samples.with(["read"], stat.device.reads as f64);
                samples.with(["write"], stat.device.writes as f64);
                samples.with(["flush"], stat.device.flushes as f64);
            });
        },
    },
    MetricFamily {
        name: "shoal_device_read_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes read from the device",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.device.blocks_read))),
    },
    MetricFamily {
        name: "shoal_device_written_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes written to the device",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.device.blocks_written))),
    },
    MetricFamily {
        name: "shoal_device_errors_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Requests that the device failed",
        read: |now, samples| now.stat(|stat| samples.count(stat.device.errors)),
    },
    MetricFamily {
        name: "shoal_relocation_paused",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 if relocation is paused",
        read: |now, samples| now.stat(|stat| samples.count(u64::from(stat.relocation_paused))),
    },
    MetricFamily {
        name: "shoal_relocation_groups",
        kind: Kind::Gauge,
        labels: &["state"],
        help: "Groups of blocks: wholly free, still to be emptied, being emptied",
        read: |now, samples| {
            now.stat(|stat| {
                samples.with(["free"], stat.whole_groups as f64);
                samples.with(["wanted"], stat.groups_to_empty as f64);
                samples.with(["emptying"], stat.groups_closed as f64);
            });
        },
    },
    MetricFamily {
        name: "shoal_relocation_remaining_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Bytes to move out of the groups that are being emptied",
        read: |now, samples| now.stat(|stat| samples.count(stat.bytes_to_move)),
    },
    MetricFamily {
        name: "shoal_relocation_moved_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes of values that were moved to empty groups",
        read: |now, samples| now.stat(|stat| samples.count(stat.bytes_evacuated)),
    },
    MetricFamily {
        name: "shoal_compaction_moved_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes of values that gc moved out of packed runs that are mostly dead",
        read: |now, samples| now.stat(|stat| samples.count(stat.moved_bytes)),
    },
    MetricFamily {
        name: "shoal_discarded_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes that were given back to the device",
        read: |now, samples| now.stat(|stat| samples.count(stat.bytes_discarded)),
    },
    MetricFamily {
        name: "shoal_scrub_passes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Passes of scrubs that ended",
        read: |now, samples| now.stat(|stat| samples.count(stat.scrub_passes)),
    },
    MetricFamily {
        name: "shoal_scrub_read_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes that scrubs read",
        read: |now, samples| now.stat(|stat| samples.count(stat.scrub_bytes)),
    },
    MetricFamily {
        name: "shoal_scrub_problems_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Damage found by scrubs, counted each time",
        read: |now, samples| now.stat(|stat| samples.count(stat.scrub_problems)),
    },
    MetricFamily {
        name: "shoal_scrub_last_end_timestamp_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "End of the last pass of a scrub, in seconds of the Unix epoch; left out if none ended since the store was opened",
        read: |now, samples| {
            now.stat(|stat| {
                if stat.scrub_ended_ns > 0 {
                    samples.one(stat.scrub_ended_ns as f64 / 1e9);
                }
            });
        },
    },
    MetricFamily {
        name: "shoal_backup_last_timestamp_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "The moment of the last backup that was sent and lacks nothing, in seconds of the Unix epoch; left out if there was none",
        read: |now, samples| {
            now.stat(|stat| {
                if let Some(backup) = stat.last_backup {
                    samples.one(backup.taken_ns as f64 / 1e9);
                }
            });
        },
    },
    MetricFamily {
        name: "shoal_backup_last_version",
        kind: Kind::Gauge,
        labels: &[],
        help: "The version of the store at that moment; left out if there was none",
        read: |now, samples| {
            now.stat(|stat| {
                if let Some(backup) = stat.last_backup {
                    samples.count(backup.version.0);
                }
            });
        },
    },
    MetricFamily {
        name: "shoal_damaged_ranges",
        kind: Kind::Gauge,
        labels: &[],
        help: "Damaged ranges of keys that reads and listings met since the store was opened",
        read: |now, samples| now.stat(|stat| samples.count(stat.damaged_ranges)),
    },
    MetricFamily {
        name: "shoal_corrupt_reads_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Reads whose checksum did not match",
        read: |now, samples| now.stat(|stat| samples.count(stat.pool.corrupt)),
    },
    MetricFamily {
        name: "shoal_repair_losses",
        kind: Kind::Gauge,
        labels: &["kind"],
        help: "Objects that a repair lost, brought to an older state or brought back, and that nobody has acknowledged",
        read: |now, samples| {
            now.stat(|stat| {
                samples.with(["lost"], stat.losses.lost as f64);
                samples.with(["reverted"], stat.losses.reverted as f64);
                samples.with(["resurrected"], stat.losses.resurrected as f64);
            });
        },
    },
    MetricFamily {
        name: "shoal_clock_steps_total",
        kind: Kind::Counter,
        labels: &[],
        help: "How often somebody set the wall clock",
        read: |now, samples| now.stat(|stat| samples.count(stat.clock_steps)),
    },
    MetricFamily {
        name: "shoal_clock_skew_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "By how much the wall clock was set since the store was opened, all together; below 0: back. Absolute deadlines follow it",
        read: |now, samples| now.stat(|stat| samples.one(stat.clock_skew_ns as f64 / 1e9)),
    },
];
