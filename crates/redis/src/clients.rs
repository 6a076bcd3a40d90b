//! Who is connected: what CLIENT LIST shows, of the connections of all threads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Wake;

use parking_lot::Mutex;
use shoal_resp::Protocol;

use crate::command::{COMMANDS, Command};
use crate::face::Face;
use crate::mailbox::ConnectionWaker;

/// Where the part stands in what is remembered of a command.
const PART_SHIFT: u32 = 16;

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
    /// The number of its socket, as the system counts.
    pub socket: i32,
    /// It has shown the password; where there is none, it has sent a command.
    is_authenticated: AtomicBool,
    /// When its last command came, on the monotonic clock.
    pub last_ms: AtomicU64,
    pub is_v3: AtomicBool,
    /// Bytes of commands that are unfinished or wait, and of answers that were not taken.
    pub received_bytes: AtomicUsize,
    pub answer_bytes: AtomicUsize,
    /// Commands that wait for EXEC, and one more (0: there was no MULTI); and how many keys it watches.
    pub queued: AtomicUsize,
    pub watches: AtomicUsize,
    pub says: Mutex<Says>,
    /// Its last command: its place in the table of commands and one more (0: none yet), and in the upper half which of its parts.
    command: AtomicUsize,
    /// Somebody wants it to end.
    ends: AtomicBool,
    waker: Arc<ConnectionWaker>,
}

impl Client {
    /// Whether it has shown that it may come in.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.is_authenticated.load(Ordering::Relaxed)
    }

    /// Remembers the version of the protocol.
    pub(crate) fn speaks(&self, protocol: Protocol) {
        self.is_v3.store(protocol == Protocol::V3, Ordering::Relaxed);
    }

    /// Remembers its last command.
    pub(crate) fn used(&self, command: &'static Command, part: usize) {
        self.command.store((command.index() + 1) | (part << PART_SHIFT), Ordering::Relaxed);
    }

    /// Its last command, `client|list`.
    fn last_command(&self) -> String {
        let seen = self.command.load(Ordering::Relaxed);
        let index = (seen & ((1 << PART_SHIFT) - 1)).checked_sub(1);
        let Some(command) = index.and_then(|index| COMMANDS.get(index)) else { return "NULL".to_owned() };
        let part = (seen >> PART_SHIFT).checked_sub(1).and_then(|index| command.parts().get(index));
        part.map_or_else(|| command.name.to_owned(), |part| format!("{}|{}", command.name, part.name))
    }

    /// Ends it soon, whatever it does.
    pub(crate) fn end(&self) {
        // Set before it is woken: its thread looks when it was.
        self.ends.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }

    /// Whether somebody ended it.
    pub(crate) fn is_to_end(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// Memory of its commands and answers.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.received_bytes.load(Ordering::Relaxed) + self.answer_bytes.load(Ordering::Relaxed)
    }

    /// Its line in CLIENT LIST.
    pub(crate) fn line(&self, now_ms: u64) -> String {
        let mut line = String::new();
        let says = self.says.lock().clone();
        let received = self.received_bytes.load(Ordering::Relaxed);
        let answers = self.answer_bytes.load(Ordering::Relaxed);
        let queued = self.queued.load(Ordering::Relaxed);
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db=0 sub=0 psub=0 ssub=0 multi={} watch={} qbuf={} \
             qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem={} tot-mem={} events=r cmd={} user=default \
             redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local,
            self.socket,
            says.name,
            now_ms.saturating_sub(self.since_ms) / 1000,
            now_ms.saturating_sub(self.last_ms.load(Ordering::Relaxed)) / 1000,
            if queued > 0 { "x" } else { "N" },
            queued as i64 - 1,
            self.watches.load(Ordering::Relaxed),
            received,
            answers,
            received + answers,
            self.last_command(),
            if self.is_v3.load(Ordering::Relaxed) { 3 } else { 2 },
            says.library,
            says.library_version,
        );
        line
    }
}

/// Where a connection comes from and ends, and the number of its socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    pub socket: i32,
}

/// A connection's entry among all of them, as long as this lives.
pub(crate) struct Entered {
    face: Arc<Face>,
    client: Arc<Client>,
}

