//! `thresholds`: the size from which a value should ride in the log, and the size from which it should have separate extents.
//!
//! Every size is put in each way that the engine has for it, on a real device and on a simulated one whose reads, writes and
//! flushes take 1 ms: by a single client, which waits for each put, and by sixteen. The ways are forced by the engine's own
//! settings. A store per way lives through all sizes and is small, so that applies run all the time; the first tenth of each
//! row is not counted. The engine's default (`docs/adr/`, "values ride in the log") follows from this.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use shoal_base::BLOCK_BYTES_U64;
use shoal_device::sim::{Image, Latency, SimDevice, SimOptions};
use shoal_device::{Device, IoMode};
use shoal_engine::{Environment, FormatOptions, ObjectKey, OpenOptions, PutOptions, Store, block_on};

use crate::args::{io_mode, seconds};
use shoal_bench::data_file::NewFile;
use shoal_bench::enough::Enough;
use shoal_bench::histogram::Histogram;
use shoal_bench::machine;
use shoal_bench::plot::{Axis, LineChart, Mark};
use shoal_bench::report::{Metric, Report};
use shoal_bench::select;
use shoal_bench::settle::settle;

/// Sizes of values, in bytes: the limits of the ways, and between them.
const SIZES: [usize; 10] = [256, 512, 1000, 2048, 4096, 8192, 16_384, 24_576, 32_768, 65_536];
/// Those of a quick run.
const SIZES_QUICK: [usize; 4] = [512, 4096, 16_384, 65_536];
/// The longest value that fits in a leaf with its key.
const LEAF_BYTES_MAX: usize = 1000;
const DEVICES: [&str; 2] = ["file", "sim-1ms"];
const WAYS: [&str; 3] = ["leaf", "log", "extents"];
const CLIENTS: [usize; 2] = [1, 16];
/// Objects of a size: each is overwritten again and again.
const OBJECTS: u64 = 2000;
const DEVICE_BLOCKS: u64 = 1 << 18;
/// The log: small, so that its records go home while the row runs.
const LOG_BLOCKS: u32 = 4096;
const SLOW_NS: u64 = 1_000_000;
/// Requests that the slow device serves at once.
const PARALLEL: usize = 32;
/// The pause between two looks at the progress.
const LOOK_EVERY: Duration = Duration::from_millis(1);

const METRICS: &[Metric] = &[
    Metric { name: "puts_per_s", unit: "1/s", head: "puts/s" },
    Metric { name: "put_us_p50", unit: "us", head: "p50 us" },
    Metric { name: "put_us_p99", unit: "us", head: "p99 us" },
    Metric { name: "written_per_user_byte", unit: "1", head: "dev/user" },
];

/// The cases to measure, and the way to.
#[derive(Args, Clone, Debug)]
pub(crate) struct ThresholdOptions {
    /// End within two minutes: four sizes, a tenth of a second for each row.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only this case (device and clients: file-c1, sim-1ms-c16), or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds that each way runs with each size [default: 1, with --quick 0.1].
    #[arg(long = "seconds", value_name = "N", value_parser = seconds)]
    pub(crate) time: Option<Duration>,
    /// The data file: it must not exist, and is removed at the end [default: a temporary file in this folder].
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    /// How to drive the device.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = io_mode)]
    pub(crate) io: IoMode,
    /// Write charts of the figures to this folder, as SVG files.
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
}

impl ThresholdOptions {
    fn sizes(&self) -> &'static [usize] {
        if self.quick { &SIZES_QUICK } else { &SIZES }
    }

    fn time(&self) -> Duration {
        self.time.unwrap_or(Duration::from_secs_f64(if self.quick { 0.1 } else { 1.0 }))
    }
}

/// The measurements of one way with one size.
struct Row {
    case: String,
    way: &'static str,
    bytes: usize,
    puts_per_s: f64,
}

/// Measures and prints.
///
/// # Errors
/// A name that selects nothing; the store, the device or the output failed.
pub(crate) fn run(options: &ThresholdOptions, out: &mut dyn Write) -> Result<()> {
    run_in(&Environment::default(), options, out)
}

