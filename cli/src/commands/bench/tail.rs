//! `shoal bench tail`: latencies at a fixed rate.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use shoal_bench::tail::{Arrivals, OwnStore, Rates, TailOptions, TailServer};

use crate::arguments::size::Size;
use crate::failure::Usage;
use crate::store::file::Io;

const EXAMPLES: &str = "\
Examples:
  shoal bench tail --objects 100000 --seconds 20 --plot tail.svg       a new store in this folder
  shoal bench tail --data /mnt/disk/new.data --keep --cache 256M --share 0.3,0.6
  shoal bench tail --data /mnt/disk/new.data --filled --rate 1176 --get-share 0.5
  shoal bench tail --resp 127.0.0.1:6379 --device-file /mnt/disk/probe  another server, by the same generator
  shoal bench tail --echo --rate 100000 --in-flight 16                 the generator alone

A latency counts from the intended send time, also if the operation was sent late because the server was slow. The row
sent-late has the generator's own lateness, and \"wait ms\" the time in which it had no core: large figures there are those of
the machine, not of the server.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TailArguments {
    /// Objects, under keys ab/cd/tail-NUMBER.
    #[arg(long, value_name = "N", default_value = "10000000")]
    objects: u64,
    /// Bytes of a value.
    #[arg(long, value_name = "SIZE", default_value = "4096")]
    value_bytes: Size,
    /// The objects are there: do not set all of them first.
    #[arg(long)]
    filled: bool,
    /// Connections.
    #[arg(long, value_name = "N", default_value = "16")]
    connections: usize,
    /// Commands in flight over each connection; further ones that are due wait, and their wait counts.
    #[arg(long, value_name = "N", default_value = "1")]
    in_flight: usize,
    /// Share of GETs among the operations.
    #[arg(long, value_name = "SHARE", default_value = "0")]
    get_share: f64,
    /// Gaps between intended send times: poisson (independent users) or constant.
    #[arg(long, value_name = "HOW", default_value = "poisson")]
    arrivals: Arrivals,
    /// Rates as shares of the closed-loop maximum, one run each.
    #[arg(long, value_name = "SHARE", value_delimiter = ',', default_value = "0.3,0.6")]
    share: Vec<f64>,
    /// Rates in operations a second, one run each; the maximum is not measured.
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "share")]
    rate: Vec<f64>,
    /// Seconds of the closed-loop measurement.
    #[arg(long, value_name = "N", default_value = "10")]
    measure_seconds: f64,
    /// Seconds of a run.
    #[arg(long, value_name = "N", default_value = "120")]
    seconds: f64,
    /// Seconds at the same rate before a run that are not counted.
    #[arg(long, value_name = "N", default_value = "5")]
    warm_up_seconds: f64,
    /// Seconds without load before each measurement.
    #[arg(long, value_name = "N", default_value = "5")]
    pause_seconds: f64,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Draw the latencies of each second into this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// A new file on the store's file system, for the device's own writes with a flush at the same rate [default: beside the
    /// data file; none with --resp].
    #[arg(long, value_name = "FILE")]
    device_file: Option<PathBuf>,
    /// Seconds of the device's own writes, and of its reads.
    #[arg(long, value_name = "N", default_value = "20")]
    device_seconds: f64,
    /// A running server of the Redis protocol, without TLS and credentials; the keys stay.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["data", "keep", "cache", "memtable", "size", "io", "echo"])]
    resp: Option<SocketAddr>,
    /// A server in this process that stores nothing: measures the generator.
    #[arg(long, conflicts_with_all = ["data", "keep", "cache", "memtable", "size", "io", "filled"])]
    echo: bool,
    /// The data file of the server in this process: new, or filled before with --keep [default: a temporary file in this
    /// folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Leave the new data file at the end, for --filled.
    #[arg(long)]
    keep: bool,
    /// Memory for cached pages and values.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    cache: Size,
    /// Memory for recent writes [default: in proportion to the cache].
    #[arg(long, value_name = "SIZE")]
    memtable: Option<Size>,
    /// How large the data file may grow; the log is in proportion.
    #[arg(long, value_name = "SIZE", default_value = "64G")]
    size: Size,
    /// How to drive the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
}

pub(super) fn run(arguments: TailArguments) -> anyhow::Result<()> {
    let server = match (arguments.resp, arguments.echo) {
        (Some(address), _) => TailServer::Address(address),
        (None, true) => TailServer::Echo,
        (None, false) => TailServer::Own(OwnStore {
            data: arguments.data,
            keep: arguments.keep,
            cache: arguments.cache.0,
            memtable: arguments.memtable.map(|size| size.0),
            size: arguments.size.0,
            io: arguments.io.into(),
        }),
    };
    let rates = if arguments.rate.is_empty() {
        Rates::Shares(arguments.share)
    } else {
        Rates::PerSecond(arguments.rate)
    };
    let options = TailOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        json: arguments.json,
        server,
        objects: arguments.objects,
        value_bytes: u32::try_from(arguments.value_bytes.0).unwrap_or(u32::MAX),
        filled: arguments.filled,
        connections: arguments.connections,
        in_flight: arguments.in_flight,
        get_share: arguments.get_share,
        arrivals: arguments.arrivals,
        rates,
        measure: time("--measure-seconds", arguments.measure_seconds)?,
        time: time("--seconds", arguments.seconds)?,
        warm_up: time("--warm-up-seconds", arguments.warm_up_seconds)?,
        pause: time("--pause-seconds", arguments.pause_seconds)?,
        device_file: arguments.device_file,
        device_time: time("--device-seconds", arguments.device_seconds)?,
        plot: arguments.plot,
    };
    options.check().map_err(Usage)?;
    shoal_bench::tail::run(&options, &mut std::io::stdout().lock())?;
    Ok(())
}

fn time(name: &str, seconds: f64) -> anyhow::Result<Duration> {
    let wrong = |_| Usage(format!("{name} is a number of seconds"));
    Ok(Duration::try_from_secs_f64(seconds).map_err(wrong)?)
}
