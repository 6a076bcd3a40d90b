//! Messages from other threads to a dispatch thread: new connections, woken tasks, the end. One lock that is held for a push or
//! a swap, and one system call if the thread sleeps: a plugged thread makes one for all its messages ([`shoal_base::plug`]).

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use mio::{Registry, Token};
use parking_lot::Mutex;
use shoal_base::plug::{Hold, may_hold};

/// A thread's poll reports this when its mailbox's bell rings.
pub(crate) const BELL: Token = Token(usize::MAX);
/// The accepting thread's poll reports this when a connection arrives.
pub(crate) const LISTENER: Token = Token(usize::MAX - 1);

/// A connection of a thread; the generation distinguishes it from earlier ones in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionToken {
    pub slot: u32,
    pub generation: u32,
}

impl From<ConnectionToken> for Token {
    fn from(token: ConnectionToken) -> Self {
        Self((token.generation as usize) << 32 | token.slot as usize)
    }
}

impl From<Token> for ConnectionToken {
    fn from(Token(value): Token) -> Self {
        Self { slot: value as u32, generation: (value >> 32) as u32 }
    }
}

/// The content of a mailbox.
#[derive(Default)]
pub(crate) struct Mail {
    pub woken: Vec<ConnectionToken>,
    pub sockets: Vec<TcpStream>,
    pub stop: bool,
}

/// The mailbox of one dispatch thread.
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    /// True if the thread looks only when the bell rings. Set before its last look into the mailbox, so that either it sees the
    /// mail, or the sender, which stored the mail before, sees the flag (the lock orders the two).
    asleep: AtomicBool,
    bell: mio::Waker,
}

impl Mailbox {
    /// A mailbox whose bell wakes the poll of `registry`.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn new(registry: &Registry) -> std::io::Result<Arc<Self>> {
        let bell = mio::Waker::new(registry, BELL)?;
        Ok(Arc::new(Self { mail: Mutex::default(), asleep: AtomicBool::new(false), bell }))
    }

    /// Adds mail, and wakes the thread if it sleeps; a plugged sender wakes it at the end of its turn.
    pub(crate) fn send(self: &Arc<Self>, put: impl FnOnce(&mut Mail)) {
        put(&mut self.mail.lock());
        if self.asleep.load(Ordering::SeqCst) && !may_hold(self) {
            self.start_held();
        }
    }

    /// Returns true if the thread may sleep, because the mailbox is empty. From then on senders ring.
    pub(crate) fn may_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let mail = self.mail.lock();
        if mail.woken.is_empty() && mail.sockets.is_empty() && !mail.stop {
            return true;
        }
        self.asleep.store(false, Ordering::SeqCst);
        false
    }

    /// The thread is awake: senders need not ring.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Returns true if the thread was stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.mail.lock().stop
    }

    /// Takes everything out. `woken` becomes the buffer of the next mail.
    pub(crate) fn take(&self, woken: &mut Vec<ConnectionToken>) -> (Vec<TcpStream>, bool) {
        woken.clear();
        let mut mail = self.mail.lock();
        std::mem::swap(&mut mail.woken, woken);
        (std::mem::take(&mut mail.sockets), mail.stop)
    }
}

impl Hold for Mailbox {
    /// Rings the bell of a thread that sleeps.
    fn start_held(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Err(error) = self.bell.wake()
        {
            tracing::error!("a dispatch thread of the Redis frontend cannot be woken: {error}");
        }
    }
}

/// Wakes the tasks of one connection.
pub(crate) struct ConnectionWaker {
    pub mailbox: Arc<Mailbox>,
    pub token: ConnectionToken,
    /// True if the token is in the mailbox already; cleared by the thread before it looks at the tasks.
    pub queued: AtomicBool,
}

impl ConnectionWaker {
    /// The waker of a new connection.
    pub(crate) fn new(mailbox: Arc<Mailbox>, token: ConnectionToken) -> Arc<Self> {
        Arc::new(Self { mailbox, token, queued: AtomicBool::new(false) })
    }
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
    use std::time::Duration;

    use mio::{Events, Poll};
    use shoal_base::plug::plug;

    use super::*;

    #[test]
    fn sleeping_thread_wakes_once_and_loses_no_mail() {
        let mut poll = Poll::new().unwrap();
        let mailbox = Mailbox::new(poll.registry()).unwrap();
        let token = ConnectionToken { slot: 7, generation: 9 };
        assert_eq!(ConnectionToken::from(Token::from(token)), token);
        let waker = ConnectionWaker::new(mailbox.clone(), token);
        let mut events = Events::with_capacity(4);
        let mut rang = || {
            poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
            events.iter().any(|event| event.token() == BELL)
        };
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
        assert!(!rang(), "it is heard once");
        mailbox.awake();
        mailbox.take(&mut woken);
        assert_eq!(woken, [token]);
    }

    #[test]
    fn plugged_thread_wakes_receiver_once() {
        let mut poll = Poll::new().unwrap();
        let mailbox = Mailbox::new(poll.registry()).unwrap();
        let tokens = [0, 1].map(|slot| ConnectionToken { slot, generation: 1 });
        let wakers = tokens.map(|token| ConnectionWaker::new(mailbox.clone(), token));
        let mut events = Events::with_capacity(4);
        let mut rang = || {
            poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
            !events.is_empty()
        };
        assert!(mailbox.may_sleep());
        plug(|| {
            wakers.iter().for_each(ConnectionWaker::wake_by_ref);
            assert!(!rang(), "the turn goes on");
        });
        assert!(rang());
        let mut woken = Vec::new();
        mailbox.take(&mut woken);
        assert_eq!(woken, tokens);
    }
}
