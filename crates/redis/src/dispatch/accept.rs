//! New connections: one thread accepts them and hands them to all threads in turn.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry};

use crate::mailbox::{LISTENER, Mailbox};

/// New connections in one turn.
const ACCEPTS_MAX: usize = 64;
/// Pause after a failed accept: it fails again at once if file descriptors have run out.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The listeners, and the threads that get their connections in turn.
pub(crate) struct Accepting {
    listeners: Arc<[TcpListener]>,
    /// The listener to ask first: each in turn.
    first: usize,
    mailboxes: Vec<Arc<Mailbox>>,
    next: usize,
    /// Nothing is accepted until this time.
    paused_until_ns: Option<u64>,
}

impl Accepting {
    pub(crate) fn new(listeners: Arc<[TcpListener]>, mailboxes: Vec<Arc<Mailbox>>) -> Self {
        Self { listeners, first: 0, mailboxes, next: 0, paused_until_ns: None }
    }

    /// Makes a poll report waiting connections, and later ones.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn register(listeners: &[TcpListener], registry: &Registry) -> io::Result<()> {
        listeners.iter().try_for_each(|listener| {
            registry.register(&mut SourceFd(&listener.as_raw_fd()), LISTENER, Interest::READABLE)
        })
    }

    /// Makes the poll report connections again that it reported before and that were not accepted.
    pub(super) fn rearm(&self, registry: &Registry) {
        for listener in self.listeners.iter() {
            let listener = listener.as_raw_fd();
            if let Err(error) = registry.reregister(&mut SourceFd(&listener), LISTENER, Interest::READABLE) {
                tracing::error!("no more connections are accepted: {error}");
            }
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused_until_ns.is_some()
    }

    /// Accepts again after a pause.
    pub(super) fn resume(&mut self, now_ns: u64, registry: &Registry) {
        if self.paused_until_ns.take_if(|until| *until <= now_ns).is_some() {
            self.rearm(registry);
        }
    }

    /// Accepts waiting connections, hands them to the threads in turn, and returns those of this thread, whose mailbox is
    /// `own`. The second part is false if accepting failed: then it pauses.
    pub(super) fn accept(
        &mut self,
        own: &Arc<Mailbox>,
        now_ns: u64,
        registry: &Registry,
    ) -> (Vec<TcpStream>, bool) {
        let mut sockets = Vec::new();
        for _ in 0..ACCEPTS_MAX {
            match self.accept_one() {
                Ok((stream, _)) => {
                    self.next = (self.next + 1) % self.mailboxes.len();
                    match self.mailboxes.get(self.next) {
                        Some(mailbox) if !Arc::ptr_eq(mailbox, own) => {
                            mailbox.send(|mail| mail.sockets.push(stream));
                        }
                        _ => sockets.push(stream),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return (sockets, true),
                Err(error) => {
                    // The program's log bounds the rate of this message.
                    tracing::warn!("cannot accept a connection: {error}");
                    self.paused_until_ns = Some(now_ns + ACCEPT_PAUSE.as_nanos() as u64);
                    return (sockets, false);
                }
            }
        }
        // More connections may be waiting.
        self.rearm(registry);
        (sockets, true)
    }

    /// A connection of any listener.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if none has one; those of the system.
    fn accept_one(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        self.first = (self.first + 1) % self.listeners.len().max(1);
        let (before, after) = self.listeners.split_at(self.first);
        for listener in after.iter().chain(before) {
            match listener.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}