/// The same with stores in this environment.
fn run_in(environment: &Environment, options: &ThresholdOptions, out: &mut dyn Write) -> Result<()> {
    let cases = DEVICES.iter().flat_map(|device| CLIENTS.map(|clients| format!("{device}-c{clients}")));
    let cases: Vec<String> = cases.collect();
    let names: Vec<&str> = cases.iter().map(String::as_str).collect();
    let wanted = select("case", &names, &options.cases)?;
    let mut report = Report::new(out, "thresholds", METRICS, options.json);
    for (name, value) in [
        (
            "bench",
            "thresholds: puts of one size by the way that the value takes; rows: device, clients, bytes",
        ),
        ("machine", &machine::describe()),
        ("load average", &machine::load()),
        ("version", crate::VERSION),
        ("seconds a row", &options.time().as_secs_f64().to_string()),
    ] {
        report.fact(name, value)?;
    }
    let mut rows = Vec::new();
    for device in DEVICES {
        let of_device = |clients: usize| format!("{device}-c{clients}");
        if !CLIENTS.iter().any(|&clients| wanted.contains(&of_device(clients).as_str())) {
            continue;
        }
        for way in WAYS {
            let (store, _file) = open(device, way, environment, options)?;
            for clients in CLIENTS {
                let case = of_device(clients);
                if !wanted.contains(&case.as_str()) {
                    continue;
                }
                for &bytes in options.sizes() {
                    if way == "leaf" && bytes > LEAF_BYTES_MAX {
                        continue;
                    }
                    // Records that the row before left are not this one's to apply.
                    settle(&store);
                    let figures = measure(&store, bytes, clients, options.time())?;
                    report.row(&format!("{case}-{bytes}"), way, &figures)?;
                    let puts_per_s = figures.first().copied().flatten().unwrap_or_default();
                    rows.push(Row { case: case.clone(), way, bytes, puts_per_s });
                }
            }
            block_on(store.close())?;
        }
    }
    for path in options.plot.iter().map(|directory| charts(&rows, directory)) {
        for path in path? {
            report.fact("chart", &path.display().to_string())?;
        }
    }
    Ok(())
}

/// An empty store that puts every value in the one way.
fn open(
    device: &str,
    way: &str,
    environment: &Environment,
    options: &ThresholdOptions,
) -> Result<(Store, Option<NewFile>)> {
    let (device, file) = if device == "file" {
        let (device, file) = NewFile::create(options.data.as_deref(), "thresholds", options.io)?;
        (device, Some(file))
    } else {
        let latency =
            Latency { read_ns: SLOW_NS, write_ns: SLOW_NS, flush_ns: SLOW_NS, ..Latency::default() };
        let options = SimOptions { latency, parallel: PARALLEL, record: false, ..SimOptions::default() };
        (Device::new(SimDevice::with_options(Image::new(DEVICE_BLOCKS), options)), None)
    };
    let mut format = FormatOptions::for_blocks(DEVICE_BLOCKS);
    format.log_blocks = Some(LOG_BLOCKS);
    format.initial_blocks = Some(DEVICE_BLOCKS);
    block_on(Store::format(&device, &format, environment))?;
    let mut open = OpenOptions { cache_bytes: 256 << 20, ..OpenOptions::default() };
    let (leaf, log) = match way {
        "leaf" => (LEAF_BYTES_MAX, 0),
        "log" => (0, usize::MAX / 4),
        _ => (0, 0),
    };
    open.tuning.leaf_value_bytes_max = leaf;
    open.tuning.log_value_bytes_max = log;
    Ok((block_on(Store::open(device, open, environment.clone()))?, file))
}

