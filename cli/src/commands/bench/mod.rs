//! `shoal bench`: measures this program on this machine. The crate `shoal-bench` has the measurements.

mod density;
mod list;
mod s3;
mod tail;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use shoal_bench::grpc::Servers;
use shoal_bench::report::Format;
use shoal_bench::scale::{ChildOptions, Killer, Order, ScaleOptions};

use self::density::DensityArguments;
use self::list::ListArguments;
use self::s3::S3Arguments;
use self::tail::TailArguments;
use crate::arguments::size::Size;
use crate::failure::Usage;
use crate::logging;
use crate::store::file::Io;

const EXAMPLES: &str = "Examples:
  shoal bench store --quick                          everything, in less than a minute
  shoal bench store --case put-64k-c64 --case 'get-cold-*' --variant embedded
  shoal bench store --data /dev/nvme1n1              a blank device, instead of a temporary file in this folder
  shoal bench store --json > figures.jsonl
  shoal bench redis --server 127.0.0.1:7412          a running server
  shoal bench scale --quick --plot scale.svg         how the speed of a store changes as it grows
  shoal bench tail --objects 100000 --seconds 20     latencies at 30 % and 60 % of the maximum
  shoal bench list --objects 2000000                 all keys over gRPC and by SCAN
  shoal bench s3 --quick                             a running server over S3

Figures are meaningful only from a release build on an otherwise idle machine.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Put, get, delete and list on a real data file, by size and number of clients.
    Store(StoreArguments),
    /// Calls and operations over gRPC; every answer is compared with the value that was sent.
    Grpc(GrpcArguments),
    /// A server for `bench grpc`.
    #[command(hide = true)]
    GrpcServer(GrpcServerArguments),
    /// SET and GET over the Redis protocol: on a new data file, or on a running server.
    Redis(RedisArguments),
    /// The ratio of allocated to live bytes of a store, after puts and after deletes, and the bytes written.
    Amplification(AmplificationArguments),
    /// The disk that objects take a minute after their load, by size of the values.
    Density(DensityArguments),
    /// Durable puts into a store that grows: their rate, stalls and bytes written by kind along the way; then gets, listings,
    /// overwriting, opening after kill -9, check.
    Scale(ScaleArguments),
    /// Latencies of SETs and GETs at a fixed rate, counted from the intended send times, beside the device's own.
    Tail(TailArguments),
    /// All keys over gRPC and by SCAN: keys a second, and processor time of the server.
    List(ListArguments),
    /// Puts, gets and lists over S3 of a running server, Shoal or another one: rate, latencies, first byte, processor time.
    S3(S3Arguments),
    /// A process that `bench scale` kills.
    #[command(hide = true)]
    ScaleChild(ScaleChildArguments),
}

#[derive(Args)]
struct GrpcArguments {
    /// End within a minute: half a second a variant, fewer objects.
    #[arg(long)]
    quick: bool,
    /// Only this case, or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only this variant: durable, or a variant of multi-100b; repeatable.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Seconds for each variant of a case; for a whole soak [default: 8, with --quick 0.5, of a soak 300].
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Calls in flight.
    #[arg(long, value_name = "N", default_value = "100")]
    in_flight: usize,
    /// Objects of 64 KiB [default: 1000, with --quick 100]; of 100 bytes there are 20 times as many.
    #[arg(long, value_name = "N")]
    objects: Option<usize>,
    /// The data file of the durable server: it must not exist, and is removed at the end [default: a temporary file in this
    /// folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// How to do I/O on the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
    /// Only the mix of the key-value service on the durable server, for five minutes; then every object is read again.
    #[arg(long, conflicts_with_all = ["cases", "variants"])]
    soak: bool,
}

fn run_grpc(arguments: GrpcArguments) -> anyhow::Result<()> {
    let time = seconds(arguments.seconds)?;
    let (quick_time, quick_objects) = if arguments.quick { (0.5, 100) } else { (8.0, 1000) };
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let options = shoal_bench::grpc::GrpcOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        json: arguments.json,
        cases: arguments.cases,
        variants: arguments.variants,
        time: time.unwrap_or(Duration::from_secs_f64(quick_time)),
        in_flight: arguments.in_flight,
        objects: arguments.objects.unwrap_or(quick_objects),
        data: arguments.data,
        io: arguments.io.into(),
        servers: Servers::Processes(program, &["bench", "grpc-server"]),
        soak: arguments.soak.then(|| time.unwrap_or(Duration::from_secs(300))),
    };
    shoal_bench::grpc::run(&options, &mut std::io::stdout().lock())
}

