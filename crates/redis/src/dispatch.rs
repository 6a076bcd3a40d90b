//! A dispatch thread: waits until something is ready, and handles all of it in one turn.
//!
//! All writes of a turn are handed to the committer together, and each connection's answers leave in one call at the
//! turn's end.

use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::sockopt;

use crate::clients::{Addresses, Entered};
use crate::command::Session;
use crate::connection::{Connection, End};
use crate::epoll::{Epoll, Ready};
use crate::face::Face;
use crate::mailbox::{ConnectionWaker, Mailbox, Token};
use crate::shared::Shared;
use crate::socket::{KEEPALIVE, Socket, Wanted};
use crate::tls::Sealing;

/// The thread looks for clients that do not take their answers so often.
const PATIENCE_PERIOD: Duration = Duration::from_secs(1);
/// Bytes that a connection receives in one turn, so that the others get theirs.
const TURN_BYTES_MAX: usize = 1 << 20;
/// New connections in one turn.
const ACCEPTS_MAX: usize = 64;
/// Connections that have shown nothing, which are closed where the process has no file for a new one.
const EVICTED_FOR_FILES: usize = 64;
/// Pause after a failed accept: it fails again at once where file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A failed accept is told no more often.
const TELL_PERIOD: Duration = Duration::from_secs(1);

/// One place for a connection.
struct Place {
    generation: u32,
    connection: Option<Box<(Socket, Connection)>>,
    /// Whether it is among the touched ones of this turn.
    touched: bool,
}

/// A dispatch thread.
pub(crate) struct Dispatch {
    shared: Shared,
    mailbox: Arc<Mailbox>,
    network: Epoll,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Places with something to do in this turn, and in the next.
    touched: Vec<u32>,
    again: Vec<u32>,
    /// Accepts for all threads, where this is the first one.
    accepting: Option<Accepting>,
    looked_ns: u64,
    /// When there was something to do.
    worked_ns: u64,
}

/// The listener, and whom its connections go to in turn.
pub(crate) struct Accepting {
    listener: Arc<TcpListener>,
    mailboxes: Vec<Arc<Mailbox>>,
    next: usize,
    /// Until when nothing is accepted.
    paused_until_ns: Option<u64>,
    /// When a failure was told last, and how many were not told since.
    told_ns: Option<u64>,
    untold: u64,
}

impl Accepting {
    pub(crate) fn new(listener: Arc<TcpListener>, mailboxes: Vec<Arc<Mailbox>>) -> Self {
        Self { listener, mailboxes, next: 0, paused_until_ns: None, told_ns: None, untold: 0 }
    }

    /// Whether a failure is told, as it may be now and then only: then how many were not since the last one.
    fn tells(&mut self, now_ns: u64) -> Option<u64> {
        let period_ns = TELL_PERIOD.as_nanos() as u64;
        if self.told_ns.is_some_and(|told_ns| now_ns.saturating_sub(told_ns) < period_ns) {
            self.untold += 1;
            return None;
        }
        self.told_ns = Some(now_ns);
        Some(std::mem::take(&mut self.untold))
    }
}

impl Dispatch {
    pub(crate) fn new(
        face: Arc<Face>,
        mailbox: Arc<Mailbox>,
        accepting: Option<Accepting>,
    ) -> std::io::Result<Self> {
        let mut network = Epoll::new(mailbox.bell())?;
        if let Some(accepting) = &accepting {
            network.listen(&accepting.listener)?;
        }
        let shared = Shared::new(Rc::new(face));
        let looked_ns = shared.now_ns;
        Ok(Self {
            shared,
            mailbox,
            network,
            places: Vec::new(),
            free: Vec::new(),
            touched: Vec::new(),
            again: Vec::new(),
            accepting,
            looked_ns,
            worked_ns: looked_ns,
        })
    }