fn measure(store: &Store, bytes: usize, clients: usize, time: Duration) -> Result<Vec<Option<f64>>> {
    let is_counted = AtomicBool::new(false);
    let is_over = AtomicBool::new(false);
    let puts_counted = AtomicU64::new(0);
    let all = Mutex::new((Histogram::default(), Ok(())));
    let mut counted = Duration::ZERO;
    let mut blocks = 0;
    thread::scope(|scope| {
        for client in 0..clients {
            let (is_counted, is_over, puts_counted, all) = (&is_counted, &is_over, &puts_counted, &all);
            scope.spawn(move || {
                let mut latencies = Histogram::default();
                let done = put_until(store, bytes, (client, clients), is_over, |took| {
                    if is_counted.load(Ordering::Relaxed) {
                        latencies.record(took);
                        puts_counted.fetch_add(1, Ordering::Relaxed);
                    }
                });
                // A client that failed stops the row.
                is_over.store(true, Ordering::Relaxed);
                let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                all.0.merge(&latencies);
                if all.1.is_ok() {
                    all.1 = done;
                }
            });
        }
        thread::sleep(time / 10);
        let before = store.stat().device.blocks_written;
        is_counted.store(true, Ordering::Relaxed);
        let enough = Enough::after(time);
        while !is_over.load(Ordering::Relaxed) && !enough.is_reached(puts_counted.load(Ordering::Relaxed)) {
            thread::sleep(LOOK_EVERY);
        }
        is_counted.store(false, Ordering::Relaxed);
        counted = enough.elapsed();
        blocks = store.stat().device.blocks_written - before;
        is_over.store(true, Ordering::Relaxed);
    });
    let (latencies, done) = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done?;
    let puts = latencies.count() as f64;
    Ok(vec![
        Some(puts / counted.as_secs_f64()),
        (puts > 0.0).then(|| latencies.quantile_us(500)),
        (puts > 0.0).then(|| latencies.quantile_us(990)),
        (puts > 0.0).then(|| (blocks * BLOCK_BYTES_U64) as f64 / (puts * bytes as f64)),
    ])
}

/// One client's puts: number `client` of `clients`.
fn put_until(
    store: &Store,
    bytes: usize,
    (client, clients): (usize, usize),
    is_over: &AtomicBool,
    mut put: impl FnMut(Duration),
) -> Result<()> {
    let value = bytes::Bytes::from(vec![client as u8; bytes]);
    let mut number = client as u64;
    while !is_over.load(Ordering::Relaxed) {
        // A stride without a common factor with the number of objects, so that leaves are met in no order.
        let key = ObjectKey::new("bench", format!("{bytes}/{:08}", number * 7919 % OBJECTS).as_bytes())?;
        let began = Instant::now();
        block_on(store.put(&key, value.clone().into(), PutOptions::default()))?;
        put(began.elapsed());
        number += clients as u64;
    }
    Ok(())
}

/// For each device and number of clients, puts by size, a line for each way.
fn charts(rows: &[Row], directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let mut cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
    cases.sort_unstable();
    cases.dedup();
    for case in cases {
        let mut chart = LineChart::new(
            &format!("Durable puts by the way of the value, {case}"),
            Axis::new("value", "bytes").log(),
            Axis::new("puts", "1/s").log(),
        );
        for way in WAYS {
            let of_way = rows.iter().filter(|row| row.case == case && row.way == way);
            chart.add(way, Mark::Line, of_way.map(|row| (row.bytes as f64, row.puts_per_s)));
        }
        paths.push(chart.write(directory, &format!("thresholds-{case}"))?);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_base::{Clock, SystemClock};

    use super::*;
    use crate::args::parsed;

    /// A store settles, as it does before each row, when its records are three seconds old: here that is a moment.
    struct Fast(SystemClock);

    impl Clock for Fast {
        fn wall_ns(&self) -> u64 {
            self.0.wall_ns()
        }

        fn boot_ns(&self) -> u64 {
            self.0.boot_ns()
        }

        fn boot_id(&self) -> [u8; 16] {
            self.0.boot_id()
        }

        fn monotonic_ns(&self) -> u64 {
            self.0.monotonic_ns() * 100
        }
    }

    #[test]
    fn every_way_is_measured_and_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let options = ThresholdOptions {
            plot: Some(folder.path().into()),
            ..parsed(&["--json", "--seconds", "0", "--case", "sim-1ms-c16"])
        };
        let mut out = Vec::new();
        let environment = Environment { clock: Arc::new(Fast(SystemClock::new())), ..Environment::default() };
        run_in(&environment, &options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for way in WAYS {
            assert!(text.contains(&format!("\"variant\":\"{way}\"")), "{text}");
        }
        assert!(!text.contains("sim-1ms-c16-2048\",\"variant\":\"leaf\""));
        let chart = std::fs::read_to_string(folder.path().join("thresholds-sim-1ms-c16.svg")).unwrap();
        assert!(chart.contains("extents") && chart.contains("</svg>"));
    }
}
