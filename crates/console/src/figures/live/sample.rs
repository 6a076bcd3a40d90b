//! The figures of one second, as pages get them: the differences of two readings, and of windows of time.

use shoal_base::BLOCK_BYTES_U64;
use shoal_base::histogram::{BOUNDS_NS, Durations};
use shoal_metrics::{Operation, RequestResult};

use super::document::{
    BackgroundFigures, BackupFigures, CacheFigures, CommitFigures, DamageFigures, DeviceFigures,
    FrontendFigures, HealthFigures, Heat, Latency, LatencyFigures, LogFigures, MemoryPart, MemtableFigures,
    ObjectFigures, OperationRates, ProcessFigures, RoomFigures, Sample, ScrubFigures,
};
use super::reading::{FrontendReading, Reading};
use super::warnings::{Recent, warnings};
use super::window::Window;

/// The window of the latencies.
const LATENCY_WINDOW_NS: u64 = 10_000_000_000;
/// The window of the warnings about rates.
const WARNING_WINDOW_NS: u64 = 60_000_000_000;

/// The upper bounds of the buckets of a heat map in microseconds, without that of the last bucket, which has none.
pub(crate) fn heat_edges_us() -> impl Iterator<Item = f64> {
    BOUNDS_NS.iter().map(|&ns| ns as f64 / 1e3)
}

fn bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK_BYTES_U64)
}

/// A number with three decimals at most: a page shows fewer, and the text is shorter.
fn short(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// The sums of the times of requests and commits at one moment.
struct Times {
    put: Durations,
    get: Durations,
    commit: Durations,
}

impl Times {
    fn of(reading: &Reading) -> Self {
        Self {
            put: reading.durations(Operation::Put),
            get: reading.durations(Operation::Get),
            commit: reading.stat.commit_times.clone(),
        }
    }
}

/// The readings from which samples are made.
pub(crate) struct Past {
    before: Reading,
    times: Window<Times>,
    recent: Window<Recent>,
    started_ns: u64,
}

impl Past {
    /// Samples are differences from `first` on; the server was started at `started_ns` of the monotonic clock.
    pub(crate) fn new(first: Reading, started_ns: u64) -> Self {
        let (mut times, mut recent) = (Window::new(LATENCY_WINDOW_NS), Window::new(WARNING_WINDOW_NS));
        times.push(first.at_ns, Times::of(&first));
        recent.push(first.at_ns, Recent::of(&first));
        Self { before: first, times, recent, started_ns }
    }

    /// The sample of the time between the last reading and `now`.
    pub(crate) fn sample(&mut self, now: Reading) -> Sample {
        let times = Times::of(&now);
        let heat = self.times.newest().map(|before| Heat {
            put: times.put.since(&before.put).buckets.to_vec(),
            get: times.get.since(&before.get).buckets.to_vec(),
        });
        self.times.push(now.at_ns, times);
        self.recent.push(now.at_ns, Recent::of(&now));
        let sample = Sample::new(&self.before, &now, self, heat.unwrap_or_default());
        self.before = now;
        sample
    }
}

/// Differences of the counters of two readings, for a second.
struct Rates<'a> {
    before: &'a Reading,
    now: &'a Reading,
    seconds: f64,
}

impl Rates<'_> {
    fn per_s(&self, difference: u64) -> f64 {
        short(difference as f64 / self.seconds)
    }

    fn growth(&self, get: impl Fn(&Reading) -> u64) -> u64 {
        get(self.now).saturating_sub(get(self.before))
    }

    fn of(&self, get: impl Fn(&Reading) -> u64) -> f64 {
        self.per_s(self.growth(get))
    }

    fn blocks(&self, get: impl Fn(&Reading) -> u64) -> f64 {
        self.per_s(bytes(self.growth(get)))
    }
}

