//! The document of a sample. Its names are those of the API; `docs/operate/console.md` describes them.

use serde::Serialize;

use super::warnings::Warning;

/// The figures of one second.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(super) at_ms: u64,
    pub(super) uptime_s: u64,
    pub(super) version: &'static str,
    pub(super) health: HealthFigures,
    pub(super) room: RoomFigures,
    pub(super) objects: ObjectFigures,
    pub(super) frontends: Vec<FrontendFigures>,
    pub(super) latency: LatencyFigures,
    pub(super) cache: CacheFigures,
    pub(super) commit: CommitFigures,
    pub(super) log: LogFigures,
    pub(super) memtable: MemtableFigures,
    pub(super) background: BackgroundFigures,
    pub(super) device: DeviceFigures,
    pub(super) scrub: ScrubFigures,
    pub(super) backup: Option<BackupFigures>,
    pub(super) damage: DamageFigures,
    pub(super) process: ProcessFigures,
    pub(super) heat: Heat,
}

#[derive(Debug, Serialize)]
pub(super) struct HealthFigures {
    pub(super) ready: bool,
    pub(super) reason: Option<String>,
    pub(super) warnings: Vec<Warning>,
}

#[derive(Debug, Serialize)]
pub(super) struct RoomFigures {
    pub(super) cap_bytes: u64,
    pub(super) file_bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) taken_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) disk_free_bytes: Option<u64>,
    pub(super) log_ring_bytes: u64,
    pub(super) hole_bytes: u64,
    pub(super) largest_free_run_bytes: u64,
    pub(super) cannot_grow: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct ObjectFigures {
    pub(super) count: u64,
    pub(super) unsettled: u64,
    pub(super) bytes: u64,
    pub(super) expiring: u64,
    pub(super) bucket_records: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct FrontendFigures {
    pub(super) name: &'static str,
    pub(super) per_s: OperationRates,
    pub(super) failed_per_s: f64,
    pub(super) received_per_s: f64,
    pub(super) sent_per_s: f64,
    pub(super) connections: u64,
    pub(super) memory_bytes: u64,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct OperationRates {
    pub(super) get: f64,
    pub(super) put: f64,
    pub(super) delete: f64,
    pub(super) list: f64,
    pub(super) update: f64,
    pub(super) multi: f64,
    pub(super) other: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct LatencyFigures {
    pub(super) put: Latency,
    pub(super) get: Latency,
}

#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) p999_us: Option<f64>,
    pub(super) max_us: Option<f64>,
    pub(super) count: u64,
    pub(super) window_s: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct CacheFigures {
    pub(super) hit_rate: Option<f64>,
    pub(super) bytes: u64,
    pub(super) capacity_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct CommitFigures {
    pub(super) batches_per_s: f64,
    pub(super) records_per_batch: Option<f64>,
    pub(super) flush_p50_us: Option<f64>,
    pub(super) flush_p99_us: Option<f64>,
    pub(super) bytes_per_s: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct LogFigures {
    pub(super) used_bytes: u64,
    pub(super) ring_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct MemtableFigures {
    pub(super) bytes: u64,
    pub(super) max_bytes: u64,
    pub(super) records: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct BackgroundFigures {
    pub(super) applies_per_s: f64,
    pub(super) page_bytes_per_s: f64,
    pub(super) home_bytes_per_s: f64,
    pub(super) merges_per_s: f64,
    pub(super) merge_bytes_per_s: f64,
    pub(super) layers: u64,
    pub(super) layers_most: u64,
    pub(super) relocation_paused: bool,
    pub(super) groups_to_empty: u64,
    pub(super) groups_closed: u64,
    pub(super) bytes_to_move: u64,
    pub(super) moved_bytes_per_s: f64,
    pub(super) growth_bytes_per_s: f64,
    pub(super) discarded_bytes_per_s: f64,
    pub(super) paused_ms_per_s: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct DeviceFigures {
    pub(super) reads_per_s: f64,
    pub(super) read_bytes_per_s: f64,
    pub(super) writes_per_s: f64,
    pub(super) write_bytes_per_s: f64,
    pub(super) flushes_per_s: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct ScrubFigures {
    pub(super) running: bool,
    pub(super) passes: u64,
    pub(super) bytes: u64,
    pub(super) problems: u64,
    pub(super) ended_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct BackupFigures {
    pub(super) version: u64,
    pub(super) at_ms: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct DamageFigures {
    pub(super) ranges: u64,
    pub(super) losses: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct ProcessFigures {
    pub(super) cpu_cores: f64,
    pub(super) rss_bytes: u64,
    pub(super) threads: u64,
    pub(super) memory_total_bytes: u64,
    pub(super) memory_parts: Vec<MemoryPart>,
}

#[derive(Debug, Serialize)]
pub(super) struct MemoryPart {
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// Requests by bucket of their durations.
#[derive(Debug, Default, Serialize)]
pub(super) struct Heat {
    pub(super) put: Vec<u64>,
    pub(super) get: Vec<u64>,
}