#[derive(Args)]
struct GrpcServerArguments {
    /// The server to run: durable.
    #[arg(long, value_name = "NAME")]
    variant: String,
    /// The data file of durable: it must not exist.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// How to do I/O on the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
}

fn run_grpc_server(arguments: GrpcServerArguments) -> anyhow::Result<()> {
    let options = shoal_bench::grpc::ServeOptions {
        variant: arguments.variant,
        data: arguments.data,
        io: arguments.io.into(),
    };
    let out = &mut std::io::stdout().lock();
    shoal_bench::grpc::serve_until_input_ends(shoal_bench::grpc::serve_durable, &options, out)
}

#[derive(Args)]
struct RedisArguments {
    /// End within half a minute: half a second a case, fewer objects.
    #[arg(long)]
    quick: bool,
    /// Only this case (set-100b-c1, get-64k-c50-p16, ...), or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Seconds for each case [default: 3, with --quick 0.5].
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Objects of 100 bytes [default: 100000, with --quick 20000]; of 64 KiB there are 50 times fewer.
    #[arg(long, value_name = "N")]
    objects: Option<u64>,
    /// A running server, without TLS and credentials; keys that start with shoal-bench: are overwritten, and deleted at the end
    /// [default: a server in this process].
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["data", "io"])]
    server: Option<SocketAddr>,
    /// The data file: it must not exist, and is removed at the end [default: a temporary file in this folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// How to do I/O on the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
}

fn run_redis(arguments: RedisArguments) -> anyhow::Result<()> {
    let (quick_time, quick_objects) = if arguments.quick { (0.5, 20_000) } else { (3.0, 100_000) };
    let options = shoal_bench::redis::RedisBenchOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        json: arguments.json,
        cases: arguments.cases,
        time: seconds(arguments.seconds)?.unwrap_or(Duration::from_secs_f64(quick_time)),
        objects: arguments.objects.unwrap_or(quick_objects),
        server: arguments.server,
        data: arguments.data,
        io: arguments.io.into(),
    };
    shoal_bench::redis::run(&options, &mut std::io::stdout().lock())
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct StoreArguments {
    /// End within a minute: fewer objects, half a second a case.
    #[arg(long)]
    quick: bool,
    /// Only this case, or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only this variant: embedded or server; repeatable.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// The data file or block device; a store in it is used, its bucket "bench" is overwritten
    /// [default: a temporary file in this folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// The maximum size of the data file; the log is in proportion.
    #[arg(long, value_name = "SIZE", default_value = "64G")]
    size: Size,
    /// Memory for cached pages and values, except in the cases that read from the device.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    cache: Size,
    /// Seconds for each case [default: 5, with --quick 0.5].
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// How to do I/O on the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
}

#[derive(Args)]
struct AmplificationArguments {
    /// 256 MiB of values.
    #[arg(long)]
    quick: bool,
    /// Only this case, or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only this variant: c1 or c16, the number of clients; repeatable.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// The data file: it must not exist, and is removed at the end [default: a temporary file in this folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Bytes of values that are put [default: 4G, with --quick 256M].
    #[arg(long, value_name = "SIZE")]
    bytes: Option<Size>,
    /// Memory for cached pages and values.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    cache: Size,
    /// The folder whose files are put, again and again under other keys.
    #[arg(long, value_name = "FOLDER", default_value = "/usr/share")]
    tree: PathBuf,
    /// How to do I/O on the device.
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
        bytes: arguments.bytes.map_or(if arguments.quick { 256 << 20 } else { 4 << 30 }, |bytes| bytes.0),
        cache: arguments.cache.0,
        tree: arguments.tree,
        io: arguments.io.into(),
    };
    shoal_bench::amplification::run(&options, &mut std::io::stdout().lock())
}

const SCALE_EXAMPLES: &str = "\
Examples:
  shoal bench scale --quick                                       20,000 objects, some seconds
  shoal bench scale --data /mnt/disk/new.data --plot scale.svg    10 million objects in random order
  shoal bench scale --order random --order content --objects 50000000 --json > scale.jsonl

