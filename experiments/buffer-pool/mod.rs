//! `buffer-pool`: the seed's benchmark of buffer pools, with its versions, beside pools of other designs.
//!
//! Eight threads scan, eight pick pages with a Zipfian distribution; the pool has 64 frames for 6,400 pages on a simulated
//! device. Every page is checked as it goes, and after each run a sweep audits from outside that the pool used no more
//! frames than its limit. Ablations take one mechanism away by the benchmark's own means, never by a switch in the pool.

mod bed;
mod case;
mod charts;
mod disk;
mod frames;
mod mix;
mod naive;
mod page;
mod policies;
mod proxy;
mod resident;
mod shoal;
mod sim;
mod zipf;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use shoal_device::Device;

use self::bed::{Load, PagePool, Role, Session, Tally, run as load_run};
use self::case::{CASES, Case, Kind, SIMULATED, Size, VARIANTS, Variant};
use self::charts::Row;
use self::disk::DataFile;
use self::naive::{Naive, Scheduler};
use self::page::Versions;
use self::proxy::Proxy;
use self::shoal::{Settings, Shoal};
use self::sim::{Latency, Sim};
use crate::args::seconds;
use shoal_bench::machine;
use shoal_bench::report::{Metric, Report};
use shoal_bench::select;

const METRICS: &[Metric] = &[
    Metric { name: "ops_per_s", unit: "1/s", head: "ops/s" },
    Metric { name: "ops_per_cpu_s", unit: "1/s", head: "ops/CPU-s" },
    Metric { name: "hit_ns", unit: "ns", head: "hit ns" },
    Metric { name: "scan_qps", unit: "1/s", head: "scans/s" },
    Metric { name: "get_qps", unit: "1/s", head: "gets/s" },
    Metric { name: "score", unit: "1", head: "score" },
    Metric { name: "get_hit_rate", unit: "1", head: "get hits" },
];

/// The cases to measure, and the way to.
#[derive(Args, Clone, Debug)]
pub(crate) struct PoolBenchOptions {
    /// A tenth of a second for each variant at each latency of a case.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only this case, or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// Only this variant, or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "variant", value_name = "NAME")]
    pub(crate) variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds that each variant runs at each latency of a case [default: 30, with --quick 0.1].
    #[arg(long = "seconds", value_name = "N", value_parser = seconds)]
    pub(crate) time: Option<Duration>,
    /// Frames of the pools, unless the case sets them.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) frames: usize,
    /// Pages on the device, a multiple of 8.
    #[arg(long, value_name = "N", default_value_t = 6400)]
    pub(crate) pages: u64,
    /// Threads that scan, at most 8.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) scans: u64,
    /// Threads that get, at most 8.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) gets: u64,
    /// LRU-K's k.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) k: usize,
    /// Skew of the gets.
    #[arg(skip = 0.8)]
    pub(crate) theta: f64,
    /// Frames that scans take before they reuse their own [default: the pool's].
    #[arg(long, value_name = "N")]
    pub(crate) scan_frames: Option<usize>,
    /// Frames that are free or being written before more are written ahead of need [default: the pool's].
    #[arg(long, value_name = "N")]
    pub(crate) ready_frames: Option<usize>,
    /// Side buffers beside the frames [default: none, except in the variant `side-buffers`].
    #[arg(long, value_name = "N")]
    pub(crate) side_buffers: Option<usize>,
    /// A new file, removed at the end, or a blank block device, for the cases `device*`, which are left out without it.
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    /// Write charts of the figures to this folder, as SVG files.
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
}

impl PoolBenchOptions {
    fn time(&self) -> Duration {
        self.time.unwrap_or(Duration::from_secs_f64(if self.quick { 0.1 } else { 30.0 }))
    }
}

