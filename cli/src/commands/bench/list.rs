//! `shoal bench list`: all keys over both protocols.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use shoal_bench::list::{ListOptions, ListServer, OwnServer};

use crate::arguments::size::Size;
use crate::failure::Usage;
use crate::store::file::Io;

const EXAMPLES: &str = "\
Examples:
  shoal bench list --objects 2000000 --rounds 3                a new store in this folder
  shoal bench list --data /mnt/disk/new.data --keep            10 million objects, for further runs with --filled
  shoal bench list --server 127.0.0.1:7411 --resp 127.0.0.1:7412";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ListArguments {
    /// Objects, with keys of 23 bytes in random order.
    #[arg(long, value_name = "N", default_value = "10000000")]
    objects: u64,
    /// Bytes of a value.
    #[arg(long, value_name = "SIZE", default_value = "100")]
    value_bytes: Size,
    /// Keys of a page, 1 to 1000.
    #[arg(long, value_name = "N", default_value = "1000")]
    page: usize,
    /// Listings over each protocol.
    #[arg(long, value_name = "N", default_value = "2")]
    rounds: usize,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// A running server, without TLS and credentials; needs --resp.
    #[arg(long, value_name = "ADDRESS", requires = "resp", conflicts_with_all = ["data", "filled", "keep", "cache", "size", "io"])]
    server: Option<String>,
    /// Its address for the Redis protocol.
    #[arg(long, value_name = "ADDRESS", requires = "server")]
    resp: Option<SocketAddr>,
    /// The data file: new, or filled before with --keep [default: a temporary file in this folder].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// The objects are there: do not set them first.
    #[arg(long)]
    filled: bool,
    /// Leave the new data file at the end, for --filled.
    #[arg(long)]
    keep: bool,
    /// Memory for cached pages and values.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    cache: Size,
    /// How large the data file may grow; the log is in proportion.
    #[arg(long, value_name = "SIZE", default_value = "24G")]
    size: Size,
    /// How to do I/O on the device.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
}

pub(super) fn run(arguments: ListArguments) -> anyhow::Result<()> {
    let server = match (arguments.server, arguments.resp) {
        (Some(grpc), Some(resp)) => ListServer::Running { grpc, resp },
        _ => ListServer::Own(OwnServer {
            program: std::env::current_exe().context("cannot find the path of this program")?,
            data: arguments.data,
            filled: arguments.filled,
            keep: arguments.keep,
            cache: arguments.cache.0,
            size: arguments.size.0,
            io: arguments.io.into(),
        }),
    };
    let options = ListOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        json: arguments.json,
        server,
        objects: arguments.objects,
        value_bytes: arguments.value_bytes.0,
        page_keys: arguments.page,
        rounds: arguments.rounds,
    };
    options.check().map_err(Usage)?;
    shoal_bench::list::run(&options, &mut std::io::stdout().lock())
}
