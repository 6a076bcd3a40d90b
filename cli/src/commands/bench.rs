//! `shoal bench`: measures this program on this machine. What is measured, and how, is in the crate `shoal-bench`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use shoal_bench::pool::PoolBenchOptions;

use crate::failure::Usage;
use crate::logging;
use crate::size::Size;
use crate::store_file::Io;

const EXAMPLES: &str = "\
Examples:
  shoal bench store --quick                          everything, in less than a minute
  shoal bench store --case put-64k-c64 --case 'get-cold-*' --variant embedded
  shoal bench store --data /dev/nvme1n1              a blank device, instead of a temporary file in this folder
  shoal bench store --json > figures.jsonl
  shoal bench space --case 'seed-*'                  the allocators on the seed's load

Figures mean something only from a release build on a machine that does nothing else.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Put, get, delete and list on a real data file, by size and number of clients.
    Store(StoreArguments),
    /// The disk-space allocator beside the seed's four and others, in memory.
    Space(SpaceArguments),
    /// Allocated over live bytes of a store, after puts and after deletes, and what is written for them.
    Amplification(AmplificationArguments),
    /// Durable puts by size and by the way that a value takes: leaf, log, extents of its own.
    Thresholds(ThresholdArguments),
    /// Buffer pools under scans and gets on a simulated device, in their own memory.
    Pool(PoolArguments),
    /// RAMCloud's clusterperf, by its names, over the Redis protocol.
    Cluster(ClusterArguments),
    /// The seed's client against the seed's servers and this one, over gRPC.
    Grpc(GrpcArguments),
    /// A server for `bench grpc`.
    #[command(hide = true)]
    GrpcServer(GrpcServerArguments),
    /// The steps of a request in their old form and their new one, beside the figures of RAMCloud's authors.
    Lessons(LessonArguments),
}

#[derive(Args)]
struct ClusterArguments {
    /// Only this case (basic, readDist, ...), or all that begin with NAME where it ends with `*`; may be given again.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Seconds that each row is measured.
    #[arg(long, value_name = "N", default_value = "1")]
    seconds: f64,
    /// Objects of the cases that read or write random ones.
    #[arg(long, value_name = "N", default_value = "200000")]
    objects: u64,
    /// Clients at most, where a case has several.
    #[arg(long, value_name = "N", default_value = "16")]
    clients: usize,
    /// The data file: it must not exist, and is removed at the end [default: the store is in memory].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// How to drive the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
    /// Folder for the distributions of times, as charts (SVG) and lines (CSV).
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

fn run_cluster(arguments: ClusterArguments) -> anyhow::Result<()> {
    let options = shoal_bench::cluster::ClusterOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        json: arguments.json,
        cases: arguments.cases,
        time: seconds(Some(arguments.seconds))?.unwrap_or_default(),
        objects: arguments.objects,
        clients: arguments.clients,
        data: arguments.data,
        io: arguments.io.into(),
        plot: arguments.plot,
    };
    shoal_bench::cluster::run(&options, &mut std::io::stdout().lock())
}

#[derive(Args)]
struct GrpcArguments {
    /// Only this case, or all that begin with NAME where it ends with `*`; may be given again.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only this variant: global-lock, per-key, memory, durable, etcd, or a way of multi-100b; may be given again.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Seconds that each variant of a case is measured; of a soak in all [default: 8, of a soak 300].
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Calls in flight.
    #[arg(long, value_name = "N", default_value = "100")]
    in_flight: usize,
    /// Objects of 64 KiB; of 100 bytes there are 20 times as many.
    #[arg(long, value_name = "N", default_value = "1000")]
    objects: usize,
    /// The data file of the durable server: it must not exist, and is removed at the end [default: a temporary file in this
    /// folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// How to drive its device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
    /// Write charts of the figures to this folder, as SVG files.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// The program of etcd: measure it too, with its data beside the data file.
    #[arg(long, value_name = "PROGRAM")]
    etcd: Option<PathBuf>,
    /// Only the seed's load on the durable server, for five minutes; then every object is read again.
    #[arg(long, conflicts_with_all = ["cases", "variants"])]
    soak: bool,
}

fn run_grpc(arguments: GrpcArguments) -> anyhow::Result<()> {
    let time = seconds(arguments.seconds)?;
    let options = shoal_bench::grpc::GrpcOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        json: arguments.json,
        cases: arguments.cases,
        variants: arguments.variants,
        time: time.unwrap_or(Duration::from_secs(8)),
        in_flight: arguments.in_flight,
        objects: arguments.objects,
        data: arguments.data,
        io: arguments.io.into(),
        plot: arguments.plot,
        etcd: arguments.etcd,
        program: Some(std::env::current_exe().context("this program does not know where it is")?),
        soak: arguments.soak.then(|| time.unwrap_or(Duration::from_secs(300))),
    };
    shoal_bench::grpc::run(&options, &mut std::io::stdout().lock())
}

