//! `shoal`: the server, the client and the tools in one binary.
//!
//! Reading order: [`args`] (the command line), [`commands`] (one file per command), [`objects`] (a server or an embedded
//! store with one interface, so that each command is written once), [`transfer`] (the parts of every import and export),
//! [`tree`] (folders in and out), [`tarball`] (tars in and out), [`from_redis`] (strings of Redis), [`backup`] (backups
//! in files and pipes), [`store_file`] (creating and opening the data file), [`growing`] (its maximum size), and the
//! small parts: [`size`], [`memory_limit`], [`memory_budget`], [`check_memory`], [`allocator`], [`notify`],
//! [`space_map`], [`summary`], [`progress`], [`range`], [`resolve`], [`buckets`], [`conditions`], [`copying`],
//! [`output`], [`failure`], [`failures`], [`signals`], [`stopping`], [`logging`], [`whole_bucket`].
//!
//! This crate holds no storage logic: programs can do all of this through `shoal-client` or `shoal-engine`.

mod allocator;
mod args;
mod backup;
mod buckets;
mod check_memory;
mod commands;
mod conditions;
mod copying;
mod credentials;
mod damage;
mod failure;
mod failures;
mod from_redis;
mod growing;
mod logging;
mod memory_budget;
mod memory_limit;
mod notify;
mod objects;
mod output;
mod progress;
mod range;
mod resolve;
mod signals;
mod size;
mod space_map;
mod stopping;
mod store_file;
mod summary;
mod tarball;
mod target;
mod temporary;
mod transfer;
mod tree;
mod whole_bucket;

use std::pin::Pin;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command};
use crate::logging::LogFormat;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The default filter of the commands' log: warnings, and the progress of a close that takes long.
const DEFAULT_LOG: &str = "warn,shoal_engine::close=info";

fn main() -> ExitCode {
    shoal_device::file::survive_size_limit();
    let code = failure::conclude(run(Cli::parse()), output::warn);
    logging::finish();
    code
}

fn run(cli: Cli) -> anyhow::Result<()> {
    if let Command::Completions(arguments) = cli.command {
        return commands::completions::run(&arguments, Cli::command());
    }
    if let Command::Man(arguments) = cli.command {
        return commands::man::run(&arguments, Cli::command());
    }
    if let Command::Bench(arguments) = cli.command {
        return commands::bench::run(arguments, cli.log.as_deref());
    }
    if memory_limit::is_scarce() {
        allocator::keep_nothing();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads of the runtime")?;
    // In a box, or the runtime would be compiled around it in several places.
    let work: Pin<Box<dyn Future<Output = anyhow::Result<()>>>> = Box::pin(dispatch(cli));
    let result = runtime.block_on(work);
    // An abandoned read of standard input must not keep the program alive.
    runtime.shutdown_background();
    result
}

async fn dispatch(cli: Cli) -> anyhow::Result<()> {
    match &cli.command {
        // `serve` has a configuration file, which may set the log level.
        Command::Serve(_) => {}
        Command::Space(_) => logging::start_server(cli.log.as_deref().unwrap_or("warn"), LogFormat::Text)?,
        _ => logging::start(cli.log.as_deref().unwrap_or(DEFAULT_LOG))?,
    }
    match cli.command {
        Command::Serve(arguments) => commands::serve::run(*arguments, cli.log).await,
        Command::Format(arguments) => commands::format::run(arguments).await,
        Command::Grow(arguments) => commands::grow::run(arguments).await,
        Command::Put(arguments) => commands::put::run(arguments).await,
        Command::Get(arguments) => commands::get::run(arguments).await,
        Command::Ls(arguments) => commands::ls::run(arguments).await,
        Command::Mv(arguments) => commands::mv::run(arguments).await,
        Command::Du(arguments) => commands::du::run(arguments).await,
        Command::Bucket(arguments) => commands::bucket::run(arguments).await,
        Command::Config(arguments) => commands::config::run(*arguments, cli.log, Cli::command()).await,
        Command::Rm(arguments) => commands::rm::run(arguments).await,
        Command::Stat(arguments) => commands::stat::run(arguments).await,
        Command::Top(arguments) => commands::top::run(arguments).await,
        Command::Report(arguments) => commands::report::run(arguments).await,
        Command::Cp(arguments) => commands::cp::run(arguments).await,
        Command::Import(arguments) => commands::import::run(arguments).await,
        Command::Export(arguments) => commands::export::run(arguments).await,
        Command::Space(arguments) => commands::space::run(arguments).await,
        Command::Backup(arguments) => commands::backup::run(arguments).await,
        Command::Restore(arguments) => commands::restore::run(arguments).await,
        Command::Check(arguments) => commands::check::run(arguments).await,
        Command::Relocation(arguments) => commands::relocation::run(arguments).await,
        Command::Bench(arguments) => commands::bench::run(arguments, None),
        Command::Completions(arguments) => commands::completions::run(&arguments, Cli::command()),
        Command::Man(arguments) => commands::man::run(&arguments, Cli::command()),
    }
}
