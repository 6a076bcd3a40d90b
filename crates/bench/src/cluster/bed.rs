//! What the cases stand on: a store, the Redis face before it in this process, and a bare echo beside it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use shoal_device::{Device, IoMode, MemDevice};
use shoal_engine::{Environment, FormatOptions, OpenOptions, Store, block_on};
use shoal_redis::{RedisOptions, Running, Server};

use super::link::{Link, command};
use crate::data_file::NewFile;

/// Blocks of a store in memory: 1 GiB.
const MEMORY_BLOCKS: u64 = 1 << 18;
/// Blocks that a store in a file may grow to: 16 GiB.
const FILE_BLOCKS: u64 = 1 << 22;
/// Commands that are loaded at a time.
const LOADED_AT_ONCE: usize = 1_000;

/// A server on a port of its own.
pub(super) struct Bed {
    pub(super) address: SocketAddr,
    /// A server that sends back every byte at once, and does nothing else.
    pub(super) echo: SocketAddr,
    pub(super) device: &'static str,
    /// Whether the server has a core of its own, and the clients another one.
    pub(super) is_pinned: bool,
    store: Store,
    running: Option<Running>,
    _file: Option<NewFile>,
}

impl Bed {
    /// A store in the file `data`, or in memory, with one dispatch thread.
    pub(super) fn new(data: Option<&Path>, io: IoMode) -> Result<Self> {
        let (device, file, blocks) = match data {
            None => (Device::new(Arc::new(MemDevice::new(MEMORY_BLOCKS))), None, MEMORY_BLOCKS),
            Some(path) => {
                let (device, file) = NewFile::create(Some(path), "cluster", io)?;
                (device, Some(file), FILE_BLOCKS)
            }
        };
        block_on(Store::format(&device, &FormatOptions::for_blocks(blocks), &Environment::default()))?;
        let options = OpenOptions { cache_bytes: 256 << 20, ..OpenOptions::default() };
        let store = block_on(Store::open(device, options, Environment::default()))?;
        // Server and clients on a core each: else it is chance whether a call wakes somebody on its own core, which is four times as
        // fast here. Threads inherit it from who starts them.
        let is_pinned = pin(1);
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Server::bind(RedisOptions { listen, threads: Some(1), ..RedisOptions::default() })?;
        let address = server.address();
        let running = Some(server.start(store.clone(), Environment::default())?);
        let device = if file.is_some() { "file" } else { "memory" };
        let echo = bare_echo()?;
        let is_pinned = is_pinned && pin(0);
        Ok(Self { address, echo, device, is_pinned, store, running, _file: file })
    }

    pub(super) fn link(&self) -> Result<Link> {
        Link::connect(self.address)
    }

    /// Stores `count` objects of `bytes` bytes under the keys that `key` gives.
    pub(super) fn load(&self, count: u64, bytes: usize, key: impl Fn(u64) -> Vec<u8>) -> Result<()> {
        let (mut link, value) = (self.link()?, vec![b'x'; bytes]);
        let at_once = LOADED_AT_ONCE.min(1 + (4 << 20) / bytes.max(1));
        let numbers: Vec<u64> = (0..count).collect();
        for numbers in numbers.chunks(at_once) {
            let mut commands = Vec::new();
            numbers.iter().for_each(|&number| command(&mut commands, &[b"SET", &key(number), &value]));
            link.call(&commands, numbers.len())?;
        }
        Ok(())
    }
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

/// A benchmark's figures are printed by then; that its store did not close well is said beside them.
fn say(error: &str) {
    let _ = writeln!(std::io::stderr(), "the store was not closed well: {error}");
}

/// Keeps this thread, and those that it starts from now on, on one core; whether that could be done.
fn pin(core: usize) -> bool {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    rustix::thread::sched_setaffinity(None, &cores).is_ok()
}

/// A thread for each connection, which ends with it.
fn bare_echo() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("bench-echo".into()).spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.set_nodelay(true);
            std::thread::spawn(move || {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(bytes.get(..count).unwrap_or_default()).is_err() {
                        return;
                    }
                }
            });
        }
    })?;
    Ok(address)
}
