//! Readiness: epoll, edge-triggered. Every socket is registered once for both directions; whether it may be read or
//! written is then remembered until a call says that it would block, so a request costs no call but its read and its
//! write.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::mailbox::Token;

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

/// An epoll instance.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub(crate) fn new(bell: &impl AsFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, bell, EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Watches a listening socket, level-triggered.
    pub(crate) fn add_listener(&self, listener: &impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?)
    }

    /// Stops watching it.
    pub(crate) fn remove(&self, socket: &impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Watches a connection until it is closed.
    pub(crate) fn add(&self, socket: &impl AsFd, token: Token) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token.to_u64()), flags)?)
    }

    /// Waits until something is ready, at most for `timeout`, and puts it into `ready`.
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
}
