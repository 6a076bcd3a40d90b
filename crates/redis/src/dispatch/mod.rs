//! A dispatch thread: waits until something is ready, and handles all of it in one turn. Next: `connection/mod.rs`, which receives from
//! `socket.rs`.
//!
//! All writes of a turn are committed together, and each connection's answers leave in one call at the turn's end. The poll is
//! edge-triggered: every socket is registered once for both directions, and its readiness is remembered until a call would
//! block. So a request costs no call except its read and its write.

mod accept;

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll};
use rustix::net::sockopt;
use shoal_engine::Waiting;
use shoal_metrics::RefusalCause;

use self::accept::ACCEPT_PAUSE;
pub(crate) use self::accept::Accepting;
use crate::clients::{Addresses, Client};
use crate::command::call::ConnectionState;
use crate::connection::{Connection, End};
use crate::frontend::Frontend;
use crate::mailbox::{BELL, ConnectionToken, ConnectionWaker, LISTENER, Mailbox};
use crate::shared::{CHECK_PERIOD, Shared};
use crate::socket::{KEEPALIVE, Socket};
use crate::tls::Sealing;

/// Bytes that a connection receives in one turn, so that the others get theirs.
const TURN_BYTES_MAX: usize = 1 << 20;
/// Interval at which the thread looks for memory while its connections wait for it.
const MEMORY_PAUSE: Duration = Duration::from_millis(2);
/// Events taken in one call.
const EVENTS_MAX: usize = 256;
/// Number of unauthenticated connections that are closed when the process has no file for a new one.
const EVICTED_FOR_FILES: usize = 64;

/// A slot for a connection.
#[derive(Default)]
struct Slot {
    generation: u32,
    connection: Option<Box<(Socket, Connection)>>,
    /// True if it is among the touched ones of this turn.
    touched: bool,
}

/// A dispatch thread.
pub(crate) struct Dispatch<'a> {
    shared: Shared,
    mailbox: Arc<Mailbox>,
    poll: &'a mut Poll,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots with something to do in this turn, and in the next.
    touched: Vec<u32>,
    again: Vec<u32>,
    /// Slots whose connections wait for memory.
    short: Vec<u32>,
    /// Accepts for all threads; only the first thread has it.
    accepting: Option<Accepting>,
    /// The last check of the limits of time, on the clock for timeouts, and the last time with work.
    checked_ns: u64,
    worked_ns: u64,
}

impl<'a> Dispatch<'a> {
    pub(crate) fn new(
        frontend: Arc<Frontend>,
        mailbox: Arc<Mailbox>,
        poll: &'a mut Poll,
        accepting: Option<Accepting>,
    ) -> Self {
        if let Some(accepting) = &accepting {
            accepting.rearm(poll.registry());
        }
        let shared = Shared::new(Rc::new(frontend));
        let now_ns = shared.now_ns;
        Self {
            shared,
            mailbox,
            poll,
            slots: Vec::new(),
            free: Vec::new(),
            touched: Vec::new(),
            again: Vec::new(),
            short: Vec::new(),
            accepting,
            checked_ns: now_ns,
            worked_ns: now_ns,
        }
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// Those of the system, if it cannot poll any more.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut woken = Vec::new();
        let poll = self.shared.frontend.options.poll;
        loop {
            // More work often follows at once: polling for it is faster than a sleep and a wake-up.
            let polls = u128::from(self.shared.now_ns.saturating_sub(self.worked_ns)) < poll.as_nanos();
            let sleeps = !polls && self.again.is_empty() && self.mailbox.may_sleep();
            let is_paused = self.accepting.as_ref().is_some_and(Accepting::is_paused);
            let timeout = match (sleeps, is_paused) {
                (false, _) => Some(Duration::ZERO),
                (true, _) if !self.short.is_empty() => Some(MEMORY_PAUSE),
                (true, true) => Some(ACCEPT_PAUSE),
                // Without connections there are no limits of time: an event or the mailbox ends the sleep.
                (true, false) => (self.slots.len() > self.free.len()).then_some(CHECK_PERIOD),
            };
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            self.mailbox.awake();
            self.shared.look_at_clocks();
            let (sockets, stop) = self.mailbox.take(&mut woken);
            if stop {
                return Ok(());
            }
            let store = self.shared.frontend.store.clone();
            let nothing =
                events.is_empty() && woken.is_empty() && sockets.is_empty() && self.again.is_empty();
            if !nothing || is_paused || !self.short.is_empty() {
                self.worked_ns = self.shared.now_ns;
                store.turn(|| {
                    self.turn(&events, &woken, sockets);
                    self.waiting()
                });
                // The answers of writes committed by this thread leave before it starts others.
                let (sockets, stop) = self.mailbox.take(&mut woken);
                if stop {
                    return Ok(());
                }
                if !woken.is_empty() || !sockets.is_empty() {
                    events.clear();
                    store.gather(|| self.turn(&events, &woken, sockets));
                }
                self.send_all();
            }
            self.check_limits();
        }
    }