/// Runs the cases and prints their figures to `out`.
///
/// # Errors
/// Options that do not fit together, or the output's.
///
/// # Panics
/// If a pool loses an update, or serves a stale, torn or wrong page, or uses more frames than its limit.
pub(crate) fn run(options: &PoolBenchOptions, out: &mut dyn Write) -> Result<()> {
    ensure!(
        (1..=8).contains(&options.scans) && (1..=8).contains(&options.gets),
        "1 to 8 threads of each kind"
    );
    ensure!(options.pages >= 64 && options.pages.is_multiple_of(8), "pages are a multiple of 8, at least 64");
    ensure!((1..=16).contains(&options.k), "k is 1 to 16");
    let least = (options.scans + options.gets) as usize + 2;
    ensure!(options.frames >= least, "at least {least} frames: each thread holds one");
    options.data.as_deref().map_or(Ok(()), DataFile::check)?;
    let names: Vec<_> = CASES.iter().map(|case| case.name).collect();
    let cases = select("case", &names, &options.cases)?;
    let variants = variants(options)?;
    let mut report = Report::new(out, "pool", METRICS, options.json);
    report.fact("shoal", crate::VERSION)?;
    report.fact("machine", &machine::describe())?;
    report.fact("load", &machine::load())?;
    let PoolBenchOptions { pages, frames, scans, gets, k, theta, .. } = options;
    let time = options.time();
    let parameters =
        format!("{scans} scans, {gets} gets, zipf {theta}, {pages} pages, {frames} frames, k {k}, {time:?}");
    report.fact("parameters", &parameters)?;
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|case| cases.contains(&case.name)) {
        measure_case(options, case, &variants, &mut report, &mut rows)?;
    }
    if let Some(directory) = &options.plot {
        charts::write(&rows, directory)?;
    }
    report.fact("load afterwards", &machine::load())?;
    Ok(())
}

/// The requested variants, with the pool's options applied.
fn variants(options: &PoolBenchOptions) -> Result<Vec<Variant>> {
    let names: Vec<_> = VARIANTS.iter().map(|variant| variant.name).collect();
    let wanted = select("variant", &names, &options.variants)?;
    let with_options = |variant: &Variant| {
        let Settings { scan_frames, ready_frames, side_buffers, .. } = variant.settings;
        let settings = Settings {
            scan_frames: options.scan_frames.or(scan_frames),
            ready_frames: options.ready_frames.or(ready_frames),
            side_buffers: options.side_buffers.unwrap_or(side_buffers),
            ..variant.settings
        };
        Variant { settings, ..*variant }
    };
    Ok(VARIANTS.iter().filter(|variant| wanted.contains(&variant.name)).map(with_options).collect())
}

fn measure_case(
    options: &PoolBenchOptions,
    case: &Case,
    variants: &[Variant],
    report: &mut Report<'_>,
    rows: &mut Vec<Row>,
) -> Result<()> {
    if matches!(case.kind, Kind::Resident) {
        if variants.iter().any(|variant| variant.name == "default") {
            resident::measure(options, report)?;
        }
        return Ok(());
    }
    let Some(default) = VARIANTS.iter().find(|variant| variant.name == "default") else {
        unreachable!("there is a default")
    };
    let trace = mix::trace(options, case.kind, default.settings);
    for variant in variants {
        let asked_for = !case.is_narrow || variant.is_common || !options.variants.is_empty();
        let is_rate = trace.is_some();
        if !asked_for || !is_rate && SIMULATED.contains(&variant.name) {
            continue;
        }
        let figures = match &trace {
            Some(trace) => {
                let rate = mix::hit_rate(options, trace, variant);
                rate.map(|rate| vec![None, None, None, None, None, None, Some(rate)])
            }
            None => measure(options, case, variant)?,
        };
        if let Some(figures) = figures {
            report.row(case.name, variant.name, &figures)?;
            rows.push(Row { case: case.name, variant: variant.name, figures });
        }
    }
    Ok(())
}

