//! One connection, without its socket: requests in, answers out, in the order of the requests.
//!
//! Commands start in the order of their arrival, and several may be in progress: reads that wait for the device, writes that
//! wait for the log. A write blocks later commands on its keys only until it has its place in the order of writes; reads then
//! see it although it is not durable yet, and their answers wait for it. Answers leave in order.
//!
//! `input` holds received bytes, `start` starts commands, `fast_path` the short GETs and SETs among them, and `in_flight` keeps the
//! started ones until their answers leave. `backlog` has the commands that wait for a client that takes no answers, and `limits` closes
//! connections that neither side closed.

mod backlog;
mod fast_path;
mod in_flight;
mod input;
mod limits;
mod start;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shoal_buffer::Buffer;

use self::backlog::Backlog;
use self::in_flight::InFlight;
use self::input::Input;
pub(crate) use self::limits::End;
use self::limits::TAKES_NOTHING_MIN;
use crate::answer::{Answer, pinned_bytes};
use crate::command::call::{Command, ConnectionState};
use crate::command::table;
use crate::frontend::FrontendRef;
use crate::mailbox::ConnectionWaker;
use crate::memory::LONG_BYTES;
use crate::shared::Shared;
use crate::socket::{Gone, Socket, Wanted};
use crate::timing::FinishedCommands;
use crate::tls::{Opened, Sealing};

/// A connection.
pub(crate) struct Connection {
    session: ConnectionState,
    waker: Arc<ConnectionWaker>,
    input: Input,
    queue: InFlight,
    /// Answers that were not sent, or not sealed.
    out: Buffer,
    /// The TLS between the connection and its socket.
    sealing: Option<Box<Sealing>>,
    /// Bytes of `out` and of the queue that are counted among the thread's answers, and cache bytes pinned by them.
    counted_answers: usize,
    pinned: usize,
    /// Commands and answers that wait for a client that takes no answers.
    backlog: Backlog,
    /// More input was wanted from the socket in its last turn.
    is_listened_to: bool,
    /// Its last command, and its subcommand.
    last: Option<(&'static Command, usize)>,
    /// The arrival of the last byte of commands that have not started, and whether all of them have started since.
    came_ns: u64,
    has_started_all: bool,
    /// Commands answered in this turn.
    finished: FinishedCommands,
    /// Its start, on the clock for timeouts.
    began_ns: u64,
}

impl Connection {
    /// A new connection; with `sealing` it speaks TLS from the first byte.
    pub(crate) fn new(
        session: ConnectionState,
        waker: Arc<ConnectionWaker>,
        frontend: &FrontendRef,
        sealing: Option<Box<Sealing>>,
        began_ns: u64,
    ) -> Self {
        Self {
            input: Input::new(&frontend.options.limits, session.authenticated),
            session,
            waker,
            queue: InFlight::default(),
            out: Buffer::new(),
            sealing,
            counted_answers: 0,
            pinned: 0,
            backlog: Backlog::default(),
            is_listened_to: false,
            last: None,
            came_ns: 0,
            has_started_all: true,
            finished: FinishedCommands::default(),
            began_ns,
        }
    }

    /// The step that its client must take before its time is over; `None` if it may be idle. Without a password, a client need
    /// not send anything.
    pub(crate) fn is_due(&self) -> Option<&'static str> {
        let is_agreed = self.sealing.as_ref().is_none_or(|sealing| sealing.is_agreed());
        match (self.session.client.may_stay(), self.session.authenticated, is_agreed) {
            (true, ..) | (false, true, true) => None,
            (false, true, false) => Some("agree on TLS"),
            (false, false, _) => Some("show the password or a key"),
        }
    }

    pub(crate) fn client_id(&self) -> u64 {
        self.session.client.id
    }

    /// Receives once; returns the number of bytes.
    ///
    /// # Errors
    /// [`Gone`].
    pub(crate) fn receive(&mut self, socket: &mut Socket, shared: &mut Shared) -> Result<usize, Gone> {
        if self.has_started_all {
            self.came_ns = shared.now_ns;
        }
        let before = self.input.received.len();
        let received = match &mut self.sealing {
            Some(sealing) => {
                let received = socket.receive(sealing.raw(), Wanted::default(), &mut shared.block)?;
                match sealing.open(self.input.received()) {
                    Opened::Open => {}
                    Opened::Ended => self.input.ended = true,
                    Opened::Broken => {
                        self.input.received.clear();
                        self.out.clear();
                        self.session.closing = true;
                    }
                }
                received
            }
            None => {
                let session = &self.session;
                let takes_values = session.transaction.is_none()
                    && !session.closing
                    && session.may_everything(&shared.frontend);
                self.input.receive(socket, shared, takes_values, self.backlog.is_held_up)?
            }
        };
        let Some(count) = received else {
            self.input.ended = true;
            return Ok(0);
        };
        let opened =
            if self.sealing.is_some() { self.input.received.len().saturating_sub(before) } else { count };
        shared.figures.received_bytes += opened as u64;
        self.input.rate.came(count);
        self.input.came_since_check += count;
        self.backlog.came(count);
        Ok(count)
    }

