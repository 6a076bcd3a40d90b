//! `shoal bench density`: the disk that objects take.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use shoal_bench::density::DensityOptions;
use shoal_bench::report::Format;

use super::seconds;
use crate::arguments::size::Size;
use crate::store::file::Io;

const EXAMPLES: &str = "\
Examples:
  shoal bench density --quick                                   a hundredth of the objects, some seconds
  shoal bench density --case 100b --data /mnt/disk/new.data     10 million objects of 100 bytes
  shoal bench density --delete-half --json > density.jsonl      all cases, and again after half of the objects was deleted";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DensityArguments {
    /// A hundredth of the objects, watched for 15 seconds.
    #[arg(long)]
    quick: bool,
    /// Only this case: 100b (10 million objects), 4k (4 million) or log-normal (90,000, median 8 KiB); repeatable.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// The number of objects of each case; overrides the case's default.
    #[arg(long, value_name = "N")]
    objects: Option<u64>,
    /// Seconds for which the store is watched after its load, and after the deletes [default: 60, with --quick 15].
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Delete half of the objects in the end, and watch again.
    #[arg(long)]
    delete_half: bool,
    /// Memory for cached pages and values.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    cache: Size,
    /// The maximum size of the data file; the log is in proportion.
    #[arg(long, value_name = "SIZE", default_value = "24G")]
    size: Size,
    /// The data file: it must not exist, and is removed at the end [default: a temporary file in this folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// How to do I/O on the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
}

pub(super) fn run(arguments: DensityArguments) -> anyhow::Result<()> {
    let watched = seconds(arguments.seconds)?;
    let default_s = if arguments.quick { 15 } else { 60 };
    let options = DensityOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        format: match arguments.json {
            true => Format::Json,
            false if std::io::stdout().is_terminal() => Format::Table,
            false => Format::Lines,
        },
        cases: arguments.cases,
        quick: arguments.quick,
        objects: arguments.objects,
        watched: watched.unwrap_or(std::time::Duration::from_secs(default_s)),
        deletes_half: arguments.delete_half,
        cache: arguments.cache.0,
        size: arguments.size.0,
        data: arguments.data,
        io: arguments.io.into(),
    };
    shoal_bench::density::run(&options, &mut std::io::stdout().lock())
}