impl Sample {
    fn new(before: &Reading, now: &Reading, past: &Past, heat: Heat) -> Self {
        let seconds = (now.at_ns.saturating_sub(before.at_ns).max(1)) as f64 / 1e9;
        let rates = Rates { before, now, seconds };
        let stat = &now.stat;
        let none = FrontendReading::default();
        let frontend = |now: &FrontendReading| {
            let before = before.frontends.iter().find(|before| before.name == now.name);
            FrontendFigures::new(before.unwrap_or(&none), now, &rates)
        };
        Self {
            at_ms: now.wall_ns / 1_000_000,
            uptime_s: now.at_ns.saturating_sub(past.started_ns) / 1_000_000_000,
            version: env!("CARGO_PKG_VERSION"),
            health: HealthFigures {
                ready: now.not_ready.is_none(),
                reason: now.not_ready.clone(),
                warnings: warnings(now, past.recent.ends()),
            },
            room: RoomFigures::new(now),
            objects: ObjectFigures {
                count: stat.objects_with_log(),
                unsettled: stat.unsettled,
                bytes: stat.value_bytes_with_log(),
                expiring: stat.expiring,
                bucket_records: stat.bucket_records,
            },
            frontends: now.frontends.iter().map(frontend).collect(),
            latency: LatencyFigures {
                put: Latency::of(&past.times, |times| &times.put),
                get: Latency::of(&past.times, |times| &times.get),
            },
            cache: CacheFigures::new(&rates),
            commit: CommitFigures::new(&rates, &past.times),
            log: LogFigures { used_bytes: bytes(stat.log_used_blocks), ring_bytes: bytes(stat.log_blocks) },
            memtable: MemtableFigures {
                bytes: stat.memtable_bytes,
                max_bytes: stat.memtable_bytes_max,
                records: stat.memtable_records,
            },
            background: BackgroundFigures::new(&rates),
            device: DeviceFigures::new(&rates),
            scrub: ScrubFigures {
                running: stat.scrub_runs,
                passes: stat.scrub_passes,
                bytes: stat.scrub_bytes,
                problems: stat.scrub_problems,
                ended_ms: (stat.scrub_ended_ns > 0).then_some(stat.scrub_ended_ns / 1_000_000),
            },
            backup: stat
                .last_backup
                .map(|note| BackupFigures { version: note.version.0, at_ms: note.taken_ns / 1_000_000 }),
            damage: DamageFigures {
                ranges: stat.damaged_ranges,
                losses: stat.losses.lost + stat.losses.reverted + stat.losses.resurrected,
            },
            process: ProcessFigures::new(&rates),
            heat,
        }
    }
}

impl RoomFigures {
    fn new(now: &Reading) -> Self {
        let stat = &now.stat;
        Self {
            cap_bytes: bytes(stat.blocks_max),
            file_bytes: bytes(stat.device_blocks),
            used_bytes: stat.used_bytes(),
            taken_bytes: stat.disk_bytes(),
            free_bytes: bytes(stat.room_blocks()),
            disk_free_bytes: disk_free_bytes(now),
            log_ring_bytes: bytes(stat.log_blocks),
            hole_bytes: bytes(stat.hole_blocks),
            largest_free_run_bytes: bytes(stat.largest_free_run),
            cannot_grow: stat.cannot_grow.clone(),
        }
    }
}

/// The free bytes of the data file's file system.
pub(super) fn disk_free_bytes(now: &Reading) -> Option<u64> {
    now.file_blocks_max.map(|blocks| bytes(blocks.saturating_sub(now.stat.taken_blocks)))
}

impl FrontendFigures {
    fn new(before: &FrontendReading, now: &FrontendReading, rates: &Rates<'_>) -> Self {
        let (mut per_s, mut failed_per_s) = (OperationRates::default(), 0.0);
        for counts in &now.requests {
            let is_same = |other: &&shoal_metrics::RequestCounts| {
                (other.operation, other.result) == (counts.operation, counts.result)
            };
            let earlier = before.requests.iter().find(is_same).map_or(0, |other| other.durations.count());
            let rate = rates.per_s(counts.durations.count().saturating_sub(earlier));
            *per_s.of(counts.operation) += rate;
            if is_failure(counts.result) {
                failed_per_s += rate;
            }
        }
        Self {
            name: now.name,
            per_s,
            failed_per_s,
            received_per_s: rates.per_s(now.received_bytes.saturating_sub(before.received_bytes)),
            sent_per_s: rates.per_s(now.sent_bytes.saturating_sub(before.sent_bytes)),
            connections: now.connections.open,
            memory_bytes: now.connections.memory_bytes,
        }
    }
}

/// Returns true if the request was not done, and its object and conditions are not the reason.
fn is_failure(result: RequestResult) -> bool {
    match result {
        RequestResult::Ok | RequestResult::NotFound | RequestResult::Rejected => false,
        RequestResult::Invalid
        | RequestResult::Denied
        | RequestResult::Refused
        | RequestResult::Cancelled
        | RequestResult::Failed => true,
    }
}

impl OperationRates {
    fn of(&mut self, operation: Operation) -> &mut f64 {
        match operation {
            Operation::Get | Operation::Head => &mut self.get,
            Operation::Put => &mut self.put,
            Operation::Delete => &mut self.delete,
            Operation::List => &mut self.list,
            Operation::Update => &mut self.update,
            Operation::MultiGet | Operation::MultiPut | Operation::MultiDelete | Operation::Transaction => {
                &mut self.multi
            }
            Operation::Other => &mut self.other,
        }
    }
}

