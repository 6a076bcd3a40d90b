//! The metrics of the store, from its figures at a scrape.

use shoal_base::BLOCK_BYTES_U64;
use shoal_engine::StoreStat;

use super::{Kind, MetricFamily, Samples};

const fn bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK_BYTES_U64)
}

/// The cap in parts that do not overlap.
fn space(stat: &StoreStat, samples: &mut Samples) {
    let known = stat.free_blocks + stat.hole_blocks + stat.pending_blocks + stat.allocated_blocks;
    samples.with(["free"], bytes(stat.free_blocks) as f64);
    samples.with(["holes"], bytes(stat.hole_blocks) as f64);
    samples.with(["pending"], bytes(stat.pending_blocks) as f64);
    samples.with(["data"], bytes(stat.allocated_blocks) as f64);
    samples.with(["reserved"], bytes(stat.device_blocks.saturating_sub(known)) as f64);
    let rest = stat.blocks_max.saturating_sub(stat.device_blocks);
    let growable = stat.growable_blocks.saturating_sub(stat.hole_blocks).min(rest);
    samples.with(["unformatted"], bytes(growable) as f64);
    samples.with(["out_of_reach"], bytes(rest - growable) as f64);
}

pub(super) const METRICS: &[MetricFamily] = &[
    MetricFamily {
        name: "shoal_objects",
        kind: Kind::Gauge,
        labels: &[],
        help: "Objects, including those that are only in the log and expired ones that are not deleted yet; approximate until the next checkpoint, because a write may replace an object",
        read: |now, samples| now.stat(|stat| samples.count(stat.objects_with_log())),
    },
    MetricFamily {
        name: "shoal_expiring_objects",
        kind: Kind::Gauge,
        labels: &[],
        help: "Objects in the trees with a time to live, including expired ones that are not deleted yet",
        read: |now, samples| now.stat(|stat| samples.count(stat.expiring)),
    },
    MetricFamily {
        name: "shoal_results",
        kind: Kind::Gauge,
        labels: &[],
        help: "Stored results of writes with a request id, which are kept for half an hour and are no objects; approximate like shoal_objects",
        read: |now, samples| now.stat(|stat| samples.count(stat.results)),
    },
    MetricFamily {
        name: "shoal_no_room",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 if writes within the data file fail because its file system is full or a quota or limit is reached; 0 otherwise",
        read: |now, samples| now.stat(|stat| samples.count(u64::from(stat.no_room.is_some()))),
    },
    MetricFamily {
        name: "shoal_read_only",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 if the store is read-only because the device failed a write; 0 otherwise",
        read: |now, samples| now.stat(|stat| samples.count(u64::from(stat.poisoned.is_some()))),
    },
    MetricFamily {
        name: "shoal_cannot_grow",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 if the last attempt to grow the data file failed because its file system is full or a quota or limit is reached; 0 otherwise",
        read: |now, samples| now.stat(|stat| samples.count(u64::from(stat.cannot_grow.is_some()))),
    },
    MetricFamily {
        name: "shoal_size_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "The cap: the maximum size of the store",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.blocks_max))),
    },
    MetricFamily {
        name: "shoal_space_bytes",
        kind: Kind::Gauge,
        labels: &["class"],
        help: "The cap by use; the sum of the classes is shoal_size_bytes",
        read: |now, samples| now.stat(|stat| space(stat, samples)),
    },
    MetricFamily {
        name: "shoal_bytes",
        kind: Kind::Gauge,
        labels: &["of"],
        help: "Bytes of objects, bytes that they use in the data file, bytes of the disk that the file takes, and the part of these that the log takes",
        read: |now, samples| {
            now.stat(|stat| {
                samples.with(["objects"], stat.value_bytes_with_log() as f64);
                samples.with(["used"], stat.used_bytes() as f64);
                samples.with(["disk"], stat.disk_bytes() as f64);
                samples.with(["log"], stat.log_disk_bytes() as f64);
            });
        },
    },
    MetricFamily {
        name: "shoal_live_value_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Bytes of the values in the trees, including stored results",
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
        help: "Packed runs of small values: their size, and the live values in them",
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
        help: "The log between its tail and its head, which is replayed at a start",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.log_used_blocks))),
    },
    MetricFamily {
        name: "shoal_unapplied_records",
        kind: Kind::Gauge,
        labels: &[],
        help: "Records that are only in the log and the memtables",
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
        help: "Operations of the store, from all frontends; expire: objects deleted by expiry",
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
        help: "Bytes of values that were written",
        read: |now, samples| now.stat(|stat| samples.count(stat.value_bytes_written)),
    },
    MetricFamily {
        name: "shoal_value_read_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes of values that were read",
        read: |now, samples| now.stat(|stat| samples.count(stat.value_bytes_read)),
    },
    MetricFamily {
        name: "shoal_commit_batches_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Batches of the log that were made durable, with one flush each",
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
        help: "Batches of the log with records, from the start of the write to the end of the flush",
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
        help: "Layers of the tablet with the most layers: a get may search each of them",
        read: |now, samples| now.stat(|stat| samples.count(stat.layers_most)),
    },
    MetricFamily {
        name: "shoal_layer_entries",
        kind: Kind::Gauge,
        labels: &[],
        help: "Entries in layers, including tombstones; compactions move them into the base",
        read: |now, samples| now.stat(|stat| samples.count(stat.layer_entries)),
    },
    MetricFamily {
        name: "shoal_estimated_objects",
        kind: Kind::Gauge,
        labels: &[],
        help: "Objects that were overwritten unread: they count by estimate until a compaction",
        read: |now, samples| now.stat(|stat| samples.count(stat.unsettled)),
    },
    MetricFamily {
        name: "shoal_layer_merges_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Finished compactions of layers, into the base or among layers",
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
        help: "Time for which applies paused because compactions were late: more than a few percent means that the load is at the limit of the machine",
        read: |now, samples| now.stat(|stat| samples.one(stat.paused_ns as f64 / 1e9)),
    },
    MetricFamily {
        name: "shoal_written_bytes_total",
        kind: Kind::Counter,
        labels: &["kind"],
        help: "Bytes written to the device by purpose: the log, pages of trees, values written by applies, values with separate extents, growth of the file",
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
        help: "Size of the cache",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.pool.frames as u64))),
    },
    MetricFamily {
        name: "shoal_cache_used_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Part of the cache in use",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.pool.frames_used as u64))),
    },
    MetricFamily {
        name: "shoal_cache_pinned_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Part of the cache that is being read or sent and cannot be evicted",
        read: |now, samples| now.stat(|stat| samples.count(bytes(stat.pool.frames_pinned as u64))),
    },
    MetricFamily {
        name: "shoal_cache_hits_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Lookups of units that hit the cache; values from the read cache are not counted",
        read: |now, samples| now.stat(|stat| samples.count(stat.pool.hits + stat.pool.queue_hits)),
    },
    MetricFamily {
        name: "shoal_cache_misses_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Lookups of units that missed the cache or joined a read in progress",
        read: |now, samples| now.stat(|stat| samples.count(stat.pool.misses + stat.pool.coalesced)),
    },
    MetricFamily {
        name: "shoal_cache_index_misses_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Misses of inner pages of trees: more than a few per hundred gets mean that the cache is too small for the index",
        read: |now, samples| now.stat(|stat| samples.count(stat.pool.index_misses)),
    },
    MetricFamily {
        name: "shoal_cache_evictions_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Units that were evicted",
        read: |now, samples| now.stat(|stat| samples.count(stat.pool.evictions)),
    },
    MetricFamily {
        name: "shoal_cache_read_seconds_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Total time of the cache's reads from the device",
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
        help: "Bytes of values that gc moved out of mostly dead packed runs",
        read: |now, samples| now.stat(|stat| samples.count(stat.moved_bytes)),
    },
    MetricFamily {
        name: "shoal_discarded_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes returned to the device",
        read: |now, samples| now.stat(|stat| samples.count(stat.bytes_discarded)),
    },
    MetricFamily {
        name: "shoal_scrub_passes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Finished passes of scrubs",
        read: |now, samples| now.stat(|stat| samples.count(stat.scrub_passes)),
    },
    MetricFamily {
        name: "shoal_scrub_read_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes read by scrubs",
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
        help: "End of the last pass of a scrub, in Unix time; absent if none has finished since the store was opened",
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
        help: "Time of the last complete backup, in Unix time; absent if there was none",
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
        help: "Version of the store in that backup; absent if there was none",
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
        help: "Damaged ranges of keys found by reads and listings since the store was opened",
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
        help: "Objects lost, reverted or resurrected by a repair and not acknowledged",
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
        help: "Number of times the wall clock was set",
        read: |now, samples| now.stat(|stat| samples.count(stat.clock_steps)),
    },
    MetricFamily {
        name: "shoal_clock_skew_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Total change of the wall clock since the store was opened, negative if it was set back; absolute deadlines follow it",
        read: |now, samples| now.stat(|stat| samples.one(stat.clock_skew_ns as f64 / 1e9)),
    },
];
