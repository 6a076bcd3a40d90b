//! The environment of the cases: a data file, the store in it, and a server for the store.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use shoal_base::BLOCK_BYTES_U64;
use shoal_client::Client;
use shoal_device::{Device, FileOptions, IoMode};
use shoal_engine::{Environment, FormatOptions, OpenOptions, Store, block_on};
use shoal_server::{ServeError, Server, ServerOptions};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::target::Target;
use crate::data_file::temporary;
use crate::settle::settle;

/// The data file. A temporary one is removed at the end.
pub(crate) struct DataFile {
    path: PathBuf,
    is_temporary: bool,
    device: Device,
}

impl DataFile {
    /// Opens `data`, or a temporary file in the current folder, and creates a store in it unless there is one: it may grow to
    /// `size` bytes, and `filled` bytes of it are written once at the start.
    pub(crate) fn open(data: Option<&Path>, size: u64, filled: u64, io: IoMode) -> Result<Self> {
        let path = data.map_or_else(|| temporary("bench"), Path::to_path_buf);
        let device = shoal_device::open(&path, &FileOptions { create: true, io, ..FileOptions::default() })?;
        let file = Self { path, is_temporary: data.is_none(), device };
        if !block_on(Store::probe(&file.device))? {
            let can_grow = file.device.inner().can_grow();
            if data.is_some() && can_grow && file.device.blocks() > 0 {
                bail!("{} holds something that is no store; nothing was changed", file.path.display());
            }
            let size = if can_grow { size } else { file.device.blocks() * BLOCK_BYTES_U64 };
            let options = FormatOptions {
                initial_blocks: Some(filled.min(size) / BLOCK_BYTES_U64),
                ..FormatOptions::for_blocks(size / BLOCK_BYTES_U64)
            };
            block_on(Store::format(&file.device, &options, &Environment::default()))?;
        }
        Ok(file)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        if self.is_temporary {
            // A benchmark that failed must not leave gigabytes; an error here cannot be reported.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// An open store with its server.
pub(crate) struct Bed {
    store: Store,
    client: Client,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), ServeError>>,
}

impl Bed {
    /// Opens the store with `cache` bytes of cache, and starts a server on a free port.
    pub(crate) fn start(file: &DataFile, cache: u64, runtime: &Runtime) -> Result<Self> {
        let options = OpenOptions { cache_bytes: usize::try_from(cache)?, ..OpenOptions::default() };
        let store = block_on(Store::open(file.device().clone(), options, Environment::default()))?;
        runtime.block_on(async {
            let listen = (std::net::Ipv4Addr::LOCALHOST, 0).into();
            let server = Server::bind(ServerOptions { listen, ..ServerOptions::default() }).await?;
            let address = server.address().to_string();
            let (stop, stopped) = oneshot::channel();
            let served = runtime.spawn(server.run(store.clone(), async { drop(stopped.await) }));
            let client = Client::connect(address).await.context("cannot reach the server in this process")?;
            Ok(Self { store, client, stop, served })
        })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn target(&self, variant: &str) -> Target {
        match variant {
            "server" => Target::Server(self.client.clone()),
            _ => Target::Embedded(self.store.clone()),
        }
    }

    /// Waits until the trees hold everything.
    pub(crate) fn settle(&self) {
        settle(&self.store);
    }

    /// Waits likewise, unless it has to be quick.
    pub(crate) fn settle_unless(&self, quick: bool) {
        if !quick {
            self.settle();
        }
    }

    /// Stops the server and closes the store.
    pub(crate) fn stop(self, runtime: &Runtime) -> Result<()> {
        let Self { store, client, stop, served } = self;
        drop(client);
        // If the server has stopped by itself, nobody receives this.
        let _ = stop.send(());
        runtime.block_on(served)??;
        Ok(block_on(store.close())?)
    }
}