    /// The clients that wait for the writes of a turn. In relaxed mode no client waits for the device.
    fn waiting(&self) -> Waiting {
        let is_one = self.slots.len() - self.free.len() == 1 && !self.shared.frontend.is_relaxed();
        if is_one { Waiting::One } else { Waiting::Several }
    }

    fn turn(&mut self, events: &Events, woken: &[ConnectionToken], sockets: Vec<TcpStream>) {
        for index in std::mem::take(&mut self.again).into_iter().chain(std::mem::take(&mut self.short)) {
            self.touch(index);
        }
        for socket in sockets {
            self.add(socket);
        }
        for token in woken {
            if connection_of(&mut self.slots, *token).is_some() {
                self.touch(token.slot);
            }
        }
        if let Some(accepting) = &mut self.accepting {
            accepting.resume(self.shared.now_ns, self.poll.registry());
        }
        for event in events {
            match event.token() {
                BELL => {}
                LISTENER => self.accept(),
                token => self.note_ready(token.into(), event),
            }
        }
        let mut at = 0;
        while let Some(&index) = self.touched.get(at) {
            at += 1;
            if let Err(end) = self.advance(index) {
                self.end(index, end);
            }
        }
    }

    fn note_ready(&mut self, token: ConnectionToken, event: &Event) {
        if let Some((socket, _)) = connection_of(&mut self.slots, token) {
            let ended = event.is_read_closed() || event.is_error();
            socket.set_ready(event.is_readable() || ended, event.is_writable() || ended, ended);
            self.touch(token.slot);
        }
    }

    fn touch(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && !slot.touched
        {
            slot.touched = true;
            self.touched.push(index);
        }
    }

    /// Runs the turn of a connection: it continues its commands, and receives while it may and bytes are there.
    fn advance(&mut self, index: u32) -> Result<(), End> {
        let shared = &mut self.shared;
        let Some((socket, connection)) = at(&mut self.slots, index) else { return Ok(()) };
        if connection.is_to_end() {
            return Err(End::Killed);
        }
        if socket.is_lingering() {
            return if socket.drain(&mut shared.block, shared.awake_ns) { Err(End::Done) } else { Ok(()) };
        }
        let mut left = TURN_BYTES_MAX;
        while connection.advance(shared) && socket.is_readable() {
            if left == 0 {
                self.again.push(index);
                break;
            }
            if !connection.may_receive(shared) {
                self.short.push(index);
                break;
            }
            left = left.saturating_sub(connection.receive(socket, shared)?);
        }
        let is_too_much = connection.count_received(shared);
        shared.settle_memory();
        if is_too_much && !self.refuse_waiting() {
            return Err(End::TooMuch);
        }
        Ok(())
    }

