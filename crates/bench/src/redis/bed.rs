//! A server of the Redis protocol in this process, with a separate store.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use shoal_device::{Device, FileOptions, IoMode, MemDevice};
use shoal_engine::{Environment, FormatOptions, OpenOptions, Store, block_on};
use shoal_redis::{RedisOptions, RedisServer, Running};

use super::link::{Link, command};
use crate::cores::Cores;
use crate::data_file::NewFile;

/// Blocks of a store in memory: 1 GiB.
const MEMORY_BLOCKS: u64 = 1 << 18;
/// Maximum size of a store in a file, in blocks: 32 GiB, so that its log has the same length as that of any larger store.
const FILE_BLOCKS: u64 = 1 << 23;
/// Commands sent at a time while objects are loaded.
const LOADED_AT_ONCE: usize = 1_000;

/// The place of the store of a [`Bed`].
#[derive(Clone, Copy, Debug)]
pub enum StoreLocation<'a> {
    /// In memory.
    Memory,
    /// In a new file, or, without a name, a temporary one of the benchmark in the current folder; removed at the end.
    File(Option<&'a Path>, IoMode),
    /// In a new file, which is kept.
    Kept(&'a Path, IoMode),
    /// In a file with an existing store, which is kept.
    Existing(&'a Path, IoMode),
}

/// The parameters of a [`Bed`].
#[derive(Clone, Copy, Debug)]
pub struct BedOptions {
    /// Listening address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Memory for cached pages and values, in bytes; none: as `shoal serve` does it by default.
    pub cache_bytes: Option<usize>,
    /// Memory for records that are not yet in the trees, in bytes; none: in proportion to the cache.
    pub memtable_bytes: Option<usize>,
    /// Maximum size of a new file, in blocks.
    pub blocks: u64,
}

impl Default for BedOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            cache_bytes: None,
            memtable_bytes: None,
            blocks: FILE_BLOCKS,
        }
    }
}

/// A server on a separate port, with one dispatch thread.
pub struct Bed {
    /// Its listening address.
    pub address: SocketAddr,
    /// The cores of the server and the clients.
    pub cores: Option<Cores>,
    store: Store,
    running: Option<Running>,
    _file: Option<NewFile>,
}

impl Bed {
    /// Starts it. This thread stays on the clients' core if there are two.
    ///
    /// # Errors
    /// Those of the device, the store or the server.
    pub fn new(place: StoreLocation<'_>) -> Result<Self> {
        Self::with(place, &BedOptions::default())
    }

    /// The same, with the server at `listen`.
    ///
    /// # Errors
    /// As [`Bed::new`].
    pub fn at(place: StoreLocation<'_>, listen: SocketAddr) -> Result<Self> {
        Self::with(place, &BedOptions { listen, ..BedOptions::default() })
    }

    /// The same with other parameters.
    ///
    /// # Errors
    /// As [`Bed::new`].
    pub fn with(place: StoreLocation<'_>, wanted: &BedOptions) -> Result<Self> {
        let listen = wanted.listen;
        // In a file as `shoal serve` does it by default.
        let mut options = OpenOptions { memtable_bytes: wanted.memtable_bytes, ..OpenOptions::default() };
        if let Some(bytes) = wanted.cache_bytes {
            options.cache_bytes = bytes;
        }
        let (device, file, blocks) = match place {
            StoreLocation::Memory => {
                options.cache_bytes = wanted.cache_bytes.unwrap_or(256 << 20);
                (Device::new(Arc::new(MemDevice::new(MEMORY_BLOCKS))), None, Some(MEMORY_BLOCKS))
            }
            StoreLocation::File(path, io) => {
                let (device, file) = NewFile::create(path, "redis", io)?;
                (device, Some(file), Some(wanted.blocks))
            }
            StoreLocation::Kept(path, io) => {
                let (device, mut file) = NewFile::create(Some(path), "redis", io)?;
                file.keep();
                (device, Some(file), Some(wanted.blocks))
            }
            StoreLocation::Existing(path, io) => {
                let options = FileOptions { io, ..FileOptions::default() };
                (shoal_device::open(path, &options)?, None, None)
            }
        };
        if let Some(blocks) = blocks {
            block_on(Store::format(&device, &FormatOptions::for_blocks(blocks), &Environment::default()))?;
        }
        let store = block_on(Store::open(device, options, Environment::default()))?;
        let cores = Cores::take();
        let (address, running) = Cores::on_servers(cores, || -> Result<_> {
            let server =
                RedisServer::bind(RedisOptions { listen, threads: Some(1), ..RedisOptions::default() })?;
            let address = server.address();
            Ok((address, server.start(store.clone(), Environment::default())?))
        })?;
        Ok(Self { address, cores, store, running: Some(running), _file: file })
    }

    /// Its store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// A connection to it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn link(&self) -> Result<Link> {
        Link::connect(self.address)
    }
}

/// Stores `count` objects of `bytes` bytes under the keys of `key`.
///
/// # Errors
/// The connection failed, or a reply is an error.
pub fn load(link: &mut Link, count: u64, bytes: usize, key: impl Fn(u64) -> Vec<u8>) -> Result<()> {
    let value = vec![b'x'; bytes];
    let at_once = LOADED_AT_ONCE.min(1 + (4 << 20) / bytes.max(1));
    let numbers: Vec<u64> = (0..count).collect();
    for numbers in numbers.chunks(at_once) {
        let mut commands = Vec::new();
        numbers.iter().for_each(|&number| command(&mut commands, &[b"SET", &key(number), &value]));
        link.call(&commands, numbers.len())?;
    }
    Ok(())
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
        if let Err(error) = block_on(self.store.close()) {
            say(&error.to_string());
        }
    }
}

/// The figures of a benchmark are already printed; an error when its store closes is reported on standard error.
fn say(error: &str) {
    let _ = writeln!(std::io::stderr(), "the store was not closed well: {error}");
}
