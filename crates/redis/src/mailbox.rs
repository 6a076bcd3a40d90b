//! How other threads reach a dispatch thread: new connections, woken tasks, the end. One lock that is held for a push or
//! a swap, and one system call where the thread sleeps.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

/// A connection of a thread; the second number tells it from earlier ones in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub place: u32,
    pub generation: u32,
}

impl Token {
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.place)
    }

    pub(crate) fn from_u64(value: u64) -> Self {
        Self { place: value as u32, generation: (value >> 32) as u32 }
    }
}

/// What lies in the mailbox.
#[derive(Default)]
pub(crate) struct Mail {
    pub woken: Vec<Token>,
    pub sockets: Vec<OwnedFd>,
    pub stop: bool,
}

/// The mailbox of one dispatch thread.
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    /// Whether the bell must be rung for the thread to look. Set before it looks into the mailbox for the last time, so
    /// that either it sees the mail or the sender sees this (both sequentially consistent).
    asleep: AtomicBool,
    bell: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { mail: Mutex::default(), asleep: AtomicBool::new(false), bell }))
    }

    /// What becomes readable when somebody rings.
    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Puts something in, and wakes the thread where it sleeps.
    pub(crate) fn send(&self, put: impl FnOnce(&mut Mail)) {
        put(&mut self.mail.lock());
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.ring();
        }
    }

    fn ring(&self) {
        // A full counter is a rung bell.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Whether the thread may go to sleep: nothing lies in the mailbox. From then on senders ring.
    pub(crate) fn may_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let mail = self.mail.lock();
        if mail.woken.is_empty() && mail.sockets.is_empty() && !mail.stop {
            return true;
        }
        self.asleep.store(false, Ordering::SeqCst);
        false
    }

    /// The thread is awake; silences the bell where it rang.
    pub(crate) fn awake(&self, rang: bool) {
        self.asleep.store(false, Ordering::SeqCst);
        if rang {
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        }
    }

    /// Whether the thread was told to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.mail.lock().stop
    }

    /// Takes everything out. `woken` gives its memory for the next mail.
    pub(crate) fn take(&self, woken: &mut Vec<Token>) -> (Vec<OwnedFd>, bool) {
        woken.clear();
        let mut mail = self.mail.lock();
        std::mem::swap(&mut mail.woken, woken);
        (std::mem::take(&mut mail.sockets), mail.stop)
    }
}

/// Wakes the tasks of one connection.
pub(crate) struct ConnectionWaker {
    pub mailbox: Arc<Mailbox>,
    pub token: Token,
    /// Whether the token lies in the mailbox already; cleared by the thread before it looks at the tasks.
    pub queued: AtomicBool,
}

impl Wake for ConnectionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.mailbox.send(|mail| mail.woken.push(self.token));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_sleeps_is_rung_once_and_nothing_is_lost() {
        let mailbox = Mailbox::new().unwrap();
        let token = Token { place: 7, generation: 9 };
        assert_eq!(Token::from_u64(token.to_u64()), token);
        let waker =
            Arc::new(ConnectionWaker { mailbox: mailbox.clone(), token, queued: AtomicBool::new(false) });
        let rang = || rustix::io::read(mailbox.bell(), &mut [0_u8; 8]).is_ok();
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert!(!rang(), "the thread is awake");
        assert!(!mailbox.may_sleep(), "there is mail");
        let mut woken = Vec::new();
        mailbox.take(&mut woken);
        assert_eq!(woken, [token]);
        assert!(mailbox.may_sleep());
        waker.queued.store(false, Ordering::Release);
        waker.wake_by_ref();
        assert!(rang());
        mailbox.awake(false);
        mailbox.take(&mut woken);
        assert_eq!(woken, [token]);
    }
}