    /// If all connections together have received too much, refuses those whose commands wait for them to take their answers,
    /// the largest first. False if that is not enough.
    fn refuse_waiting(&mut self) -> bool {
        let most = self.shared.frontend.options.limits.received_bytes_max;
        while self.shared.received > most || self.shared.frontend.memory.is_overfull() {
            let waiting = self.slots.iter().zip(0..).filter_map(|(slot, index)| {
                let (_, connection) = slot.connection.as_deref()?;
                Some((connection.waiting_bytes(&self.shared)?, index))
            });
            let Some((_, index)) = waiting.max() else { return false };
            self.refuse(index);
            self.shared.settle_memory();
        }
        true
    }

    /// Refuses a connection with too large a backlog.
    fn refuse(&mut self, index: u32) {
        let Some((_, connection)) = at(&mut self.slots, index) else { return };
        self.shared.frontend.metrics().add_refusal(RefusalCause::Memory);
        tracing::warn!(
            "connection {} is refused: it does not read its answers, and its backlog is too large",
            connection.client_id()
        );
        connection.refuse(&mut self.shared);
        connection.count_received(&mut self.shared);
        self.again.push(index);
    }

    /// Sends the answers of this turn. A connection that was held up by its own answers continues in the next.
    fn send_all(&mut self) {
        for index in std::mem::take(&mut self.touched) {
            if let Some(slot) = self.slots.get_mut(index as usize) {
                slot.touched = false;
            }
            if let Err(end) = self.send(index) {
                self.end(index, end);
            }
        }
        let commands = std::mem::take(&mut self.shared.commands);
        let frontend = &self.shared.frontend;
        frontend.commands.fetch_add(commands, Ordering::Relaxed);
        self.shared.figures.settle(frontend.metrics(), || frontend.clock.monotonic_ns());
        while self.shared.answers > self.shared.frontend.options.limits.answers_bytes_max
            && let Some(index) = self.slowest()
        {
            self.end(index, End::TooMuch);
        }
        self.shared.settle_memory();
    }

    fn send(&mut self, index: u32) -> Result<(), End> {
        let Some((socket, connection)) = at(&mut self.slots, index) else { return Ok(()) };
        let shared = &mut self.shared;
        connection.tell_finished(shared);
        connection.send(socket, shared)?;
        connection.count_answers(shared);
        connection.show(shared.now_ns);
        connection.check_stuck(socket, shared)?;
        if connection.is_done() {
            if !connection.is_closing() {
                return Err(End::Done);
            }
            socket.linger(shared.awake_ns);
            socket.set_ready(true, true, false);
            if socket.drain(&mut shared.block, shared.awake_ns) {
                return Err(End::Done);
            }
        } else if connection.wants_more(shared) && !self.again.contains(&index) {
            self.again.push(index);
        }
        Ok(())
    }

    /// The connection with the most untaken answers.
    fn slowest(&mut self) -> Option<u32> {
        let shared = &mut self.shared;
        let stuck = self.slots.iter_mut().zip(0..).filter_map(|(slot, index)| {
            let (socket, connection) = slot.connection.as_deref_mut()?;
            socket.stuck_since_ns()?;
            Some((connection.count_answers(shared), index))
        });
        stuck.max().map(|(_, index)| index)
    }

    /// Closes the connections above a limit of time: their clients do not take their answers, send too slowly, or do not close.
    fn check_limits(&mut self) {
        let now_ns = self.shared.awake_ns;
        if now_ns.saturating_sub(self.checked_ns) < CHECK_PERIOD.as_nanos() as u64 {
            return;
        }
        self.checked_ns = now_ns;
        let is_short = self.shared.frontend.memory.is_short();
        for index in 0..self.slots.len() as u32 {
            let Some((socket, connection)) = at(&mut self.slots, index) else { continue };
            let shared = &mut self.shared;
            let checked = connection.check(socket, shared, CHECK_PERIOD);
            let keeps = connection.keeps_memory(socket, shared);
            if let Err(end) = checked {
                self.end(index, end);
            } else if is_short && keeps {
                self.end(index, End::TooMuch);
            } else if socket.is_lingering() && socket.drain(&mut shared.block, now_ns) {
                self.end(index, End::Done);
            }
        }
    }

