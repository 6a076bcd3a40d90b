//! The server's side of `bench grpc`: what the hidden command `shoal bench grpc-server` runs, in a process of its own, so
//! that its processor time is its own and it has a core of its own.
//!
//! It prints its address and serves until its standard input ends, which it does also where its parent was killed.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use shoal_base::BLOCK_BYTES_U64;
use shoal_device::{FileOptions, IoMode};
use shoal_engine::{Environment, FormatOptions, OpenOptions, Store, block_on};
use shoal_server::{Server, ServerOptions};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::memory::{Memory, Work};

/// Bytes that the data file may grow to, and that are written before anything is measured, so that its growth is not.
const FILE_BYTES: u64 = 16 << 30;
const FILLED_BYTES: u64 = 1 << 30;

/// Memory for cached pages and values: more than the loads keep.
const CACHE_BYTES: usize = 1 << 30;

/// Which server, and on what.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// `global-lock`, `per-key`, `memory`, or `durable`.
    pub variant: String,
    /// The data file of the durable ones; it must not exist. Who started the server removes it.
    pub data: Option<PathBuf>,
    /// How its device is driven.
    pub io: IoMode,
}

/// Serves until standard input ends; prints the address first.
///
/// # Errors
/// An unknown variant; as the store, the server or the output.
pub fn serve(options: &ServeOptions, out: &mut dyn Write) -> Result<()> {
    let (stop, stopped) = oneshot::channel();
    std::thread::spawn(move || {
        // Whatever ends it: nobody wants this server any more.
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = stop.send(());
    });
    serve_until(options, stopped, |address| {
        writeln!(out, "{address}")?;
        Ok(out.flush()?)
    })
}

/// Serves until `stopped`; says first where.
pub(super) fn serve_until(
    options: &ServeOptions,
    stopped: oneshot::Receiver<()>,
    announce: impl FnOnce(SocketAddr) -> Result<()>,
) -> Result<()> {
    // As many threads as this process has cores.
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let work = match options.variant.as_str() {
        "durable" => return durable(options, &runtime, stopped, announce),
        "global-lock" => Work::GlobalLock,
        "per-key" => Work::PerKey,
        "memory" => Work::None,
        other => bail!("there is no server {other:?}"),
    };
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        announce(listener.local_addr()?)?;
        tokio::select! {
            served = Arc::new(Memory::new(work)).serve(listener) => served,
            _ = stopped => Ok(()),
        }
    })
}

/// Shoal's server as `shoal serve` runs it, on a new data file.
fn durable(
    options: &ServeOptions,
    runtime: &Runtime,
    stopped: oneshot::Receiver<()>,
    announce: impl FnOnce(SocketAddr) -> Result<()>,
) -> Result<()> {
    let path = options.data.as_deref().context("the durable server wants a data file")?;
    if path.exists() {
        bail!("{} exists: it is left alone", path.display());
    }
    let file = FileOptions { create: true, io: options.io, ..FileOptions::default() };
    let device = shoal_device::open(path, &file)?;
    let layout = FormatOptions {
        initial_blocks: Some(FILLED_BYTES / BLOCK_BYTES_U64),
        ..FormatOptions::for_blocks(FILE_BYTES / BLOCK_BYTES_U64)
    };
    block_on(Store::format(&device, &layout, &Environment::default()))?;
    let open = OpenOptions { cache_bytes: CACHE_BYTES, ..OpenOptions::default() };
    let store = block_on(Store::open(device, open, Environment::default()))?;
    let served = runtime.block_on(async {
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let options = ServerOptions { listen, ..ServerOptions::default() };
        let server = Server::bind(options).await?;
        announce(server.address())?;
        server.run(store.clone(), async { drop(stopped.await) }).await?;
        Ok(())
    });
    let closed = block_on(store.close());
    served.and(closed.map_err(Into::into))
}
