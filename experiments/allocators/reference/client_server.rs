//! The seed's client and server: one thread owns the allocator, clients ask it through a channel.
//!
//! A plain [`Client`] asks for every call. A [`CachedClient`] fetches whole regions (16 GiB in the seed's test) and
//! serves its own calls from a pool over them; only an empty pool asks. In one process: the figures are those of a hand-over to
//! another thread and back, not of a network.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use shoal_base::Run;

use super::super::allocator::{Allocator, Refusal, Runs, Status};
use super::pooled::{Pooled, Record};

enum Request {
    Allocate(u32, usize, SyncSender<Result<Runs, Refusal>>),
    Free(Vec<Run>, SyncSender<Result<(), Refusal>>),
    Status(SyncSender<(Status, usize)>),
    Shutdown,
}

/// The thread that owns an allocator.
pub(crate) struct Server {
    requests: Sender<Request>,
    device: u64,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `allocator` from a separate thread until [`Allocator::shutdown`] or the drop of the server.
    pub(crate) fn start(allocator: Box<dyn Allocator>) -> Self {
        let (requests, waiting) = channel();
        let device = allocator.device();
        let thread = std::thread::spawn(move || serve(&*allocator, &waiting));
        Self { requests, device, thread: Some(thread) }
    }

    /// A client that asks for every call.
    pub(crate) fn client(&self) -> Client {
        Client { requests: Mutex::new(self.requests.clone()), device: self.device }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread may have exited before: then there is no receiver, and nothing to stop.
        drop(self.requests.send(Request::Shutdown));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn serve(allocator: &dyn Allocator, requests: &Receiver<Request>) {
    for request in requests {
        // A client that went away does not need its answer.
        match request {
            Request::Allocate(blocks, runs_max, reply) => {
                let answer = if runs_max == 1 {
                    allocator.allocate(blocks).map(|run| Runs::from_slice(&[run]))
                } else {
                    allocator.allocate_runs(blocks, runs_max)
                };
                drop(reply.send(answer));
            }
            Request::Free(runs, reply) => drop(reply.send(allocator.free_batch(&runs))),
            Request::Status(reply) => drop(reply.send((allocator.status(), allocator.memory_bytes()))),
            Request::Shutdown => return allocator.shutdown(),
        }
    }
}

/// Asks the server for every call.
pub(crate) struct Client {
    requests: Mutex<Sender<Request>>,
    device: u64,
}

impl Client {
    fn ask<T>(&self, request: impl FnOnce(SyncSender<T>) -> Request) -> Result<T, Refusal> {
        let (reply, answer) = sync_channel(1);
        self.requests.lock().send(request(reply)).map_err(|_| Refusal::ShutDown)?;
        answer.recv().map_err(|_| Refusal::ShutDown)
    }
}

impl Allocator for Client {
    fn device(&self) -> u64 {
        self.device
    }

    fn allocate(&self, blocks: u32) -> Result<Run, Refusal> {
        self.allocate_runs(blocks, 1)?.pop().ok_or(Refusal::NoSpace)
    }

    fn allocate_runs(&self, blocks: u32, runs_max: usize) -> Result<Runs, Refusal> {
        self.ask(|reply| Request::Allocate(blocks, runs_max, reply))?
    }

    fn free(&self, run: Run) -> Result<(), Refusal> {
        self.free_batch(&[run])
    }

    fn free_batch(&self, runs: &[Run]) -> Result<(), Refusal> {
        self.ask(|reply| Request::Free(runs.to_vec(), reply))?
    }

    fn status(&self) -> Status {
        let gone = (Status { blocks: 0, free_blocks: 0 }, 0);
        self.ask(Request::Status).unwrap_or(gone).0
    }

    fn memory_bytes(&self) -> usize {
        self.ask(Request::Status).map_or(0, |(_, bytes)| bytes)
    }

    fn shutdown(&self) {
        // Without a server there is nothing left to shut down.
        drop(self.requests.lock().send(Request::Shutdown));
    }
}

/// Serves its calls from a local pool, over regions that it fetched.
pub(crate) struct CachedClient {
    client: Client,
    pool: Pooled,
    region_blocks: u32,
}

impl CachedClient {
    /// A client of `server` that fetches regions of `region_blocks` blocks.
    pub(crate) fn new(server: &Server, region_blocks: u32) -> Self {
        let client = server.client();
        let pool = Pooled::empty(server.device, client.status().blocks, Record::None);
        Self { client, pool, region_blocks }
    }

    /// Fetches a region; if none is left, just the blocks of the request.
    fn fetch(&self, blocks: u32) -> Result<(), Refusal> {
        let region = self.client.allocate(self.region_blocks.max(blocks));
        self.pool.free(region.or_else(|_| self.client.allocate(blocks))?)
    }
}

impl Allocator for CachedClient {
    fn device(&self) -> u64 {
        self.client.device
    }

    fn allocate(&self, blocks: u32) -> Result<Run, Refusal> {
        match self.pool.allocate(blocks) {
            Err(Refusal::NoSpace) => {
                self.fetch(blocks)?;
                self.pool.allocate(blocks)
            }
            answer => answer,
        }
    }

    fn allocate_runs(&self, blocks: u32, runs_max: usize) -> Result<Runs, Refusal> {
        if runs_max > 0
            && let Ok(run) = self.allocate(blocks)
        {
            return Ok(Runs::from_slice(&[run]));
        }
        self.pool.allocate_runs(blocks, runs_max).or_else(|_| self.client.allocate_runs(blocks, runs_max))
    }

    fn free(&self, run: Run) -> Result<(), Refusal> {
        self.pool.free(run)
    }

    fn status(&self) -> Status {
        let owner = self.client.status();
        Status { free_blocks: owner.free_blocks + self.pool.status().free_blocks, ..owner }
    }

    fn memory_bytes(&self) -> usize {
        self.client.memory_bytes() + self.pool.memory_bytes()
    }

    fn shutdown(&self) {
        self.pool.shutdown();
        self.client.shutdown();
    }
}