    /// Serves until it is told to stop.
    ///
    /// # Errors
    /// As the system, where nothing can be waited for any more.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let mut ready = Vec::new();
        let mut woken = Vec::new();
        let poll = self.shared.face.options.poll;
        loop {
            // Right after work there often is more: looking for it takes less time than falling asleep and waking.
            let polls = u128::from(self.shared.now_ns.saturating_sub(self.worked_ns)) < poll.as_nanos();
            let sleeps = !polls && self.again.is_empty() && self.mailbox.may_sleep();
            let timeout = if sleeps { PATIENCE_PERIOD } else { Duration::ZERO };
            self.network.wait(self.pause(timeout), &mut ready)?;
            self.mailbox.awake(ready.contains(&Ready::Bell));
            self.shared.now_ns = self.shared.face.clock.monotonic_ns();
            let (sockets, stop) = self.mailbox.take(&mut woken);
            if stop {
                return Ok(());
            }
            let store = self.shared.face.store.clone();
            let nothing = ready.is_empty() && woken.is_empty() && sockets.is_empty() && self.again.is_empty();
            if !nothing || self.is_paused() {
                self.worked_ns = self.shared.now_ns;
                store.gather(|| self.turn(&ready, &woken, sockets));
                self.send_all();
            }
            self.look_for_patience();
        }
    }

    fn is_paused(&self) -> bool {
        self.accepting.as_ref().is_some_and(|accepting| accepting.paused_until_ns.is_some())
    }

    /// No longer than until connections are accepted again.
    fn pause(&self, timeout: Duration) -> Duration {
        if self.is_paused() { timeout.min(ACCEPT_PAUSE) } else { timeout }
    }

    fn turn(&mut self, ready: &[Ready], woken: &[Token], sockets: Vec<OwnedFd>) {
        for index in std::mem::take(&mut self.again) {
            self.touch(index);
        }
        for socket in sockets {
            self.add(socket);
        }
        for token in woken {
            if connection_of(&mut self.places, *token).is_some() {
                self.touch(token.place);
            }
        }
        self.resume_accepting();
        for event in ready {
            match *event {
                Ready::Bell => {}
                Ready::Listener => self.accept(),
                Ready::Socket { token, readable, writable, ended } => {
                    if let Some((socket, _)) = connection_of(&mut self.places, token) {
                        socket.set_ready(readable, writable, ended);
                        self.touch(token.place);
                    }
                }
            }
        }
        let mut at = 0;
        while let Some(&index) = self.touched.get(at) {
            at += 1;
            self.advance(index);
        }
    }

    fn touch(&mut self, index: u32) {
        if let Some(place) = self.places.get_mut(index as usize)
            && !place.touched
        {
            place.touched = true;
            self.touched.push(index);
        }
    }

    /// Gives a connection its turn.
    fn advance(&mut self, index: u32) {
        let Some((socket, connection)) =
            self.places.get_mut(index as usize).and_then(|place| place.connection.as_deref_mut())
        else {
            return;
        };
        if connection.is_to_end() {
            return self.end(index, End::Killed);
        }
        if socket.is_lingering() {
            if self.network.drain(socket, self.shared.now_ns) {
                self.end(index, End::Done);
            }
            return;
        }
        match turn_of(&mut self.network, socket, connection, &mut self.shared) {
            Ok(turn) => {
                if turn.more {
                    self.again.push(index);
                }
                if turn.too_much && !self.refuse_waiting() {
                    self.end(index, End::TooMuch);
                }
            }
            Err(end) => self.end(index, end),
        }
    }

    /// Where all connections have too much in memory that came: refuses those whose commands wait for them to take their answers,
    /// those with most first. False where that is not enough.
    fn refuse_waiting(&mut self) -> bool {
        let most = self.shared.face.options.limits.received_bytes_max;
        while self.shared.received > most {
            let waiting = self.places.iter().zip(0..).filter_map(|(place, index)| {
                let (_, connection) = place.connection.as_deref()?;
                Some((connection.waiting_bytes(&self.shared)?, index))
            });
            let Some((_, index)) = waiting.max() else { return false };
            self.refuse(index);
        }
        true
    }

    /// Tells a connection that too much waits in it.
    fn refuse(&mut self, index: u32) {
        let place = self.places.get_mut(index as usize);
        let Some((_, connection)) = place.and_then(|place| place.connection.as_deref_mut()) else {
            return;
        };
        tracing::warn!(
            "connection {} is refused: it does not take its answers, and too much waits",
            connection.client_id()
        );
        connection.refuse(&mut self.shared);
        connection.count_received(&mut self.shared);
        self.again.push(index);
    }

    /// Sends the answers of this turn. A connection that was held up by its own answers goes on in the next.
    fn send_all(&mut self) {
        for index in std::mem::take(&mut self.touched) {
            let Some(place) = self.places.get_mut(index as usize) else { continue };
            place.touched = false;
            let Some((socket, connection)) = place.connection.as_deref_mut() else { continue };
            if let Err(end) = send_to(socket, connection, self.shared.now_ns) {
                self.end(index, end);
                continue;
            }
            connection.count_answers(&mut self.shared);
            let unsent = connection.sealed_bytes().unwrap_or(0);
            connection.show(self.shared.now_ns);
            if let Some(since_ns) = socket.stuck_since_ns() {
                let stuck_ns = self.shared.now_ns.saturating_sub(since_ns);
                if connection.is_given_up(stuck_ns, self.shared.now_ns) {
                    self.end(index, End::TooMuch);
                    continue;
                }
                if connection.is_over_full(&self.shared, stuck_ns) {
                    self.refuse(index);
                    continue;
                }
            }
            if connection.is_done() && unsent == 0 {
                if connection.is_closing() {
                    socket.linger(self.shared.now_ns);
                    socket.set_ready(true, true, false);
                }
                if !connection.is_closing() || self.network.drain(socket, self.shared.now_ns) {
                    self.end(index, End::Done);
                }
            } else if connection.wants_more(&self.shared) && !self.again.contains(&index) {
                self.again.push(index);
            }
        }
        let commands = std::mem::take(&mut self.shared.commands);
        self.shared.face.commands.fetch_add(commands, Ordering::Relaxed);
        while self.shared.answers > self.shared.face.options.limits.answers_bytes_max
            && let Some(index) = self.slowest()
        {
            self.end(index, End::TooMuch);
        }
    }

    /// Of those that do not take their answers, the connection with most of them.
    fn slowest(&mut self) -> Option<u32> {
        let shared = &mut self.shared;
        let stuck = self.places.iter_mut().zip(0..).filter_map(|(place, index)| {
            let (socket, connection) = place.connection.as_deref_mut()?;
            socket.stuck_since_ns()?;
            Some((connection.count_answers(shared), index))
        });
        stuck.max().map(|(_, index)| index)
    }

    /// Looks for those that do not take their answers, or do not go.
    fn look_for_patience(&mut self) {
        let now_ns = self.shared.now_ns;
        if now_ns.saturating_sub(self.looked_ns) < PATIENCE_PERIOD.as_nanos() as u64 {
            return;
        }
        self.looked_ns = now_ns;
        let most = self.shared.face.options.limits.silence_max.as_nanos();
        for index in 0..self.places.len() as u32 {
            let place = self.places.get_mut(index as usize);
            let Some((socket, connection)) = place.and_then(|place| place.connection.as_deref_mut()) else {
                continue;
            };
            connection.look_for_room(&mut self.shared);
            let is_slow = !socket.is_lingering() && connection.is_too_slow(&self.shared, PATIENCE_PERIOD);
            let stuck = socket.stuck_since_ns().map_or(0, |since| now_ns.saturating_sub(since));
            let fed = now_ns.saturating_sub(connection.fed_ns(&self.shared, PATIENCE_PERIOD));
            if stuck > 0 && connection.is_given_up(stuck, now_ns) {
                self.end(index, End::TooMuch);
            } else if connection.is_over_full(&self.shared, stuck) {
                self.refuse(index);
            } else if u128::from(stuck.min(fed)) > most {
                self.end(index, End::Silent);
            } else if is_slow {
                self.end(index, End::Slow);
            } else if connection.is_overdue(&self.shared) {
                self.end(index, End::Overdue);
            } else if socket.is_lingering() && self.network.drain(socket, now_ns) {
                self.end(index, End::Done);
            }
        }
    }

    fn resume_accepting(&mut self) {
        let now_ns = self.shared.now_ns;
        if let Some(accepting) = &mut self.accepting
            && accepting.paused_until_ns.take_if(|until| *until <= now_ns).is_some()
            && let Err(error) = self.network.listen(&accepting.listener)
        {
            tracing::error!("no more connections are accepted: {error}");
        }
    }

    /// Takes new connections and hands them to the threads in turn.
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let Some(accepting) = &mut self.accepting else { return };
            match accepting.listener.accept() {
                Ok((stream, _)) => {
                    accepting.next = (accepting.next + 1) % accepting.mailboxes.len();
                    let socket = OwnedFd::from(stream);
                    match accepting.mailboxes.get(accepting.next) {
                        Some(mailbox) if !Arc::ptr_eq(mailbox, &self.mailbox) => {
                            mailbox.send(|mail| mail.sockets.push(socket));
                        }
                        _ => self.add(socket),
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    if let Some(untold) = accepting.tells(self.shared.now_ns) {
                        tracing::warn!("cannot accept a connection: {error} ({untold} more were not told)");
                    }
                    self.shared.face.clients.evict(EVICTED_FOR_FILES);
                    self.network.stop_listening(&accepting.listener);
                    let pause = ACCEPT_PAUSE.as_nanos() as u64;
                    accepting.paused_until_ns = Some(self.shared.now_ns + pause);
                    return;
                }
            }
        }
    }

    fn add(&mut self, socket: OwnedFd) {
        if let Err(error) = self.try_add(socket) {
            tracing::debug!("closed: it ended at once: {error}");
        }
    }

    fn try_add(&mut self, socket: OwnedFd) -> std::io::Result<()> {
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEPALIVE)?;
        let address = |address: rustix::net::SocketAddrAny| std::net::SocketAddr::try_from(address);
        let peer = address(rustix::net::getpeername(&socket)?.ok_or(rustix::io::Errno::NOTCONN)?)?;
        let local = address(rustix::net::getsockname(&socket)?)?;
        let face = self.shared.face.clone();
        let addresses = Addresses { peer, local, socket: socket.as_raw_fd() };
        let sealing = match &face.options.tls {
            None => None,
            Some(tls) => Some(Box::new(Sealing::new(tls).ok_or(std::io::ErrorKind::Unsupported)?)),
        };
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.places.push(Place { generation: 0, connection: None, touched: false });
                self.places.len() as u32 - 1
            }
        };
        let Some(place) = self.places.get_mut(index as usize) else { return Ok(()) };
        place.generation = place.generation.wrapping_add(1) & 0x7FFF_FFFF;
        let token = Token { place: index, generation: place.generation };
        let waker = Arc::new(ConnectionWaker {
            mailbox: self.mailbox.clone(),
            token,
            queued: AtomicBool::new(false),
        });
        let now_ms = self.shared.now_ns / 1_000_000;
        let Some(client) = Entered::new(&face, addresses, now_ms, waker.clone()) else {
            self.free.push(index);
            let text = b"-ERR max number of clients reached\r\n";
            if face.options.tls.is_none() {
                let _ = rustix::net::send(&socket, text, rustix::net::SendFlags::NOSIGNAL);
            }
            return Ok(());
        };
        let socket = match self.network.add(socket, token) {
            Ok(socket) => socket,
            Err(error) => {
                self.free.push(index);
                return Err(error);
            }
        };
        let session = Session::new(client, face.options.password.is_none());
        let mut connection = Connection::new(session, waker, &face);
        connection.set_sealing(sealing);
        place.connection = Some(Box::new((socket, connection)));
        Ok(())
    }

    fn end(&mut self, index: u32, end: End) {
        let Some(place) = self.places.get_mut(index as usize) else { return };
        let Some(ended) = place.connection.take() else { return };
        let (socket, mut connection) = *ended;
        if matches!(end, End::Silent | End::Slow | End::TooMuch) {
            tracing::warn!("connection {} was closed: {end:?}", connection.client_id());
        }
        if end == End::Overdue {
            self.shared.face.clients.overdue.fetch_add(1, Ordering::Relaxed);
            tracing::info!("connection {} was closed: it showed no password in time", connection.client_id());
        }
        connection.forget(&mut self.shared);
        self.network.remove(socket);
        debug_assert_eq!(connection.token().place, index);
        self.free.push(index);
    }
}

