//! The servers: processes on separate cores, on files in a folder that lives longer than they do.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use shoal_bench::cores::Cores;
use shoal_bench::disk::Disk;
use shoal_bench::grpc::Remote;
use shoal_bench::redis::{Bed, StoreLocation};
use shoal_device::IoMode;
use tempfile::TempDir;

use super::{PutOptions, bare};
use crate::log_file::LogFile;
use crate::peer;

/// The server to be.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerOptions {
    /// bare or shoal.
    #[arg(long, value_name = "NAME")]
    variant: String,
    /// Its file; Shoal opens one that exists.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Connections at a time: the bare program serves one with blocking calls.
    #[arg(long, value_name = "N")]
    clients: usize,
}

/// Serves until it is killed.
///
/// # Errors
/// An unknown variant; as the server.
pub(crate) fn serve(options: &ServerOptions) -> Result<()> {
    match options.variant.as_str() {
        "bare" => {
            let folder = options.data.parent().context("the file has no folder")?;
            let (mut log, listener) = (LogFile::new(folder)?, TcpListener::bind(options.listen)?);
            if options.clients > 1 {
                bare::serve_many(&mut log, listener)
            } else {
                bare::serve(&mut log, &listener)
            }
        }
        "shoal" => {
            let place = if options.data.exists() {
                StoreLocation::Existing(&options.data, IoMode::Auto)
            } else {
                StoreLocation::File(Some(&options.data), IoMode::Auto)
            };
            let _bed = Bed::at(place, options.listen)?;
            loop {
                std::thread::park();
            }
        }
        other => bail!("{other} is no server"),
    }
}

/// A new folder for the files of servers, removed at the end.
///
/// # Errors
/// As the system.
pub(super) fn new_folder(options: &PutOptions) -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("shoal-durable-put-").tempdir_in(&options.folder);
    folder.with_context(|| format!("cannot make a folder in {}", options.folder.display()))
}

/// Starts a server on the files in `folder`. It is killed at the end.
///
/// # Errors
/// As the system.
pub(super) fn start(
    options: &PutOptions,
    variant: &str,
    clients: usize,
    folder: &TempDir,
    cores: Option<Cores>,
) -> Result<Remote> {
    let address = peer::free_address()?;
    let mut command = match (variant, &options.redis) {
        ("redis", Some(program)) => {
            let mut command = Command::new(program);
            command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
            command.args(["--port", &address.port().to_string()]).arg("--dir").arg(folder.path());
            command
        }
        _ => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["durable-put-server", "--variant", variant]);
            command.args(["--listen", &address.to_string()]).arg("--data").arg(folder.path().join("data"));
            command.args(["--clients", &clients.to_string()]);
            command
        }
    };
    peer::start(&mut command, address, Vec::new(), cores)
}

/// Time and flushes that a server has used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    /// Time of processors.
    pub(super) cpu: Duration,
    /// Flushes of the device below its files, if the system counts them.
    pub(super) flushes: Option<u64>,
}

/// The time that `server` has used, and the flushes of the disk below `folder`, by all programs.
///
/// # Errors
/// The folder is gone.
pub(super) fn used(server: &Remote, folder: &TempDir) -> Result<Used> {
    let disk = Disk::of(folder.path())?;
    Ok(Used { cpu: server.cpu_time(), flushes: disk.map(|disk| disk.flushes) })
}