    /// Sends its answers, as far as its socket accepts them now.
    ///
    /// # Errors
    /// [`Gone`].
    pub(crate) fn send(&mut self, socket: &mut Socket, shared: &mut Shared) -> Result<(), Gone> {
        let before = self.out.len();
        let sent = self.send_some(socket, shared.awake_ns);
        shared.figures.sent_bytes += (before - self.out.len()) as u64;
        sent
    }

    fn send_some(&mut self, socket: &mut Socket, now_ns: u64) -> Result<(), Gone> {
        let ends = self.says_no_more();
        let Some(sealing) = &mut self.sealing else { return socket.send(&mut self.out, now_ns) };
        loop {
            sealing.seal(&mut self.out, ends);
            let is_nothing = sealing.sealed().is_empty();
            socket.send(sealing.sealed(), now_ns)?;
            // The sealed bytes are only a part of the answers: if the socket took all of them, there may be more.
            if is_nothing || self.out.is_empty() || !sealing.sealed().is_empty() {
                return Ok(());
            }
        }
    }

    /// Adds the commands answered in this turn to the figures of the thread.
    pub(crate) fn tell_finished(&mut self, shared: &mut Shared) {
        shared.figures.take(self.session.client.addresses.peer, &mut self.finished);
    }

    /// Returns true if no more commands are parsed, because the connection closes when its answers are sent.
    pub(crate) fn is_closing(&self) -> bool {
        self.session.closing
    }

    /// Removes a closed connection from the counts of the thread's memory.
    pub(crate) fn forget(&mut self, shared: &mut Shared) {
        shared.frontend.memory.end_exemption(self.session.client.id);
        shared.received -= std::mem::take(&mut self.input.counted);
        shared.answers -= std::mem::take(&mut self.counted_answers);
        shared.pinned -= std::mem::take(&mut self.pinned);
        self.input.close_buffer(shared);
    }

    /// Continues started commands, and starts received ones that may start; returns true if more input is wanted from the
    /// socket. A command that must wait is woken through the mailbox.
    pub(crate) fn advance(&mut self, shared: &mut Shared) -> bool {
        self.queue.turn_ns = shared.now_ns;
        self.poll_in_flight(shared);
        loop {
            let all_started = self.start_commands(shared);
            self.has_started_all = all_started;
            let before = (self.queue.len(), self.queue.bytes());
            self.poll_in_flight(shared);
            // A started command may be complete already, and then commands that wait for it may start.
            if all_started || (self.queue.len(), self.queue.bytes()) == before {
                self.is_listened_to = all_started && !self.session.closing && !self.input.ended;
                // Before its client can learn of it.
                if self.last.is_some() && self.session.authenticated {
                    self.session.client.set_authenticated();
                }
                self.show_transaction();
                return self.is_listened_to || self.is_read_on(shared);
            }
        }
    }

    /// Returns true if it is still read although no more of its commands start: a client may write everything before it takes
    /// an answer. Bytes after the last accepted command are thrown away.
    fn is_read_on(&mut self, shared: &mut Shared) -> bool {
        if self.input.ended {
            return false;
        }
        if self.session.closing {
            self.input.close_buffer(shared);
            self.backlog.throw_away(&mut self.input.received);
            return self.backlog.may_throw_away();
        }
        let limits = &shared.frontend.options.limits;
        self.is_held_up_by_client(limits.answer_bytes_max) && self.pending_bytes() < limits.pending_bytes_max
    }

    /// Returns true if it waits only for its client, which has not taken its answers.
    fn is_held_up_by_client(&self, answers_max: usize) -> bool {
        self.backlog.is_held_up && self.out.len() + self.backlog.unsent >= answers_max
    }

    /// Bytes of the answers that its client has not taken, and of the commands after them.
    fn pending_bytes(&self) -> usize {
        self.input.bytes() + self.out.len() + self.backlog.unsent
    }

    /// Bytes of answers, including future ones.
    fn answer_bytes(&self) -> usize {
        self.out.len() + self.backlog.unsent + self.queue.bytes()
    }

    /// Bytes of commands that wait for its client to take answers; `None` if they do not.
    pub(crate) fn waiting_bytes(&self, shared: &Shared) -> Option<usize> {
        let answers_max = shared.frontend.options.limits.answer_bytes_max;
        let waits = !self.session.closing && self.is_held_up_by_client(answers_max);
        (waits && !self.input.received.is_empty()).then(|| self.input.received.len())
    }

