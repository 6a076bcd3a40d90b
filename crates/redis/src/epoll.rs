//! Readiness: epoll, edge-triggered. Every socket is registered once for both directions; whether it may be read or
//! written is then remembered until a call says that it would block, so a request costs no call but its read and its
//! write.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bytes::BytesMut;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use shoal_buffer::Buffer;

use crate::connection::End;
use crate::mailbox::Token;
use crate::socket::{Socket, Wanted};

/// Events taken in one call.
const EVENTS_MAX: usize = 256;
/// What the mailbox's bell is registered as.
const BELL: u64 = u64::MAX;
/// What the listener is registered as.
const LISTENER: u64 = u64::MAX - 1;

/// Something became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// There is mail.
    Bell,
    /// A connection wants in.
    Listener,
    /// A socket; `ended`: behind what it has, nothing more comes.
    Socket { token: Token, readable: bool, writable: bool, ended: bool },
}

/// The epoll instance of a dispatch thread. Nothing of it waits but [`Epoll::wait`].
pub(crate) struct Epoll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    /// What is received goes here; filled parts are split off.
    block: BytesMut,
}

impl Epoll {
    /// The epoll instance of this thread; `bell` becomes readable when there is mail.
    ///
    /// # Errors
    /// As the system.
    pub(crate) fn new(bell: &OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, bell, EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS_MAX), block: BytesMut::new() })
    }

    /// Watches a listening socket, level-triggered.
    ///
    /// # Errors
    /// As the system.
    pub(crate) fn listen(&mut self, listener: &TcpListener) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?)
    }

    /// Watches it no more.
    pub(crate) fn stop_listening(&mut self, listener: &TcpListener) {
        let _ = epoll::delete(&self.epoll, listener);
    }

    /// Takes a socket; what happens to it is told with `token`.
    ///
    /// # Errors
    /// As the system.
    pub(crate) fn add(&mut self, fd: OwnedFd, token: Token) -> io::Result<Socket> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &fd, EventData::new_u64(token.to_u64()), flags)?;
        Ok(Socket::new(fd))
    }

    /// Closes a socket.
    pub(crate) fn remove(&mut self, socket: Socket) {
        let _ = epoll::delete(&self.epoll, socket.fd().as_fd());
    }

    /// Waits until something is ready, at most for `timeout`, and puts it into `ready`.
    ///
    /// # Errors
    /// As the system.
    pub(crate) fn wait(&mut self, timeout: Duration, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        self.events.clear();
        let waited =
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout));
        match waited {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ready.extend(self.events.iter().map(|event| {
            // The kernel's structure is packed: its fields are copied out.
            let (data, flags) = (event.data, event.flags);
            match data.u64() {
                BELL => Ready::Bell,
                LISTENER => Ready::Listener,
                token => {
                    let ended = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                    Ready::Socket {
                        token: Token::from_u64(token),
                        readable: flags.intersects(EventFlags::IN | ended),
                        writable: flags.intersects(EventFlags::OUT | ended),
                        ended: flags.intersects(ended),
                    }
                }
            }
        }));
        Ok(())
    }

    /// [`Socket::receive`] into the memory that the connections of the thread share.
    ///
    /// # Errors
    /// [`End::Gone`].
    pub(crate) fn receive(
        &mut self,
        socket: &mut Socket,
        received: &mut Buffer,
        wanted: Wanted,
    ) -> Result<Option<usize>, End> {
        socket.receive(received, wanted, &mut self.block)
    }

    /// Throws away what came; gives true where the socket may be closed.
    pub(crate) fn drain(&mut self, socket: &mut Socket, now_ns: u64) -> bool {
        socket.drain(&mut self.block, now_ns)
    }
}