#[derive(Args)]
struct GrpcServerArguments {
    /// global-lock, per-key, memory or durable.
    #[arg(long, value_name = "NAME")]
    variant: String,
    /// The data file of durable: it must not exist.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// How to drive its device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
}

fn run_grpc_server(arguments: GrpcServerArguments) -> anyhow::Result<()> {
    let options = shoal_bench::grpc::ServeOptions {
        variant: arguments.variant,
        data: arguments.data,
        io: arguments.io.into(),
    };
    shoal_bench::grpc::serve(&options, &mut std::io::stdout().lock())
}

#[derive(Args)]
struct LessonArguments {
    /// Only this lesson, or all that begin with NAME where it ends with `*`; may be given again.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Seconds that each lesson is measured.
    #[arg(long, value_name = "N", default_value = "1")]
    seconds: f64,
}

fn run_lessons(arguments: LessonArguments) -> anyhow::Result<()> {
    let options = shoal_bench::lessons::LessonOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        json: arguments.json,
        cases: arguments.cases,
        time: seconds(Some(arguments.seconds))?.unwrap_or_default(),
    };
    shoal_bench::lessons::run(&options, &mut std::io::stdout().lock())
}

#[derive(Args)]
struct PoolArguments {
    /// Only this case, or all that begin with NAME where it ends with `*`; may be given again.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only this variant, or all that begin with NAME where it ends with `*`; may be given again.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Seconds that each variant runs at each latency of a case.
    #[arg(long, value_name = "N", default_value_t = PoolBenchOptions::default().time.as_secs_f64())]
    seconds: f64,
    /// Frames of the pools, where the case does not say it.
    #[arg(long, value_name = "N", default_value_t = PoolBenchOptions::default().frames)]
    frames: usize,
    /// Pages on the device, a multiple of 8.
    #[arg(long, value_name = "N", default_value_t = PoolBenchOptions::default().pages)]
    pages: u64,
    /// Threads that scan, at most 8.
    #[arg(long, value_name = "N", default_value_t = PoolBenchOptions::default().scans)]
    scans: u64,
    /// Threads that get, at most 8.
    #[arg(long, value_name = "N", default_value_t = PoolBenchOptions::default().gets)]
    gets: u64,
    /// LRU-K's k.
    #[arg(long, value_name = "N", default_value_t = PoolBenchOptions::default().k)]
    k: usize,
    /// Frames that scans take before they reuse their own [default: the pool's].
    #[arg(long, value_name = "N")]
    scan_frames: Option<usize>,
    /// Frames that are free or being written before more are written ahead of need [default: the pool's].
    #[arg(long, value_name = "N")]
    ready_frames: Option<usize>,
    /// Side buffers beside the frames [default: none but for the variant `side-buffers`].
    #[arg(long, value_name = "N")]
    side_buffers: Option<usize>,
    /// A new file, removed at the end, or a blank block device, for the cases `device*`, which are left out without it.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Folder for charts (SVG).
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

fn run_pool(arguments: PoolArguments) -> anyhow::Result<()> {
    let options = PoolBenchOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        json: arguments.json,
        cases: arguments.cases,
        variants: arguments.variants,
        time: seconds(Some(arguments.seconds))?.unwrap_or_default(),
        pages: arguments.pages,
        frames: arguments.frames,
        scans: arguments.scans,
        gets: arguments.gets,
        k: arguments.k,
        scan_frames: arguments.scan_frames,
        ready_frames: arguments.ready_frames,
        side_buffers: arguments.side_buffers,
        data: arguments.data,
        plot: arguments.plot,
        ..Default::default()
    };
    shoal_bench::pool::run(&options, &mut std::io::stdout().lock())
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct StoreArguments {
    /// End within a minute: fewer objects, half a second a case.
    #[arg(long)]
    quick: bool,
    /// Only this case, or all that begin with NAME where it ends with `*`; may be given again.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only this variant: embedded or server; may be given again.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// The data file or block device; a store in it is used, its bucket "bench" is overwritten
    /// [default: a temporary file in this folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// How large the data file may grow; the log is in proportion.
    #[arg(long, value_name = "SIZE", default_value = "64G")]
    size: Size,
    /// Memory for cached pages and values, except where a case is to read from the device.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    cache: Size,
    /// Seconds that a case runs [default: 5, with --quick 0.5].
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// How to drive the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
}

#[derive(Args)]
struct AmplificationArguments {
    /// Only this case, or all that begin with NAME where it ends with `*`; may be given again.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only this variant: c1 or c16, the number of clients; may be given again.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// The data file: it must not exist, and is removed at the end [default: a temporary file in this folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Bytes of values that are put.
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    bytes: Size,
    /// Memory for cached pages and values.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    cache: Size,
    /// The folder whose files are put, again and again under other keys.
    #[arg(long, value_name = "FOLDER", default_value = "/usr/share")]
    tree: PathBuf,
    /// How to drive the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
}

fn run_amplification(arguments: AmplificationArguments) -> anyhow::Result<()> {
    let options = shoal_bench::amplification::AmplificationOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        json: arguments.json,
        cases: arguments.cases,
        variants: arguments.variants,
        data: arguments.data,
        bytes: arguments.bytes.0,
        cache: arguments.cache.0,
        tree: arguments.tree,
        io: arguments.io.into(),
    };
    shoal_bench::amplification::run(&options, &mut std::io::stdout().lock())
}

