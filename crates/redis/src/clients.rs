//! Who is connected: what CLIENT LIST shows, of the connections of all threads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use shoal_resp::Protocol;

use crate::command::{COMMANDS, Command};
use crate::face::Face;

/// What a client said about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Says {
    pub name: String,
    pub library: String,
    pub library_version: String,
}

/// A connection, as others see it.
pub(crate) struct Client {
    pub id: u64,
    pub address: SocketAddr,
    pub local: SocketAddr,
    pub since_ms: u64,
    /// When its last command came, on the monotonic clock.
    pub last_ms: AtomicU64,
    pub is_v3: AtomicBool,
    pub says: Mutex<Says>,
    /// Its last command: its place in the table of commands and one more; 0: none yet.
    command: AtomicUsize,
}

impl Client {
    /// Remembers the version of the protocol.
    pub(crate) fn speaks(&self, protocol: Protocol) {
        self.is_v3.store(protocol == Protocol::V3, Ordering::Relaxed);
    }

    /// Remembers its last command.
    pub(crate) fn used(&self, command: &'static Command) {
        self.command.store(command.index() + 1, Ordering::Relaxed);
    }

    /// Its line in CLIENT LIST.
    pub(crate) fn line(&self, now_ms: u64) -> String {
        let mut line = String::new();
        let says = self.says.lock().clone();
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 qbuf=0 \
             qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd={} user=default \
             redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local,
            says.name,
            now_ms.saturating_sub(self.since_ms) / 1000,
            now_ms.saturating_sub(self.last_ms.load(Ordering::Relaxed)) / 1000,
            self.command
                .load(Ordering::Relaxed)
                .checked_sub(1)
                .and_then(|index| COMMANDS.get(index))
                .map_or("NULL", |command| command.name),
            if self.is_v3.load(Ordering::Relaxed) { 3 } else { 2 },
            says.library,
            says.library_version,
        );
        line
    }
}

/// A connection's entry among all of them, as long as this lives.
pub(crate) struct Entered {
    face: Arc<Face>,
    client: Arc<Client>,
}

impl Entered {
    /// Enters a new connection of the face, where there are not too many.
    pub(crate) fn new(face: &Arc<Face>, address: SocketAddr, local: SocketAddr, now_ms: u64) -> Option<Self> {
        let most = face.options.limits.connections_max;
        let client = face.clients.add(address, local, now_ms, most)?;
        Some(Self { face: face.clone(), client })
    }
}

impl std::ops::Deref for Entered {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.face.clients.remove(self.client.id);
    }
}

/// All connections of the face.
#[derive(Default)]
pub(crate) struct Clients {
    next: AtomicU64,
    connected: Mutex<BTreeMap<u64, Arc<Client>>>,
}

impl Clients {
    /// Enters a new connection, where there are fewer than `most`.
    fn add(&self, address: SocketAddr, local: SocketAddr, now_ms: u64, most: usize) -> Option<Arc<Client>> {
        let mut connected = self.connected.lock();
        if connected.len() >= most {
            return None;
        }
        let client = Arc::new(Client {
            id: self.next.fetch_add(1, Ordering::Relaxed) + 1,
            address,
            local,
            since_ms: now_ms,
            last_ms: AtomicU64::new(now_ms),
            is_v3: AtomicBool::new(false),
            says: Mutex::default(),
            command: AtomicUsize::new(0),
        });
        connected.insert(client.id, client.clone());
        Some(client)
    }

    /// A connection ended.
    fn remove(&self, id: u64) {
        self.connected.lock().remove(&id);
    }

    /// How many there are, and how many there ever were.
    pub(crate) fn counts(&self) -> (usize, u64) {
        (self.connected.lock().len(), self.next.load(Ordering::Relaxed))
    }

    /// Those that `wanted` names, or all.
    pub(crate) fn list(&self, wanted: Option<&[u64]>) -> Vec<Arc<Client>> {
        let connected = self.connected.lock();
        match wanted {
            None => connected.values().cloned().collect(),
            Some(ids) => ids.iter().filter_map(|id| connected.get(id).cloned()).collect(),
        }
    }
}
