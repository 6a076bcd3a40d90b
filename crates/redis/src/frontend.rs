//! The state that all commands share: the store, the bucket of the keys, the clock, the connected clients.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use shoal_base::{Clock, Entropy};
use shoal_engine::{Bucket, Environment, ObjectKey, Store};
use shoal_frontend::Admission;
use shoal_metrics::{Connections, FrontendMetrics};

use crate::answer::Failed;
use crate::clients::Clients;
use crate::cursors::Cursors;
use crate::memory::Memory;
use crate::options::{Durability, RedisOptions};

/// The frontend, as the tasks of one thread share it.
pub(crate) type FrontendRef = Rc<Arc<Frontend>>;

/// The state that all threads of the frontend share.
pub(crate) struct Frontend {
    pub store: Store,
    pub options: RedisOptions,
    /// The bucket of the keys.
    pub bucket: Bucket,
    /// The listening addresses, all with the same port.
    pub addresses: Vec<SocketAddr>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    /// Forty digits that distinguish this run of the server from others; also its identity in a cluster.
    pub run_id: String,
    pub since_ns: u64,
    pub clients: Arc<Clients>,
    pub cursors: Cursors,
    pub commands: AtomicU64,
    /// Commands and answers of all threads.
    pub memory: Arc<Memory>,
}

impl Frontend {
    pub(crate) fn new(
        store: Store,
        options: RedisOptions,
        bucket: Bucket,
        addresses: Vec<SocketAddr>,
        environment: Environment,
    ) -> Arc<Self> {
        let Environment { clock, entropy } = environment;
        let mut run_id: String = (0..3).map(|_| format!("{:016x}", entropy.next_u64())).collect();
        run_id.truncate(40);
        let frontend = Arc::new(Self {
            store,
            bucket,
            addresses,
            since_ns: clock.monotonic_ns(),
            clock,
            entropy,
            run_id,
            clients: Admission::new(options.limits.connections_max),
            cursors: Cursors::default(),
            memory: Memory::new(options.limits.memory_bytes_max),
            options,
            commands: AtomicU64::new(0),
        });
        frontend.metrics().set_bucket(frontend.bucket.name());
        // The metrics outlive the frontend and must not keep it alive.
        let clients = Arc::downgrade(&frontend.clients);
        frontend.metrics().watch_connections(move || {
            clients.upgrade().map_or_else(Connections::default, |clients| connections(&clients))
        });
        frontend
    }

    /// The listening port.
    pub(crate) fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    /// The object that a key names.
    pub(crate) fn key(&self, key: &[u8]) -> Result<ObjectKey, Failed> {
        Ok(self.bucket.key(key)?)
    }

    /// The counts of the frontend.
    pub(crate) fn metrics(&self) -> &FrontendMetrics {
        self.options.metrics.redis()
    }

    /// Returns true if writes are acknowledged before they are durable.
    pub(crate) fn is_relaxed(&self) -> bool {
        self.options.durability != Durability::Sync
    }

    /// Milliseconds of the monotonic clock.
    pub(crate) fn monotonic_ms(&self) -> u64 {
        self.clock.monotonic_ns() / 1_000_000
    }
}

/// The connections as they are now.
fn connections(clients: &Clients) -> Connections {
    let (open, opened) = clients.counts();
    let memory = clients.list(|_, client| Some(client.waiting_bytes() as u64));
    Connections {
        open: open as u64,
        opened,
        refused: clients.refused(),
        evicted: clients.evicted(),
        overdue: clients.overdue(),
        memory_refusals: 0,
        memory_bytes: memory.into_iter().sum(),
    }
}