#[derive(Args)]
struct ThresholdArguments {
    /// Only this case (device and clients: file-c1, sim-1ms-c16), or all that begin with NAME where it ends with `*`; may be
    /// given again.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Seconds that each way runs with each size.
    #[arg(long, value_name = "N", default_value = "1")]
    seconds: f64,
    /// The data file: it must not exist, and is removed at the end [default: a temporary file in this folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// How to drive the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
    /// Write charts of the figures to this folder, as SVG files.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

fn run_thresholds(arguments: ThresholdArguments) -> anyhow::Result<()> {
    let options = shoal_bench::thresholds::ThresholdOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        json: arguments.json,
        cases: arguments.cases,
        time: seconds(Some(arguments.seconds))?.unwrap_or_default(),
        data: arguments.data,
        io: arguments.io.into(),
        plot: arguments.plot,
    };
    shoal_bench::thresholds::run(&options, &mut std::io::stdout().lock())
}

#[derive(Args)]
struct SpaceArguments {
    /// End within a minute: devices 64 times smaller, half a second a row.
    #[arg(long)]
    quick: bool,
    /// Only this case, or all that begin with NAME where it ends with `*`; may be given again.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only this variant: bitmap, grouped, pooled, pooled-bitmap, tree, hybrid, uncached, cached; may be given again.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Seconds that a row may take, and as many for its preparation [default: by variant, with --quick 0.5].
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Go on with the seed's load from the free space that `shoal stat --dump-space` wrote to this file, instead of the cases.
    #[arg(long, value_name = "FILE", conflicts_with = "cases")]
    start: Option<PathBuf>,
    /// Write charts of the figures to this folder, as SVG files.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

fn seconds(number: Option<f64>) -> anyhow::Result<Option<Duration>> {
    let wrong = |_| Usage("--seconds is a number of seconds above 0".into());
    Ok(number.map(Duration::try_from_secs_f64).transpose().map_err(wrong)?)
}

fn run_space(arguments: SpaceArguments) -> anyhow::Result<()> {
    let options = shoal_bench::space::SpaceOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        quick: arguments.quick,
        json: arguments.json,
        cases: arguments.cases,
        variants: arguments.variants,
        time: seconds(arguments.seconds)?,
        looks: None,
        start: arguments.start,
        plot: arguments.plot,
    };
    shoal_bench::space::run(&options, &mut std::io::stdout().lock())
}

/// Runs on the program's first thread, outside of any runtime: clients are threads that may block.
pub(crate) fn run(arguments: Arguments, log: Option<&str>) -> anyhow::Result<()> {
    logging::start(log.unwrap_or("warn"))?;
    let arguments = match arguments.bench {
        Bench::Store(arguments) => arguments,
        Bench::Space(arguments) => return run_space(arguments),
        Bench::Amplification(arguments) => return run_amplification(arguments),
        Bench::Thresholds(arguments) => return run_thresholds(arguments),
        Bench::Pool(arguments) => return run_pool(arguments),
        Bench::Cluster(arguments) => return run_cluster(arguments),
        Bench::Grpc(arguments) => return run_grpc(arguments),
        Bench::GrpcServer(arguments) => return run_grpc_server(arguments),
        Bench::Lessons(arguments) => return run_lessons(arguments),
    };
    let time = seconds(arguments.seconds)?;
    let options = shoal_bench::store::StoreOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        quick: arguments.quick,
        json: arguments.json,
        cases: arguments.cases,
        variants: arguments.variants,
        data: arguments.data,
        size: arguments.size.0,
        cache: arguments.cache.0,
        time,
        io: arguments.io.into(),
    };
    shoal_bench::store::run(&options, &mut std::io::stdout().lock())
}