    /// Discards the waiting commands: an error after the answers reports this, and the connection closes.
    pub(crate) fn refuse(&mut self, shared: &mut Shared) {
        let most = shared.frontend.options.limits.pending_bytes_max;
        self.input.clear(shared);
        self.session.closing = true;
        self.backlog.refuse(shared.awake_ns);
        self.answer(Answer::Error(
            format!(
                "ERR this connection's commands and untaken answers have more than {most} bytes, or those of all connections \
                 more than allowed: nothing after this point was executed; take answers while you send"
            )
            .into(),
        ));
    }

    /// Returns true if it may receive more: it has little of a command, or there is memory for long ones. Otherwise its client
    /// waits.
    pub(crate) fn may_receive(&mut self, shared: &Shared) -> bool {
        let (memory, id) = (&shared.frontend.memory, self.session.client.id);
        if !memory.is_short() || !self.input.is_long() {
            memory.end_exemption(id);
            return true;
        }
        // A client that the server does not read from is not too slow.
        self.is_listened_to = memory.may_receive(id);
        self.is_listened_to
    }

    /// Returns true if it holds much memory and makes no progress: its client takes none of its answers, or sends hardly
    /// anything of a long command. Such connections are closed when memory is short. Called at every check of the limits of
    /// time.
    pub(crate) fn keeps_memory(&mut self, socket: &Socket, shared: &Shared) -> bool {
        let stuck_ns = socket.stuck_since_ns().map_or(0, |since| shared.now_ns.saturating_sub(since));
        let takes_nothing =
            u128::from(stuck_ns) >= TAKES_NOTHING_MIN.as_nanos() && self.counted_answers >= LONG_BYTES;
        let is_awaited = self.is_listened_to && self.queue.is_empty() && self.input.counted >= LONG_BYTES;
        let sends_nothing = self.input.sends_nothing(is_awaited);
        takes_nothing || sends_nothing
    }

    /// Updates the thread's count of unfinished commands; returns true if this command's growth exceeds the limit.
    pub(crate) fn count_received(&mut self, shared: &mut Shared) -> bool {
        self.input.count(shared, self.session.held_bytes())
    }

    /// Updates the thread's count of cache memory pinned by waiting answers; above the limit, copies this connection's.
    fn count_pinned(&mut self, shared: &mut Shared) {
        let mut now = pinned_bytes(&self.out) + self.queue.pinned_bytes();
        if now > self.pinned && shared.pinned - self.pinned + now > shared.pinned_max {
            self.out.own();
            self.queue.own_answers();
            now = 0;
        }
        shared.pinned = shared.pinned - self.pinned + now;
        self.pinned = now;
    }

    /// Updates the thread's count of answers; returns this connection's.
    pub(crate) fn count_answers(&mut self, shared: &mut Shared) -> usize {
        self.backlog.unsent = self.sealing.as_mut().map_or(0, |sealing| sealing.sealed().len());
        self.count_pinned(shared);
        let now = self.answer_bytes();
        shared.answers = shared.answers - self.counted_answers + now;
        self.counted_answers = now;
        now
    }

    /// Returns true if everything was sent: no more commands are parsed or arrive, and none is in progress. Call
    /// [`Self::count_answers`] first.
    pub(crate) fn is_done(&self) -> bool {
        self.says_no_more() && self.out.is_empty() && self.backlog.unsent == 0
    }

    fn says_no_more(&self) -> bool {
        let waits = self.input.is_holding() || self.input.has_value() || self.backlog.is_held_up;
        let said_all = self.session.closing || (self.input.ended && !waits);
        said_all && self.queue.is_empty()
    }

    /// Returns true if commands that waited only for its client to take answers may continue.
    pub(crate) fn wants_more(&self, shared: &Shared) -> bool {
        self.backlog.is_held_up && self.answer_bytes() < shared.frontend.options.limits.answer_bytes_max
    }

    /// Records its last command, the time and its memory for CLIENT LIST.
    pub(crate) fn show(&self, now_ns: u64) {
        let client = &self.session.client;
        client.figures.last_ms.store(now_ns / 1_000_000, Ordering::Relaxed);
        client.figures.received_bytes.store(self.input.counted, Ordering::Relaxed);
        client.figures.answer_bytes.store(self.counted_answers, Ordering::Relaxed);
        self.show_command();
    }

    fn show_command(&self) {
        if let Some((last, part)) = self.last {
            self.session.client.figures.command.store(table::number_of(last, part), Ordering::Relaxed);
        }
    }

