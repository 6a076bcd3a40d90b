//! The server's side of `bench grpc`: a separate process, so that its processor time is counted alone and it has a separate
//! core. It prints its address and serves until the end of its standard input, which also comes if its parent is killed.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use shoal_base::BLOCK_BYTES_U64;
use shoal_device::{FileOptions, IoMode};
use shoal_engine::{Environment, FormatOptions, OpenOptions, Store, block_on};
use shoal_server::{Server, ServerOptions};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// Name of Shoal's server.
pub(super) const DURABLE: &str = "durable";

/// Maximum size of the data file; it is written before anything is measured, so that its growth is not.
const FILE_BYTES: u64 = 16 << 30;
const FILLED_BYTES: u64 = 1 << 30;

/// Memory for cached pages and values: more than the loads need.
const CACHE_BYTES: usize = 1 << 30;

/// The server to start, and its device.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Name of the server: `durable` is Shoal's.
    pub variant: String,
    /// The data file of a durable one; it must not exist. The process that starts the server removes it.
    pub data: Option<PathBuf>,
    /// How its device is driven.
    pub io: IoMode,
}

impl ServeOptions {
    /// The same as options of a command line.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let io = match self.io {
            IoMode::Auto => "auto",
            IoMode::Uring => "uring",
            IoMode::Threads => "threads",
        };
        let mut words: Vec<OsString> =
            vec!["--variant".into(), self.variant.clone().into(), "--io".into(), io.into()];
        if let Some(data) = &self.data {
            words.extend(["--data".into(), data.into()]);
        }
        words
    }
}

/// Serves until the receiver is notified; first reports its address.
pub type Serve =
    fn(&ServeOptions, oneshot::Receiver<()>, &mut dyn FnMut(SocketAddr) -> Result<()>) -> Result<()>;

/// The way to start servers.
#[derive(Clone, Debug)]
pub enum Servers {
    /// A process each: this program, with these words before the options of [`ServeOptions`]. It calls
    /// [`serve_until_input_ends`].
    Processes(PathBuf, &'static [&'static str]),
    /// A thread of this process each: for tests.
    Threads(Serve),
}

impl Servers {
    pub(super) fn are_processes(&self) -> bool {
        matches!(self, Self::Processes(..))
    }
}

/// Prints the server's address, and serves until the end of standard input.
///
/// # Errors
/// Those of `serve` or of the output.
pub fn serve_until_input_ends(serve: Serve, options: &ServeOptions, out: &mut dyn Write) -> Result<()> {
    let (stop, stopped) = oneshot::channel();
    std::thread::spawn(move || {
        // After the end of the input, for any reason, the parent of this server is gone.
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = stop.send(());
    });
    serve(options, stopped, &mut |address| {
        writeln!(out, "{address}")?;
        Ok(out.flush()?)
    })
}

/// Shoal's server as `shoal serve` runs it, on a new data file.
///
/// # Errors
/// Another variant than `durable`; the data file exists; those of the store or the server.
pub fn serve_durable(
    options: &ServeOptions,
    stopped: oneshot::Receiver<()>,
    announce: &mut dyn FnMut(SocketAddr) -> Result<()>,
) -> Result<()> {
    if options.variant != DURABLE {
        bail!("there is no server {:?}", options.variant);
    }
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
    // One thread for each core of this process.
    let runtime = Builder::new_multi_thread().enable_all().build()?;
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
