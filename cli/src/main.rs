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
    let work: Work = Box::pin(dispatch(cli));
    let result = runtime.block_on(work);
    // An abandoned read of standard input must not keep the program running.
    runtime.shutdown_background();
    result
}

/// A command in a box: each is compiled as a separate function.
type Work = Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

async fn dispatch(cli: Cli) -> anyhow::Result<()> {
    match &cli.command {
        // `serve` has a configuration file, which may set the log level.
        Command::Serve(_) => {}
        Command::Space(_) => logging::start_server(cli.log.as_deref().unwrap_or("warn"), LogFormat::Text)?,
        _ => logging::start(cli.log.as_deref().unwrap_or(DEFAULT_LOG))?,
    }
    let work: Work = match cli.command {
        Command::Serve(arguments) => Box::pin(commands::serve::run(*arguments, cli.log)),
        Command::Format(arguments) => Box::pin(commands::format::run(arguments)),
        Command::Grow(arguments) => Box::pin(commands::grow::run(arguments)),
        Command::Put(arguments) => Box::pin(commands::put::run(arguments)),
        Command::Get(arguments) => Box::pin(commands::get::run(arguments)),
        Command::Ls(arguments) => Box::pin(commands::ls::run(arguments)),
        Command::Mv(arguments) => Box::pin(commands::mv::run(arguments)),
        Command::Du(arguments) => Box::pin(commands::du::run(arguments)),
        Command::Bucket(arguments) => Box::pin(commands::bucket::run(arguments)),
        Command::Key(arguments) => Box::pin(async { commands::key::run(arguments) }),
        Command::Config(arguments) => Box::pin(commands::config::run(*arguments, cli.log, Cli::command())),
        Command::Rm(arguments) => Box::pin(commands::rm::run(arguments)),
        Command::Stat(arguments) => Box::pin(commands::stat::run(arguments)),
        Command::Top(arguments) => Box::pin(commands::top::run(arguments)),
        Command::Report(arguments) => Box::pin(commands::report::run(arguments)),
        Command::Cp(arguments) => Box::pin(commands::cp::run(arguments)),
        Command::Import(arguments) => Box::pin(commands::import::run(arguments)),
        Command::Export(arguments) => Box::pin(commands::export::run(arguments)),
        Command::Space(arguments) => Box::pin(commands::space::run(arguments)),
        Command::Backup(arguments) => Box::pin(commands::backup::run(arguments)),
        Command::Restore(arguments) => Box::pin(commands::restore::run(arguments)),
        Command::Archive(arguments) => Box::pin(commands::archive::run(arguments)),
        Command::Check(arguments) => Box::pin(commands::check::run(arguments)),
        Command::Relocation(arguments) => Box::pin(commands::relocation::run(arguments)),
        Command::Bench(arguments) => return commands::bench::run(arguments, None),
        Command::Completions(arguments) => return commands::man::completions(&arguments, Cli::command()),
        Command::Man(arguments) => return commands::man::pages(&arguments, Cli::command()),
    };
    work.await
}