impl Entered {
    /// Enters a new connection of the face, where there is room or another one makes some.
    pub(crate) fn new(
        face: &Arc<Face>,
        addresses: Addresses,
        now_ms: u64,
        waker: Arc<ConnectionWaker>,
    ) -> Option<Self> {
        let most = face.options.limits.connections_max;
        let client = face.clients.add(addresses, now_ms, waker, most)?;
        Some(Self { face: face.clone(), client })
    }

    /// It has shown that it may come in.
    pub(crate) fn set_authenticated(&self) {
        if !self.client.is_authenticated() {
            self.client.is_authenticated.store(true, Ordering::Relaxed);
            self.face.clients.connected.lock().unauthenticated.remove(&self.client.id);
        }
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
    connected: Mutex<Connected>,
    /// Closed for others before they had shown that they may come in; because they did not in time; and refused.
    pub(crate) evicted: AtomicU64,
    pub(crate) overdue: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// By their numbers: the oldest first. Who was told to go is in neither.
#[derive(Default)]
struct Connected {
    all: BTreeMap<u64, Arc<Client>>,
    /// Those of them that have not shown that they may come in.
    unauthenticated: BTreeMap<u64, Arc<Client>>,
}

impl Connected {
    /// The oldest one that has shown nothing is told to go, where there is one.
    fn evict(&mut self) -> Option<Arc<Client>> {
        let (id, client) = self.unauthenticated.pop_first()?;
        self.all.remove(&id);
        Some(client)
    }
}

impl Clients {
    /// Enters a new connection, where there are fewer than `most`, or one of them makes room.
    fn add(
        &self,
        addresses: Addresses,
        now_ms: u64,
        waker: Arc<ConnectionWaker>,
        most: usize,
    ) -> Option<Arc<Client>> {
        let mut connected = self.connected.lock();
        let evicted = if connected.all.len() >= most { connected.evict() } else { None };
        if connected.all.len() >= most {
            drop(connected);
            self.refused.fetch_add(1, Ordering::Relaxed);
            let address = addresses.peer;
            tracing::warn!("{address} was refused: there are {most} connections, all of them in use");
            return None;
        }
        let client = Arc::new(Client {
            id: self.next.fetch_add(1, Ordering::Relaxed) + 1,
            address: addresses.peer,
            local: addresses.local,
            socket: addresses.socket,
            since_ms: now_ms,
            is_authenticated: AtomicBool::new(false),
            last_ms: AtomicU64::new(now_ms),
            is_v3: AtomicBool::new(false),
            received_bytes: AtomicUsize::new(0),
            answer_bytes: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            watches: AtomicUsize::new(0),
            says: Mutex::default(),
            command: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
            waker,
        });
        connected.all.insert(client.id, client.clone());
        connected.unauthenticated.insert(client.id, client.clone());
        drop(connected);
        if let Some(evicted) = evicted {
            tracing::warn!(
                "there are {most} connections: that of {} has shown nothing and is closed for a new one",
                evicted.address
            );
            self.tell_to_go(&evicted);
        }
        Some(client)
    }

    /// Closes up to `count` connections that have shown nothing, the oldest first.
    pub(crate) fn evict(&self, count: usize) {
        for _ in 0..count {
            let Some(evicted) = self.connected.lock().evict() else { return };
            self.tell_to_go(&evicted);
        }
    }

    fn tell_to_go(&self, client: &Client) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        client.end();
    }

    /// A connection ended.
    fn remove(&self, id: u64) {
        let mut connected = self.connected.lock();
        let gone = (connected.all.remove(&id), connected.unauthenticated.remove(&id));
        // What they have of the heap is given back without the lock.
        drop(connected);
        drop(gone);
    }

    /// How many there are, and how many there ever were.
    pub(crate) fn counts(&self) -> (usize, u64) {
        (self.connected.lock().all.len(), self.next.load(Ordering::Relaxed))
    }

    /// Those that `wanted` names, or all.
    pub(crate) fn list(&self, wanted: Option<&[u64]>) -> Vec<Arc<Client>> {
        let connected = self.connected.lock();
        match wanted {
            None => connected.all.values().cloned().collect(),
            Some(ids) => ids.iter().filter_map(|id| connected.all.get(id).cloned()).collect(),
        }
    }
}
