//! The connected clients: the lines of CLIENT LIST, of the connections of all threads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Wake;

use parking_lot::Mutex;
use shoal_frontend::{Admission, Admitted, Connection};

use crate::mailbox::ConnectionWaker;

/// All connections of the frontend.
pub(crate) type Clients = Admission<Arc<Client>>;
/// A connection's entry among all of them, until it is dropped.
pub(crate) type Entered = Admitted<Arc<Client>>;

/// The name and library that a client reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Says {
    /// The id of its key; empty: the user default.
    pub user: String,
    pub name: String,
    pub library: String,
    pub library_version: String,
}

impl Says {
    /// The user's name in CLIENT LIST.
    pub(crate) fn user_name(&self) -> &str {
        if self.user.is_empty() { "default" } else { &self.user }
    }
}

/// A connection as others see it: in its state after its last turn.
#[derive(Default)]
pub(crate) struct Figures {
    /// The arrival of its last command, on the monotonic clock.
    pub last_ms: AtomicU64,
    pub is_v3: AtomicBool,
    /// Bytes of commands that are unfinished or wait, and of answers that were not taken.
    pub received_bytes: AtomicUsize,
    pub answer_bytes: AtomicUsize,
    /// Commands that wait for EXEC, plus one (0: there was no MULTI); and the number of its watched keys.
    pub queued: AtomicUsize,
    pub watches: AtomicUsize,
    /// The number of its last command in the table of commands; 0: none yet.
    pub command: AtomicUsize,
}

/// A connection, as others see it.
pub(crate) struct Client {
    pub id: u64,
    pub addresses: Addresses,
    pub since_ms: u64,
    pub says: Mutex<Says>,
    pub figures: Figures,
    /// Another connection requested its end.
    ends: AtomicBool,
    waker: Arc<ConnectionWaker>,
}

impl Connection for Client {
    fn wake(&self) {
        self.waker.wake_by_ref();
    }
}

impl Client {
    pub(crate) fn new(id: u64, addresses: Addresses, now_ms: u64, waker: Arc<ConnectionWaker>) -> Arc<Self> {
        let figures = Figures { last_ms: AtomicU64::new(now_ms), ..Figures::default() };
        let (says, ends) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { id, addresses, since_ms: now_ms, says, figures, ends, waker })
    }

    /// Closes it soon, in any state.
    pub(crate) fn end(&self) {
        // Set before the wake-up: its thread checks the flag when it is woken.
        self.ends.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }

    /// Returns true if another connection closed it.
    pub(crate) fn is_to_end(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// Memory of its commands and answers.
    pub(crate) fn waiting_bytes(&self) -> usize {
        let Figures { received_bytes, answer_bytes, .. } = &self.figures;
        received_bytes.load(Ordering::Relaxed) + answer_bytes.load(Ordering::Relaxed)
    }

    /// Its line in CLIENT LIST; `command_name` returns the name of a command's number.
    pub(crate) fn line(&self, now_ms: u64, command_name: fn(usize) -> String) -> String {
        let Figures { last_ms, is_v3, received_bytes, answer_bytes, queued, watches, command } =
            &self.figures;
        let [received, answers, queued, watches, command] =
            [received_bytes, answer_bytes, queued, watches, command].map(|it| it.load(Ordering::Relaxed));
        let says = self.says.lock().clone();
        format!(
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db=0 sub=0 psub=0 ssub=0 multi={} watch={} qbuf={} \
             qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem={} tot-mem={} events=r cmd={} user={} \
             redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.addresses.peer,
            self.addresses.local,
            self.addresses.socket,
            says.name,
            now_ms.saturating_sub(self.since_ms) / 1000,
            now_ms.saturating_sub(last_ms.load(Ordering::Relaxed)) / 1000,
            if queued > 0 { "x" } else { "N" },
            queued as i64 - 1,
            watches,
            received,
            answers,
            received + answers,
            command_name(command),
            says.user_name(),
            if is_v3.load(Ordering::Relaxed) { 3 } else { 2 },
            says.library,
            says.library_version,
        )
    }
}

/// The remote and the local address of a connection, and the number of its socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    pub socket: i32,
}
