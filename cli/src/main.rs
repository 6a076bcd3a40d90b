//! `shoal`: the server, the client and the tools in one binary.
//!
//! Reading order: [`arguments`] (the command line), [`commands`] (one file per command), [`store`] (the data file, buckets, copies and
//! moves), [`transfer`] (the output of imports and exports), [`backup`] (backups in files and pipes), [`output`] and [`failure`] (standard
//! output, standard error, exit codes), [`logging`], [`memory`] (its limits and their division), [`process`] (signals, the end of a
//! server, its supervisor).
//!
//! This crate has no storage logic: programs can do all of this through `shoal-client`, `shoal-engine` and `shoal-transfer`.

mod arguments;
mod backup;
mod commands;
mod failure;
mod logging;
mod memory;
mod output;
mod process;
mod store;
mod transfer;

use std::pin::Pin;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser};

use crate::arguments::{Cli, Command};
use crate::logging::LogFormat;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The default filter of the commands' log: warnings, and the progress of a close that takes long.
const DEFAULT_LOG: &str = "warn,shoal_engine::close=info";

fn main() -> ExitCode {
    shoal_device::file::survive_size_limit();
    let code = failure::conclude(run(Cli::parse()));
    logging::finish();
    code
}

fn run(cli: Cli) -> anyhow::Result<()> {
    if let Command::Completions(arguments) = cli.command {
        return commands::man::completions(&arguments, Cli::command());
    }
    if let Command::Man(arguments) = cli.command {
        return commands::man::pages(&arguments, Cli::command());
    }
    if let Command::Bench(arguments) = cli.command {
        return commands::bench::run(arguments, cli.log.as_deref());
    }
    if memory::limit::is_scarce() {
        memory::allocator::keep_nothing();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads of the runtime")?;
    // In a box, or the runtime would be compiled around it in several places.
    let work: Pin<Box<dyn Future<Output = anyhow::Result<()>>>> = Box::pin(dispatch(cli));
    let result = runtime.block_on(work);
    // An abandoned read of standard input must not keep the program running.
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
        Command::Completions(arguments) => commands::man::completions(&arguments, Cli::command()),
        Command::Man(arguments) => commands::man::pages(&arguments, Cli::command()),
    }
}
