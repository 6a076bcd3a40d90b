//! `bench pool`: the seed's benchmark of buffer pools, with its versions, beside pools of other designs.
//!
//! Eight threads scan, eight pick pages with a Zipfian distribution; the pool has 64 frames for 6,400 pages on a simulated
//! device. Every page is checked as it goes, and after each run a sweep audits from outside that the pool used no more
//! frames than it was given.

mod bed;
mod case;
mod frames;
mod mix;
mod naive;
mod page;
mod proxy;
mod resident;
mod shoal;
mod sim;
mod zipf;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};

use self::bed::{Load, PagePool, Role, Session, Tally, run as load_run};
use self::case::{CASES, Case, VARIANTS, Variant};
use self::naive::{Naive, Scheduler};
use self::page::Versions;
use self::proxy::Proxy;
use self::shoal::{Settings, Shoal};
use self::sim::Sim;
use crate::machine;
use crate::report::{Metric, Report};

const METRICS: &[Metric] = &[
    Metric { name: "ops_per_s", unit: "1/s", head: "ops/s" },
    Metric { name: "ops_per_cpu_s", unit: "1/s", head: "ops/CPU-s" },
    Metric { name: "hit_ns", unit: "ns", head: "hit ns" },
    Metric { name: "scan_qps", unit: "1/s", head: "scans/s" },
    Metric { name: "get_qps", unit: "1/s", head: "gets/s" },
    Metric { name: "score", unit: "1", head: "score" },
    Metric { name: "get_hit_rate", unit: "1", head: "get hits" },
];

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct PoolBenchOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// JSON lines instead of a table.
    pub json: bool,
    /// Cases by name, or by beginning and `*`; none: all.
    pub cases: Vec<String>,
    /// Variants likewise.
    pub variants: Vec<String>,
    /// How long a case runs for each variant and latency.
    pub time: Duration,
    /// Pages on the device, a multiple of 8.
    pub pages: u64,
    /// Frames of the pool, where the case does not say it.
    pub frames: usize,
    /// Threads that scan, and threads that get: at most 8 each.
    pub scans: u64,
    /// See `scans`.
    pub gets: u64,
    /// LRU-K's k of the comparison pools.
    pub k: usize,
    /// Skew of the gets.
    pub theta: f64,
}

impl Default for PoolBenchOptions {
    /// The seed's parameters.
    fn default() -> Self {
        Self {
            version: String::new(),
            json: false,
            cases: Vec::new(),
            variants: Vec::new(),
            time: Duration::from_secs(30),
            pages: 6400,
            frames: 64,
            scans: 8,
            gets: 8,
            k: 16,
            theta: 0.8,
        }
    }
}

fn selected(patterns: &[String], name: &str) -> bool {
    let matches = |pattern: &String| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    };
    patterns.is_empty() || patterns.iter().any(matches)
}

/// Runs the cases and prints their figures to `out`.
///
/// # Errors
/// Options that do not fit together, or the output's.
///
/// # Panics
/// Where a pool loses an update, or serves a stale, torn or wrong page, or uses more frames than it was given.
pub fn run(options: &PoolBenchOptions, out: &mut dyn Write) -> Result<()> {
    ensure!(
        (1..=8).contains(&options.scans) && (1..=8).contains(&options.gets),
        "1 to 8 threads of each kind"
    );
    ensure!(options.pages >= 64 && options.pages.is_multiple_of(8), "pages are a multiple of 8, at least 64");
    ensure!((1..=16).contains(&options.k), "k is 1 to 16");
    let least = (options.scans + options.gets) as usize + 2;
    ensure!(options.frames >= least, "at least {least} frames: each thread holds one");
    let mut report = Report::new(out, "pool", METRICS, options.json);
    report.fact("shoal", &options.version)?;
    report.fact("machine", &machine::describe())?;
    report.fact("load", &machine::load())?;
    let PoolBenchOptions { pages, frames, scans, gets, k, theta, time, .. } = options;
    let parameters =
        format!("{scans} scans, {gets} gets, zipf {theta}, {pages} pages, {frames} frames, k {k}, {time:?}");
    report.fact("parameters", &parameters)?;
    for case in CASES.iter().filter(|case| selected(&options.cases, case.name)) {
        if case.name == "resident" {
            if selected(&options.variants, "default") {
                resident::measure(options, &mut report)?;
            }
            continue;
        }
        for variant in VARIANTS.iter().filter(|variant| selected(&options.variants, variant.name)) {
            if let Some(scans_per_get) = case.mix {
                let rate = mix::hit_rate(options, scans_per_get, variant.name, variant.settings);
                if rate.is_some() {
                    report.row(case.name, variant.name, &[None, None, None, None, None, None, rate])?;
                }
            } else if variant.name != "belady" {
                report.row(case.name, variant.name, &measure(options, case, variant))?;
            }
        }
    }
    report.fact("load afterwards", &machine::load())?;
    Ok(())
}

/// Runs one variant through the latencies of a case.
fn measure(options: &PoolBenchOptions, case: &Case, variant: &Variant) -> Vec<Option<f64>> {
    let tallies: Vec<Tally> = case
        .latencies
        .iter()
        .map(|&latency| {
            let sim = Sim::new(options.pages, latency, variant.settings.hands_off);
            let frames = case.frames.unwrap_or(options.frames);
            let load = Load {
                version: case.version,
                pages: options.pages,
                scans: options.scans,
                gets: options.gets,
                theta: options.theta,
                time: options.time,
            };
            match variant.name {
                "naive" => {
                    under_load(&sim, &load, frames, &Naive::new(sim.clone(), load.pages, frames, options.k))
                }
                "naive-scheduler" => {
                    let disk = Scheduler::new(sim.clone());
                    under_load(&sim, &load, frames, &Naive::new(disk, load.pages, frames, options.k))
                }
                "proxy" => {
                    under_load(&sim, &load, frames, &Proxy::new(sim.clone(), load.pages, frames, options.k))
                }
                _ => {
                    let settings = Settings { scan_frames: case.scan_frames, ..variant.settings };
                    let pool = Shoal::new(&sim, frames, settings);
                    let tally = under_load(&sim, &load, frames, &pool);
                    pool.explain();
                    tally
                }
            }
        })
        .collect();
    let total = |tally: &Tally| tally.scans_per_s + tally.gets_per_s;
    let Some(last) = tallies.last() else { return vec![None; METRICS.len()] };
    let score = match &tallies[..] {
        [fast, slow] => Some(total(fast) / 10_000.0 + slow.scans_per_s + 10.0 * slow.gets_per_s),
        _ => None,
    };
    vec![
        Some(total(last)),
        Some(last.ops_per_cpu_s),
        None,
        Some(last.scans_per_s),
        Some(last.gets_per_s),
        score,
        None,
    ]
}

/// The load, then the audit.
fn under_load<P: PagePool>(sim: &Arc<Sim>, load: &Load, frames: usize, pool: &P) -> Tally {
    let versions = Versions::new(load.pages);
    let tally = load_run(pool, &versions, load);
    // What was read ahead when the load ended is not the sweep's.
    std::thread::sleep(Duration::from_millis(20));
    let mut session = pool.session(Role::Get);
    let before = sim.pages_read();
    for number in 0..load.pages.min(2_000) {
        let version = session.read(number, |page| page::checked(page, number));
        assert!(version >= versions.at_least(number), "page {number} is stale after the run");
    }
    let served = load.pages.min(2_000).saturating_sub(sim.pages_read() - before);
    assert!(served <= frames as u64, "{frames} frames served {served} pages of a sweep");
    tally
}