    /// Takes new connections and hands them to the threads in turn.
    fn accept(&mut self) {
        let Some(accepting) = self.accepting.as_mut().filter(|accepting| !accepting.is_paused()) else {
            return;
        };
        let (sockets, is_well) = accepting.accept(&self.mailbox, self.shared.now_ns, self.poll.registry());
        if !is_well {
            self.shared.frontend.clients.evict(EVICTED_FOR_FILES);
        }
        for socket in sockets {
            self.add(socket);
        }
    }

    fn add(&mut self, socket: TcpStream) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        match self.try_add(index, socket) {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::debug!("closed at once: {error}"),
        }
        self.free.push(index);
    }

    /// Puts a new connection into a slot; false if there are too many.
    fn try_add(&mut self, index: u32, socket: TcpStream) -> io::Result<bool> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEPALIVE)?;
        let frontend = self.shared.frontend.clone();
        let (peer, local) = (socket.peer_addr()?, socket.local_addr()?);
        let addresses = Addresses { peer, local, socket: socket.as_raw_fd() };
        let sealing = match &frontend.options.tls {
            None => None,
            Some(tls) => Some(Box::new(Sealing::new(tls).ok_or(io::ErrorKind::Unsupported)?)),
        };
        let Some(slot) = self.slots.get_mut(index as usize) else { return Ok(false) };
        slot.generation = slot.generation.wrapping_add(1) & 0x7FFF_FFFF;
        let token = ConnectionToken { slot: index, generation: slot.generation };
        let waker = ConnectionWaker::new(self.mailbox.clone(), token);
        let now_ms = self.shared.now_ns / 1_000_000;
        let new = |id| Client::new(id, addresses, now_ms, waker.clone());
        let Some(client) = frontend.clients.enter(new) else {
            let text = b"-ERR max number of clients reached\r\n";
            if sealing.is_none() {
                let _ = rustix::net::send(&socket, text, rustix::net::SendFlags::NOSIGNAL);
            }
            return Ok(false);
        };
        // Closing the socket unregisters it.
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), token.into(), both)?;
        let session = ConnectionState::new(client, !frontend.options.asks());
        let connection = Connection::new(session, waker, &frontend, sealing, self.shared.awake_ns);
        slot.connection = Some(Box::new((Socket::new(socket.into()), connection)));
        Ok(true)
    }

    fn end(&mut self, index: u32, end: End) {
        if end == End::Refused {
            return self.refuse(index);
        }
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let Some(mut ended) = slot.connection.take() else { return };
        let (_, connection) = &mut *ended;
        if matches!(end, End::Silent | End::Slow | End::TooMuch) {
            let cause = if end == End::TooMuch { RefusalCause::Memory } else { RefusalCause::Slow };
            self.shared.frontend.metrics().add_refusal(cause);
            tracing::warn!("connection {} was closed: {end:?}", connection.client_id());
        }
        if let End::Overdue(due) = end {
            let frontend = &self.shared.frontend;
            frontend.clients.note_overdue();
            let limit_s = frontend.options.limits.unauthenticated_max.as_secs_f64();
            tracing::info!(
                "connection {} was closed: it did not {due} within {limit_s} s",
                connection.client_id()
            );
        }
        connection.forget(&mut self.shared);
        self.free.push(index);
    }
}

/// The connection in a slot.
fn at(slots: &mut [Slot], index: u32) -> Option<&mut (Socket, Connection)> {
    slots.get_mut(index as usize)?.connection.as_deref_mut()
}

/// The connection that a token names.
fn connection_of(slots: &mut [Slot], token: ConnectionToken) -> Option<&mut (Socket, Connection)> {
    let slot = slots.get_mut(token.slot as usize)?;
    if slot.generation == token.generation { slot.connection.as_deref_mut() } else { None }
}