    /// Records the queued commands and the number of watched keys for CLIENT LIST.
    fn show_transaction(&self) {
        let queued = self.session.transaction.as_ref().map_or(0, |transaction| transaction.calls.len() + 1);
        self.session.client.figures.queued.store(queued, Ordering::Relaxed);
        self.session.client.figures.watches.store(self.session.watches.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::rc::Rc;

    use bytes::Bytes;
    use shoal_buffer::COPY_BYTES_MAX;
    use shoal_engine::{Bucket, Environment};
    use shoal_storekit::StoreKit;

    use super::*;
    use crate::clients::{Addresses, Client};
    use crate::frontend::Frontend;
    use crate::mailbox::{ConnectionToken, Mailbox};
    use crate::options::{RedisLimits, RedisOptions};

    /// A connection of a new store, and its shared state.
    fn connection(limits: RedisLimits) -> (Connection, Shared) {
        let store = StoreKit::new(32_768).in_memory();
        let address = (Ipv4Addr::LOCALHOST, 1).into();
        let options = RedisOptions { limits, ..RedisOptions::default() };
        let bucket = Bucket::new(&options.bucket).unwrap();
        let frontend = Frontend::new(store, options, bucket, vec![address], Environment::default());
        let mailbox = Mailbox::new(mio::Poll::new().unwrap().registry()).unwrap();
        let waker = ConnectionWaker::new(mailbox, ConnectionToken { slot: 0, generation: 1 });
        let addresses = Addresses { peer: address, local: address, socket: 0 };
        let new = |id| Client::new(id, addresses, 0, waker.clone());
        let client = frontend.clients.enter(new).unwrap();
        let frontend: FrontendRef = Rc::new(frontend);
        let connection = Connection::new(ConnectionState::new(client, true), waker, &frontend, None, 0);
        (connection, Shared::new(frontend))
    }

    #[test]
    fn unparsed_rest_releases_receive_block() {
        let (mut connection, mut shared) = connection(RedisLimits::default());
        // Also twice in a row: the rest is then different bytes.
        for left in [1, 10, 10, COPY_BYTES_MAX, COPY_BYTES_MAX + 1, 10_000] {
            // It completes the rest of the round before.
            let block = [b"\r\n".to_vec(), b"PING\r\n".repeat(1_000), vec![b'x'; left]].concat();
            let block = Bytes::from(block);
            connection.input.received().append_external(block.clone());
            assert!(connection.advance(&mut shared));
            assert!(!connection.count_received(&mut shared));
            assert_eq!(connection.input.received.to_vec(), vec![b'x'; left]);
            assert_eq!(shared.received, left);
            assert!(block.is_unique(), "{left} bytes hold {}", block.len());
        }
        let out = connection.out.to_vec();
        assert_eq!(out.windows(7).filter(|answer| *answer == b"+PONG\r\n").count(), 6_000);
    }

    /// Symptom: connections that watch thousands of keys each, or queue many commands, could hold 512 MiB a thread in a
    /// container of 256 MiB. Cause: the bounds of commands that never wait did not follow from the memory. Fix: they are
    /// refused when all threads together hold twice the bytes at which long commands start to wait. Long commands wait, and are
    /// not refused for it.
    #[test]
    fn queued_commands_and_watched_keys_are_bounded_across_threads() {
        let limits = RedisLimits { memory_bytes_max: 100_000, ..RedisLimits::default() };
        let (mut connection, mut shared) = connection(limits);
        let mut is_too_much = |received: usize, queued: usize| {
            connection.input.received().append_copy(&vec![b'x'; received]);
            let is_too_much = connection.input.count(&mut shared, queued);
            shared.settle_memory();
            is_too_much
        };
        assert!(!is_too_much(0, 150_000));
        assert!(!is_too_much(0, 250_000), "twice as much was not reached before");
        assert!(is_too_much(0, 250_001), "more than twice as much");
        assert!(!is_too_much(0, 60_000), "less than before");
        assert!(!is_too_much(300_000, 60_000), "a long command waits instead");
        assert!(!is_too_much(1, 60_000), "and is not refused");
        drop(shared);
    }

    #[test]
    fn unfinished_input_is_counted() {
        let limits = RedisLimits { received_bytes_max: 100_000, ..RedisLimits::default() };
        let (mut connection, mut shared) = connection(limits);
        connection.input.received().append_copy(&[b'x'; 100_000]);
        assert!(!connection.count_received(&mut shared));
        assert_eq!(shared.received, 100_000);
        assert!(!connection.count_received(&mut shared), "nothing came");
        connection.input.received().append_copy(b"x");
        assert!(connection.count_received(&mut shared));
        connection.forget(&mut shared);
        assert_eq!(shared.received, 0);
    }
}