/// A quantile in microseconds.
fn quantile_us(durations: &Durations, permille: u64) -> Option<f64> {
    durations.quantile_ns(permille).map(|ns| ns as f64 / 1e3)
}

impl Latency {
    fn of(times: &Window<Times>, get: impl Fn(&Times) -> &Durations) -> Self {
        let Some((before, now, window_ns)) = times.ends() else { return Self::default() };
        let durations = get(now).since(get(before));
        Self {
            p50_us: quantile_us(&durations, 500),
            p99_us: quantile_us(&durations, 990),
            p999_us: quantile_us(&durations, 999),
            max_us: quantile_us(&durations, 1000),
            count: durations.count(),
            window_s: short(window_ns as f64 / 1e9),
        }
    }
}

impl CacheFigures {
    fn new(rates: &Rates<'_>) -> Self {
        let hits = rates.growth(|at| at.stat.pool.hits + at.stat.pool.queue_hits);
        let misses = rates.growth(|at| at.stat.pool.misses + at.stat.pool.coalesced);
        let pool = &rates.now.stat.pool;
        Self {
            hit_rate: (hits + misses > 0).then(|| short(hits as f64 / (hits + misses) as f64)),
            bytes: bytes(pool.frames_used as u64),
            capacity_bytes: bytes(pool.frames as u64),
        }
    }
}

impl CommitFigures {
    fn new(rates: &Rates<'_>, times: &Window<Times>) -> Self {
        let batches = rates.growth(|at| at.stat.batches);
        let records = rates.growth(|at| at.stat.records);
        let flushes = times.ends().map(|(before, now, _)| now.commit.since(&before.commit));
        let flush_us = |permille| flushes.as_ref().and_then(|flushes| quantile_us(flushes, permille));
        Self {
            batches_per_s: rates.per_s(batches),
            records_per_batch: (batches > 0).then(|| short(records as f64 / batches as f64)),
            flush_p50_us: flush_us(500),
            flush_p99_us: flush_us(990),
            bytes_per_s: rates.blocks(|at| at.stat.log_blocks_written),
        }
    }
}

impl BackgroundFigures {
    fn new(rates: &Rates<'_>) -> Self {
        let stat = &rates.now.stat;
        Self {
            applies_per_s: rates.of(|at| at.stat.applies),
            page_bytes_per_s: rates.blocks(|at| at.stat.page_blocks_written),
            home_bytes_per_s: rates.blocks(|at| at.stat.home_blocks_written),
            merges_per_s: rates.of(|at| at.stat.merges),
            merge_bytes_per_s: rates.of(|at| at.stat.merged_bytes),
            layers: stat.layers,
            layers_most: stat.layers_most,
            relocation_paused: stat.relocation_paused,
            groups_to_empty: stat.groups_to_empty,
            groups_closed: stat.groups_closed,
            bytes_to_move: stat.bytes_to_move,
            moved_bytes_per_s: rates.of(|at| at.stat.moved_bytes + at.stat.bytes_evacuated),
            growth_bytes_per_s: rates.blocks(|at| at.stat.device_blocks),
            discarded_bytes_per_s: rates.of(|at| at.stat.bytes_discarded),
            paused_ms_per_s: short(rates.of(|at| at.stat.paused_ns) / 1e6),
        }
    }
}

impl DeviceFigures {
    fn new(rates: &Rates<'_>) -> Self {
        Self {
            reads_per_s: rates.of(|at| at.stat.device.reads),
            read_bytes_per_s: rates.blocks(|at| at.stat.device.blocks_read),
            writes_per_s: rates.of(|at| at.stat.device.writes),
            write_bytes_per_s: rates.blocks(|at| at.stat.device.blocks_written),
            flushes_per_s: rates.of(|at| at.stat.device.flushes),
        }
    }
}

impl ProcessFigures {
    fn new(rates: &Rates<'_>) -> Self {
        let cpu_s = |reading: &Reading| reading.usage.user_seconds + reading.usage.system_seconds;
        let used_s = cpu_s(rates.now) - cpu_s(rates.before);
        let memory = &rates.now.memory;
        let part = |(name, bytes): &(String, u64)| MemoryPart { name: name.clone(), bytes: *bytes };
        Self {
            cpu_cores: short((used_s / rates.seconds).max(0.0)),
            rss_bytes: rates.now.usage.resident_bytes,
            threads: rates.now.usage.threads,
            memory_total_bytes: memory.total,
            memory_parts: memory.parts.iter().map(part).collect(),
        }
    }
}

#[cfg(test)]
#[path = "sample_tests.rs"]
mod tests;
