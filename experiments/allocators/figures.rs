//! The figures of one allocator in one case, and the names under which they are reported.

use super::allocator::Allocator;
use super::meter::Meter;
use shoal_bench::report::Metric;

/// Free runs of at least this many blocks (4 MiB) hold any value.
const LARGE_BLOCKS: u32 = 1024;

/// Everything that any case measures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) alloc: Meter,
    pub(crate) free: Meter,
    pub(crate) alloc_batched: Meter,
    pub(crate) free_batched: Meter,
    pub(crate) lease: Meter,
    pub(crate) wall_allocs_per_s: Option<f64>,
    pub(crate) utilisation_at_first_failure: Option<f64>,
    /// Requests that no single run could serve.
    pub(crate) contiguous_failures: Option<u64>,
    pub(crate) values: u64,
    pub(crate) runs: u64,
    pub(crate) moved_blocks: Option<u64>,
    pub(crate) allocated_blocks: u64,
    pub(crate) memory_bytes: usize,
    pub(crate) turnovers: Option<f64>,
    pub(crate) large_free_share: Option<f64>,
    pub(crate) compact_ms: Option<f64>,
    pub(crate) read_ms: Option<f64>,
    pub(crate) write_ms: Option<f64>,
    pub(crate) reads_per_s: Option<f64>,
    pub(crate) writes_per_s: Option<f64>,
    /// Free runs when memory was last looked at.
    pub(crate) free_runs: Option<u64>,
    /// The fill at the start and at the end of the measured part.
    pub(crate) fill_at_start: Option<f64>,
    pub(crate) fill_at_end: Option<f64>,
    pub(crate) rebuild: Meter,
    /// Calls to a server for each allocation.
    pub(crate) calls_per_alloc: Option<f64>,
    /// Points on the way, for charts.
    pub(crate) points: Vec<Point>,
    /// The time of the row, its preparation included.
    pub(crate) seconds: f64,
}

/// A moment of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) round: u64,
    /// Processor time of all allocations up to now.
    pub(crate) alloc_s: f64,
    /// The share of the device that is in use.
    pub(crate) fill: f64,
    /// Mean of the allocations since the point before.
    pub(crate) alloc_ns: f64,
}

/// Parts of the fill for which a mean is formed.
const FILL_PARTS: usize = 10;

const fn metric(name: &'static str, unit: &'static str, head: &'static str) -> Metric {
    Metric { name, unit, head }
}

pub(crate) const METRICS: &[Metric] = &[
    metric("alloc_ns_mean", "ns", "alloc ns"),
    metric("alloc_ns_p50", "ns", "p50"),
    metric("alloc_ns_p99", "ns", "p99"),
    metric("alloc_ns_p999", "ns", "p99.9"),
    metric("alloc_ns_max", "ns", "max"),
    metric("alloc_ns_worst_tenth", "ns", "worst 10th"),
    metric("alloc_batched_ns_mean", "ns", "batched"),
    metric("lease_alloc_ns_mean", "ns", "lease ns"),
    metric("free_ns_mean", "ns", "free ns"),
    metric("free_batched_ns_mean", "ns", "batched"),
    metric("allocs_per_s", "1/s", "allocs/s"),
    metric("utilisation_at_first_failure", "1", "util"),
    metric("runs_per_value", "1", "runs/val"),
    metric("moved_per_allocated", "1", "moved"),
    metric("contiguous_failures", "1", "failures"),
    metric("large_free_share", "1", ">=4MiB"),
    metric("turnovers", "1", "turnovers"),
    metric("memory_mib", "MiB", "MiB"),
    metric("compact_ms", "ms", "compact"),
    metric("read_ms", "ms", "read ms"),
    metric("write_ms", "ms", "write ms"),
    metric("reads_per_s", "1/s", "reads/s"),
    metric("writes_per_s", "1/s", "writes/s"),
    metric("rebuild_ns_per_extent", "ns", "rebuild ns"),
    metric("calls_per_alloc", "1", "calls"),
    metric("free_runs", "1", "free runs"),
    metric("fill_at_start", "1", "from"),
    metric("fill_at_end", "1", "to"),
    metric("seconds", "s", "seconds"),
];

impl Figures {
    /// Notes a value that was placed.
    pub(crate) fn placed(&mut self, blocks: u64, runs: usize) {
        self.values += 1;
        self.runs += runs as u64;
        self.allocated_blocks += blocks;
    }

    /// Notes memory, of which the largest counts, and the distribution of the free space.
    pub(crate) fn look(&mut self, allocator: &dyn Allocator) {
        self.memory_bytes = self.memory_bytes.max(allocator.memory_bytes());
        self.fill_at_end = Some(allocator.status().utilisation());
        if let Some(space) = allocator.space() {
            let (mut large, mut all, mut runs) = (0, 0, 0);
            space.for_each_run(&mut |run| {
                runs += 1;
                all += u64::from(run.blocks);
                large += if run.blocks >= LARGE_BLOCKS { u64::from(run.blocks) } else { 0 };
            });
            self.free_runs = Some(runs);
            self.large_free_share = (all > 0).then(|| large as f64 / all as f64);
        }
    }

    /// Notes the progress: `before` is the total of the meter of allocations at the point before.
    pub(crate) fn point(&mut self, round: u64, before: &(u64, u64), allocator: &dyn Allocator) {
        let (operations, cpu_ns) = self.alloc.total();
        if operations > before.0 {
            let alloc_ns = (cpu_ns - before.1) as f64 / (operations - before.0) as f64;
            let fill = allocator.status().utilisation();
            self.points.push(Point { round, alloc_s: cpu_ns as f64 / 1e9, fill, alloc_ns });
        }
    }

    /// The mean of the tenth of the fill in which allocations took longest.
    fn worst_tenth_ns(&self) -> Option<f64> {
        let mut parts = [(0.0, 0); FILL_PARTS];
        for point in &self.points {
            let part = &mut parts[((point.fill * FILL_PARTS as f64) as usize).min(FILL_PARTS - 1)];
            *part = (part.0 + point.alloc_ns, part.1 + 1);
        }
        let means = parts.into_iter().filter(|part| part.1 > 0).map(|part| part.0 / f64::from(part.1));
        means.reduce(f64::max)
    }

    /// One for each of [`METRICS`].
    pub(crate) fn row(&self) -> Vec<Option<f64>> {
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        vec![
            self.alloc.mean_ns(),
            self.alloc.quantile_ns(500),
            self.alloc.quantile_ns(990),
            self.alloc.quantile_ns(999),
            self.alloc.max_ns(),
            self.worst_tenth_ns(),
            self.alloc_batched.mean_ns(),
            self.lease.mean_ns(),
            self.free.mean_ns(),
            self.free_batched.mean_ns(),
            self.wall_allocs_per_s.or_else(|| self.alloc.per_s()),
            self.utilisation_at_first_failure,
            share(self.runs, self.values),
            self.moved_blocks.and_then(|moved| share(moved, self.allocated_blocks)),
            self.contiguous_failures.map(|failures| failures as f64),
            self.large_free_share,
            self.turnovers,
            (self.memory_bytes > 0).then(|| self.memory_bytes as f64 / f64::from(1 << 20)),
            self.compact_ms,
            self.read_ms,
            self.write_ms,
            self.reads_per_s,
            self.writes_per_s,
            self.rebuild.mean_ns(),
            self.calls_per_alloc,
            self.free_runs.map(|runs| runs as f64),
            self.fill_at_start,
            self.fill_at_end,
            (self.seconds > 0.0).then_some(self.seconds),
        ]
    }
}
