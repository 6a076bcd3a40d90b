//! The figures of INFO: the frontend's counts and the store's state. `shoal stat` and the metrics have the same.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use shoal_base::BLOCK_BYTES_U64;
use shoal_base::histogram::Durations;
use shoal_metrics::{Operation, RequestResult};

use super::call::Call;

pub(super) fn about_stats(call: &Call) -> String {
    let frontend = &call.frontend;
    let (_, connections) = frontend.clients.counts();
    let commands = frontend.commands.load(Ordering::Relaxed);
    let (refused, evicted) = (frontend.clients.refused(), frontend.clients.evicted());
    let overdue = frontend.clients.overdue();
    let (received, sent) = frontend.metrics().bytes();
    let requests = frontend.metrics().requests();
    let gets = |result| {
        let is_get = requests.iter().find(|it| it.operation == Operation::Get && it.result == result);
        is_get.map_or(0, |it| it.durations.count())
    };
    let stat = frontend.store.stat();
    format!(
        "# Stats\r\ntotal_connections_received:{connections}\r\ntotal_commands_processed:{commands}\r\n\
         total_net_input_bytes:{received}\r\ntotal_net_output_bytes:{sent}\r\n\
         rejected_connections:{refused}\r\nevicted_connections:{evicted}\r\noverdue_connections:{overdue}\r\n\
         expired_keys:{}\r\nevicted_keys:0\r\nkeyspace_hits:{}\r\nkeyspace_misses:{}\r\n",
        stat.expired,
        gets(RequestResult::Ok),
        gets(RequestResult::NotFound),
    )
}

/// Percentiles by operation, in the form of Redis's percentiles by command.
pub(super) fn about_latency(call: &Call) -> String {
    let mut text = "# Latencystats\r\n".to_owned();
    let requests = call.frontend.metrics().requests();
    for &operation in Operation::ALL {
        let mut durations = Durations::default();
        let its = requests.iter().filter(|counts| counts.operation == operation);
        its.for_each(|counts| durations.merge(&counts.durations));
        let us = |permille| durations.quantile_ns(permille).map(|ns| ns as f64 / 1e3);
        if let (Some(half), Some(most), Some(nearly_all)) = (us(500), us(990), us(999)) {
            let word = operation.word();
            let _ = write!(
                text,
                "latency_percentiles_usec_{word}:p50={half:.3},p99={most:.3},p99.9={nearly_all:.3}\r\n"
            );
        }
    }
    text
}

/// The state of the store, with all its buckets and frontends.
pub(super) fn about_store(call: &Call) -> String {
    let stat = call.frontend.store.stat();
    let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_BYTES_U64);
    let us = |permille| stat.commit_times.quantile_ns(permille).unwrap_or(0) / 1_000;
    let figures = [
        ("shoal_objects", stat.objects_with_log()),
        ("shoal_expiring", stat.expiring),
        ("shoal_results", stat.results),
        ("shoal_cap_bytes", bytes(stat.blocks_max)),
        ("shoal_room_bytes", bytes(stat.room_blocks())),
        ("shoal_cannot_grow", u64::from(stat.cannot_grow.is_some())),
        ("shoal_value_bytes", stat.value_bytes_with_log()),
        ("shoal_bytes_objects", stat.value_bytes_with_log()),
        ("shoal_bytes_used", stat.used_bytes()),
        ("shoal_bytes_disk", stat.disk_bytes()),
        ("shoal_bytes_log", stat.log_disk_bytes()),
        ("shoal_log_bytes", bytes(stat.log_blocks)),
        ("shoal_log_used_bytes", bytes(stat.log_used_blocks)),
        ("shoal_unapplied_records", stat.memtable_records),
        ("shoal_commits", stat.batches),
        ("shoal_commit_us_p50", us(500)),
        ("shoal_commit_us_p99", us(990)),
        ("shoal_checkpoints", stat.applies),
        ("shoal_cache_hits", stat.pool.hits + stat.pool.queue_hits),
        ("shoal_cache_misses", stat.pool.misses + stat.pool.coalesced),
        ("shoal_read_only", u64::from(stat.poisoned.is_some())),
        ("shoal_no_room", u64::from(stat.no_room.is_some())),
        ("shoal_scrub_passes", stat.scrub_passes),
        ("shoal_scrub_problems", stat.scrub_problems),
        ("shoal_scrub_ended", stat.scrub_ended_ns / 1_000_000_000),
        ("shoal_last_backup_time", stat.last_backup.map_or(0, |backup| backup.taken_ns / 1_000_000_000)),
        ("shoal_last_backup_version", stat.last_backup.map_or(0, |backup| backup.version.0)),
    ];
    let lines = figures.iter().map(|(name, value)| format!("{name}:{value}\r\n"));
    let bucket = call.frontend.bucket.name();
    format!("# Shoal\r\nshoal_bucket:{bucket}\r\n{}", lines.collect::<String>())
}