/// The connection that a token names.
fn connection_of(places: &mut [Place], token: Token) -> Option<&mut (Socket, Connection)> {
    let place = places.get_mut(token.place as usize)?;
    if place.generation == token.generation { place.connection.as_deref_mut() } else { None }
}

/// Sends what a connection has to say, as far as its socket takes it now.
fn send_to(socket: &mut Socket, connection: &mut Connection, now_ns: u64) -> Result<(), End> {
    loop {
        let outgoing = connection.outgoing();
        let is_nothing = outgoing.is_empty();
        socket.send(outgoing, now_ns)?;
        // What is sealed is a part of the answers: where all of it was taken, there may be more.
        if is_nothing || !connection.has_more_to_seal() {
            return Ok(());
        }
    }
}

/// What a turn of a connection came to.
struct Turn {
    /// It has more to do in the next turn.
    more: bool,
    /// With what came for it, the connections have too much in memory.
    too_much: bool,
}

/// A turn of one connection: it goes on with what it can, and receives as long as it may and there is something.
fn turn_of(
    network: &mut Epoll,
    socket: &mut Socket,
    connection: &mut Connection,
    shared: &mut Shared,
) -> Result<Turn, End> {
    let mut left = TURN_BYTES_MAX;
    let more = loop {
        let wants = connection.advance(shared);
        if !(wants && socket.is_readable()) {
            break false;
        }
        if left == 0 {
            break true;
        }
        if let Some(sealed) = connection.sealed_received() {
            match network.receive(socket, sealed, Wanted::default())? {
                Some(count) => {
                    connection.note_received(count);
                    connection.open_received();
                    left = left.saturating_sub(count);
                }
                None => connection.set_ended(),
            }
            continue;
        }
        let received = match connection.room(shared) {
            Some((room, received)) => socket.receive_into(room, received)?,
            None => {
                let wanted = connection.wanted();
                network.receive(socket, connection.received(), wanted)?
            }
        };
        match received {
            Some(count) => {
                connection.note_received(count);
                left = left.saturating_sub(count);
            }
            None => connection.set_ended(),
        }
    };
    let too_much = connection.count_received(shared);
    Ok(Turn { more, too_much })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where file descriptors had run out there were twenty lines a second of it.
    #[test]
    fn failures_to_accept_are_told_once_a_second() {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let mut accepting = Accepting::new(listener, Vec::new());
        let told: Vec<_> =
            (0..50).filter_map(|at| accepting.tells(at * ACCEPT_PAUSE.as_nanos() as u64)).collect();
        assert_eq!(told, [0, 19, 19], "50 failures in two and a half seconds");
    }
}