Figures are meaningful only from a release build on an otherwise idle machine.";

#[derive(Args)]
#[command(after_help = SCALE_EXAMPLES)]
struct ScaleArguments {
    /// 20,000 objects and fewer questions.
    #[arg(long)]
    quick: bool,
    /// The order of keys: random (hashes), sequential, zipf (few are put again and again) or content (64 digits of a hash, put
    /// if absent; a fifth are duplicates); repeatable, each in a separate store [default: random].
    #[arg(long = "order", value_name = "ORDER")]
    orders: Vec<Order>,
    /// Objects that are put [default: 10000000, with --quick 20000].
    #[arg(long, value_name = "N")]
    objects: Option<u64>,
    /// Bytes of a value.
    #[arg(long, value_name = "SIZE", default_value = "100")]
    value: Size,
    /// Puts of a batch, which are durable together [default: 1000, with --quick 100].
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    /// Memory for cached pages and values.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    cache: Size,
    /// The maximum size of the data file; the log is in proportion.
    #[arg(long, value_name = "SIZE", default_value = "64G")]
    size: Size,
    /// The data file: it must not exist, and is removed at the end [default: a temporary file in this folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Draw the puts per second against the number of objects into this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// How to do I/O on the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
}

fn run_scale(arguments: ScaleArguments) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let (quick_objects, quick_batch) = if arguments.quick { (20_000, 100) } else { (10_000_000, 1_000) };
    let format = match arguments.json {
        true => Format::Json,
        false if std::io::stdout().is_terminal() => Format::Table,
        false => Format::Lines,
    };
    let orders = if arguments.orders.is_empty() { vec![Order::Random] } else { arguments.orders };
    let options = ScaleOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        format,
        orders,
        objects: arguments.objects.unwrap_or(quick_objects),
        value_bytes: arguments.value.0,
        batch: arguments.batch.unwrap_or(quick_batch),
        cache: arguments.cache.0,
        size: arguments.size.0,
        data: arguments.data,
        plot: arguments.plot,
        quick: arguments.quick,
        io: arguments.io.into(),
        killer: Some(Killer { program, first: &["bench", "scale-child"] }),
    };
    options.check().map_err(Usage)?;
    shoal_bench::scale::run(&options, &mut std::io::stdout().lock())
}

#[derive(Args)]
struct ScaleChildArguments {
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    #[arg(long, value_name = "SIZE")]
    cache: Size,
    #[arg(long, value_name = "BYTES")]
    value: u32,
    #[arg(long, value_name = "N")]
    batch: u64,
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
}

fn run_scale_child(arguments: ScaleChildArguments) -> anyhow::Result<()> {
    let options = ChildOptions {
        data: arguments.data,
        cache: arguments.cache.0,
        value_bytes: arguments.value,
        batch: arguments.batch,
        io: arguments.io.into(),
    };
    shoal_bench::scale::put_until_killed(&options, &mut std::io::stdout().lock())
}

fn seconds(number: Option<f64>) -> anyhow::Result<Option<Duration>> {
    let wrong = |_| Usage("--seconds is a number of seconds above 0".into());
    Ok(number.map(Duration::try_from_secs_f64).transpose().map_err(wrong)?)
}

/// Runs on the program's first thread, outside of any runtime: clients are threads that may block.
pub(crate) fn run(arguments: Arguments, log: Option<&str>) -> anyhow::Result<()> {
    logging::start(log.unwrap_or("warn"))?;
    let arguments = match arguments.bench {
        Bench::Store(arguments) => arguments,
        Bench::Grpc(arguments) => return run_grpc(arguments),
        Bench::GrpcServer(arguments) => return run_grpc_server(arguments),
        Bench::Redis(arguments) => return run_redis(arguments),
        Bench::Amplification(arguments) => return run_amplification(arguments),
        Bench::Density(arguments) => return density::run(arguments),
        Bench::Scale(arguments) => return run_scale(arguments),
        Bench::Tail(arguments) => return tail::run(arguments),
        Bench::List(arguments) => return list::run(arguments),
        Bench::S3(arguments) => return s3::run(arguments),
        Bench::ScaleChild(arguments) => return run_scale_child(arguments),
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