/// Runs one variant through the latencies of a case. None if it cannot run there.
fn measure(options: &PoolBenchOptions, case: &Case, variant: &Variant) -> Result<Option<Vec<Option<f64>>>> {
    let frames = match case.size {
        Size::Given => options.frames,
        Size::Frames(frames) => frames,
        Size::Percent(part) => (options.pages * part / 100) as usize,
    };
    let load = Load {
        version: case.version,
        pages: options.pages,
        scans: case.threads.unwrap_or(options.scans),
        gets: case.threads.unwrap_or(options.gets),
        theta: options.theta,
        time: options.time(),
    };
    let tallies = match case.kind {
        Kind::Load(latencies) => {
            latencies.iter().map(|&latency| simulated(options, variant, frames, &load, latency)).collect()
        }
        Kind::Device => {
            let Some(path) = &options.data else { return Ok(None) };
            let file = DataFile::new(path, options.pages)?;
            match real(options, variant, frames, &load, &file.device) {
                Some(tally) => vec![tally],
                None => return Ok(None),
            }
        }
        Kind::Resident | Kind::Mix(_) | Kind::Recorded => Vec::new(),
    };
    let total = |tally: &Tally| tally.scans_per_s + tally.gets_per_s;
    let Some(last) = tallies.last() else { return Ok(None) };
    let score = match &tallies[..] {
        [fast, slow] => Some(total(fast) / 10_000.0 + slow.scans_per_s + 10.0 * slow.gets_per_s),
        _ => None,
    };
    Ok(Some(vec![
        Some(total(last)),
        Some(last.ops_per_cpu_s),
        None,
        Some(last.scans_per_s),
        Some(last.gets_per_s),
        score,
        None,
    ]))
}

/// On the simulator.
fn simulated(
    options: &PoolBenchOptions,
    variant: &Variant,
    frames: usize,
    load: &Load,
    latency: Latency,
) -> Tally {
    let sim = Sim::new(options.pages, latency, variant.settings.device);
    let read = || sim.pages_read();
    match variant.name {
        "naive" => under_load(&read, load, frames, &Naive::new(sim.clone(), load.pages, frames, options.k)),
        "naive-scheduler" => {
            let disk = Scheduler::new(sim.clone());
            under_load(&read, load, frames, &Naive::new(disk, load.pages, frames, options.k))
        }
        "proxy" => under_load(&read, load, frames, &Proxy::new(sim.clone(), load.pages, frames, options.k)),
        _ => {
            let pool = Shoal::new(&sim, frames, variant.settings);
            let tally = under_load(&read, load, frames, &pool);
            pool.explain();
            tally
        }
    }
}

/// On a real device; none if the variant needs the simulator.
fn real(
    options: &PoolBenchOptions,
    variant: &Variant,
    frames: usize,
    load: &Load,
    device: &Device,
) -> Option<Tally> {
    let read = || device.counters().blocks_read;
    match variant.name {
        "naive" => {
            let pool = Naive::new(device.clone(), load.pages, frames, options.k);
            Some(under_load(&read, load, frames, &pool))
        }
        "naive-scheduler" => {
            let pool = Naive::new(Scheduler::new(Arc::new(device.clone())), load.pages, frames, options.k);
            Some(under_load(&read, load, frames, &pool))
        }
        "proxy" => None,
        _ if variant.settings.needs_simulator() => None,
        _ => {
            let pool = Shoal::on(device.clone(), frames, variant.settings);
            let tally = under_load(&read, load, frames, &pool);
            pool.explain();
            Some(tally)
        }
    }
}

/// The load, then the audit: `pages_read` counts the reads of the device.
fn under_load<P: PagePool>(pages_read: &impl Fn() -> u64, load: &Load, frames: usize, pool: &P) -> Tally {
    let versions = Versions::new(load.pages);
    let tally = load_run(pool, &versions, load);
    // Pages that were read ahead when the load ended are not the sweep's.
    std::thread::sleep(Duration::from_millis(20));
    let mut session = pool.session(Role::Get);
    let before = pages_read();
    let pages = load.pages.min(2_000);
    for number in 0..pages {
        let version = session.read(number, |page| page::checked(page, number));
        assert!(version >= versions.at_least(number), "page {number} is stale after the run");
    }
    let served = pages.saturating_sub(pages_read() - before);
    assert!(served <= frames as u64, "{frames} frames served {served} pages of a sweep");
    tally
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::parsed;

    #[test]
    fn unknown_names_are_refused() {
        let ran = |cases: &[&str], variants: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
            let options = PoolBenchOptions {
                cases: names(cases),
                variants: names(variants),
                ..parsed(&["--seconds", "0"])
            };
            run(&options, &mut Vec::new())
        };
        assert!(ran(&["2024-lat7"], &[]).is_err() && ran(&["2024-lat0"], &["defualt"]).is_err());
        ran(&["2024-lat0"], &["default", "naive"]).unwrap();
    }
}
