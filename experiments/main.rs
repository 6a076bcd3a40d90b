//! `experiments`: the studies that reproduce the sources of Shoal's design, a folder each.
//!
//! Every folder has a `README.md`: the question, the source, the command, the result and its meaning for Shoal. `args` has
//! the shared options of the studies; histograms, reports, charts, machines and loads come from the crate `shoal-bench`.
//! The product knows nothing of this program.

mod allocators;
mod apples;
mod args;
#[path = "buffer-pool/mod.rs"]
mod buffer_pool;
mod clusterperf;
#[path = "durable-put/mod.rs"]
mod durable_put;
#[path = "key-value-service/mod.rs"]
mod key_value_service;
mod log_file;
#[path = "message-buffer/mod.rs"]
mod message_buffer;
mod peer;
#[path = "ramcloud-lessons/mod.rs"]
mod ramcloud_lessons;
mod thresholds;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Version of the program, for the reports' headers.
const VERSION: &str = env!("CARGO_PKG_VERSION");

const NOTE: &str = "Figures mean something only from a release build on a machine that does nothing else.";

// As in the product: several studies are about memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The studies that reproduce the sources of Shoal's design.
#[derive(Parser)]
#[command(version, after_help = NOTE)]
struct Cli {
    #[command(subcommand)]
    study: Study,
}

#[derive(Subcommand)]
enum Study {
    /// The message buffer beside BytesMut, chains of Bytes and Vec, on RAMCloud's shapes.
    MessageBuffer(message_buffer::BufferOptions),
    /// The disk-space allocator beside the seed's four and others, in memory.
    Allocators(allocators::SpaceOptions),
    /// Buckets of apples, and a monkey that steals one a day: the pools of an allocator.
    Apples(apples::ApplesOptions),
    /// The steps of a request in their old form and their new one, beside the figures of RAMCloud's authors.
    RamcloudLessons(ramcloud_lessons::LessonOptions),
    /// RAMCloud's clusterperf, by its names, over the Redis protocol.
    Clusterperf(clusterperf::ClusterOptions),
    /// The seed's client against the seed's servers, an in-memory one, Shoal's and etcd, over gRPC.
    KeyValueService(key_value_service::ServiceOptions),
    /// A server for `key-value-service`.
    #[command(hide = true)]
    KeyValueServer(key_value_service::ServerOptions),
    /// One durable SET beside the least that it can be: receive, write, flush, answer; and beside Redis.
    DurablePut(durable_put::PutOptions),
    /// A server for `durable-put`.
    #[command(hide = true)]
    DurablePutServer(durable_put::ServerOptions),
    /// Buffer pools under scans and gets on a simulated device, in their own memory.
    BufferPool(buffer_pool::PoolBenchOptions),
    /// Durable puts by size and by the place that a value takes: leaf, log, separate extents.
    Thresholds(thresholds::ThresholdOptions),
}

fn main() -> ExitCode {
    shoal_device::file::survive_size_limit();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::level_filters::LevelFilter::WARN)
        .init();
    let out = &mut std::io::stdout().lock();
    let done = match Cli::parse().study {
        Study::MessageBuffer(options) => message_buffer::run(&options, out),
        Study::Allocators(options) => allocators::run(&options, out),
        Study::Apples(options) => apples::run(&options, out),
        Study::RamcloudLessons(options) => ramcloud_lessons::run(&options, out),
        Study::Clusterperf(options) => clusterperf::run(&options, out),
        Study::KeyValueService(options) => key_value_service::run(&options, out),
        Study::KeyValueServer(options) => key_value_service::serve(&options, out),
        Study::DurablePut(options) => durable_put::run(&options, out),
        Study::DurablePutServer(options) => durable_put::serve(&options),
        Study::BufferPool(options) => buffer_pool::run(&options, out),
        Study::Thresholds(options) => thresholds::run(&options, out),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
