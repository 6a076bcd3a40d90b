//! One connection, without its socket: requests in, answers out, in the order of the requests.
//!
//! Commands begin in the order in which they came, and several may be under way: reads that wait for the device, writes
//! that wait for the log. A write blocks later commands on its keys only until it has its place in the order of writes;
//! reads then see it although it is not durable yet, and their answers wait for it. Answers leave in order.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use shoal_buffer::{Buffer, COPY_BYTES_MAX};
use shoal_engine::{ByteRange, Pending, Room};
use shoal_resp::{Reply, Request, RequestLimits, RequestParser};

use crate::answer::{Answer, Failed, Finished, Outcome, pinned_bytes};
use crate::backlog::Backlog;
use crate::begun::{ANSWER_BYTES_GUESS, Queue, Through};
use crate::command::transactions::{self, Transaction};
use crate::command::{self, Call, Command, FaceRef, Order, Replies, Run, Session, TOO_LONG};
use crate::mailbox::{ConnectionWaker, Token};
use crate::pace::Pace;
use crate::sets::place_sets;
use crate::shared::Shared;
use crate::socket::{BLOCK_BYTES, Wanted};
use crate::tls::{Opened, Sealing};

/// An unfinished command of fewer bytes lies in memory of its own: what it was received into may be much more.
const DETACHED_BYTES_MAX: usize = 16 << 10;
/// A value of so many bytes is received into the memory that goes to the device, where it has extents of its own.
const ROOM_VALUE_BYTES_MIN: usize = 16 << 10;
/// Bytes of these rooms that the connections of a thread have at a time; further values are received as others are.
const ROOMS_BYTES_MAX: usize = 16 << 20;
/// Of a value with a room so much comes between two looks, a second apart, or it has none any more.
const ROOM_LOOK_BYTES_MIN: usize = 64 << 10;
/// What an unfinished command may have before anybody asks how much all of them have.
const UNFINISHED_BYTES_FREE: usize = 64 << 10;
/// Who takes nothing for so long while as much waits as may does not read at all; who takes something is waited for.
const TAKES_NOTHING_MIN: Duration = Duration::from_secs(1);

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The other side, or a failure of the network.
    Gone,
    /// All was said.
    Done,
    /// Another connection ended it.
    Killed,
    /// It did not take its answers for too long.
    Silent,
    /// It began a command and sends hardly anything of the rest.
    Slow,
    /// It needs more memory than there is for all connections of the thread.
    TooMuch,
    /// It has shown nothing in time.
    Overdue,
}

/// The room of a value that is being received.
struct Filling {
    room: Room,
    /// Bytes that it missed when it was looked for last; none: it is newer.
    missed: Option<usize>,
}

/// A connection.
pub(crate) struct Connection {
    session: Session,
    waker: Arc<ConnectionWaker>,
    received: Buffer,
    /// Something came since what was left lies in memory of its own.
    came: bool,
    parser: RequestParser,
    /// Bytes of `received` and of the parser's words that are counted among the thread's unfinished commands.
    counted: usize,
    queue: Queue,
    /// The value of the SET under way, where it is received into the memory that goes to the device.
    room: Option<Filling>,
    /// The last command was such a SET, or could have been: so the next one may be.
    expects_value: bool,
    /// The value under way came so slowly that it has no room any more.
    gave_up_room: bool,
    /// A command that must wait for others before it begins, and the bytes of its words.
    held: Option<(Vec<Bytes>, &'static Command)>,
    held_bytes: usize,
    out: Buffer,
    /// What stands between it and its socket, where they speak TLS.
    sealing: Option<Box<Sealing>>,
    /// What of `out` and of the queue is counted among the thread's answers.
    counted_answers: usize,
    /// What of its answers is counted among the cache's memory that the thread's answers keep.
    pinned: usize,
    /// What waits where it does not take its answers.
    backlog: Backlog,
    /// Whether more was wanted from the socket in its last turn.
    is_listened_to: bool,
    /// Nothing more comes.
    ended: bool,
    /// How fast the command comes that is under way.
    pace: Pace,
    /// Its last command.
    last: Option<(&'static Command, usize)>,
}

impl Connection {
    pub(crate) fn new(session: Session, waker: Arc<ConnectionWaker>, face: &FaceRef) -> Self {
        let limits = &face.options.limits;
        let limits = RequestLimits {
            word_bytes: limits.bulk_bytes_max,
            command_bytes: limits.command_bytes_max,
            ..RequestLimits::default()
        };
        let parser = RequestParser::new(limits, session.authenticated);
        Self {
            session,
            waker,
            received: Buffer::new(),
            came: false,
            parser,
            counted: 0,
            queue: Queue::default(),
            room: None,
            expects_value: false,
            gave_up_room: false,
            held: None,
            held_bytes: 0,
            out: Buffer::new(),
            sealing: None,
            counted_answers: 0,
            pinned: 0,
            backlog: Backlog::default(),
            is_listened_to: false,
            ended: false,
            pace: Pace::default(),
            last: None,
        }
    }

    pub(crate) fn token(&self) -> Token {
        self.waker.token
    }

    pub(crate) fn client_id(&self) -> u64 {
        self.session.client.id
    }

    /// Whether somebody ended it (CLIENT KILL).
    pub(crate) fn is_to_end(&self) -> bool {
        self.session.client.is_to_end()
    }

    /// Speaks TLS from the first byte.
    pub(crate) fn set_sealing(&mut self, sealing: Option<Box<Sealing>>) {
        self.sealing = sealing;
    }

    /// Where what is received goes to that is opened before it is understood.
    pub(crate) fn sealed_received(&mut self) -> Option<&mut Buffer> {
        self.sealing.as_mut().map(|sealing| sealing.raw())
    }

    /// Opens what was received so.
    pub(crate) fn open_received(&mut self) {
        let Some(sealing) = &mut self.sealing else { return };
        self.came = true;
        match sealing.open(&mut self.received) {
            Opened::Open => {}
            Opened::Ended => self.ended = true,
            Opened::Broken => {
                self.received.clear();
                self.out.clear();
                self.session.closing = true;
            }
        }
    }

    /// Whether it has not shown in time that it may come in.
    pub(crate) fn is_overdue(&self, shared: &Shared) -> bool {
        let client = &self.session.client;
        let age_ms = (shared.now_ns / 1_000_000).saturating_sub(client.since_ms);
        let most = shared.face.options.limits.unauthenticated_max.as_millis();
        !client.is_authenticated() && u128::from(age_ms) > most
    }

    /// What is to be sent.
    pub(crate) fn outgoing(&mut self) -> &mut Buffer {
        let ends = self.says_no_more();
        match &mut self.sealing {
            None => &mut self.out,
            Some(sealing) => {
                sealing.seal(&mut self.out, ends);
                sealing.sealed()
            }
        }
    }

    /// Bytes that are sealed and not handed over for sending; none where nothing is sealed.
    pub(crate) fn sealed_bytes(&mut self) -> Option<usize> {
        self.sealing.as_mut().map(|sealing| sealing.sealed().len())
    }

    /// Whether there are answers that are not sealed, and nothing else is to be sent.
    pub(crate) fn has_more_to_seal(&mut self) -> bool {
        !self.out.is_empty() && self.sealed_bytes() == Some(0)
    }

    /// What is to be sent, as it is.
    #[cfg(test)]
    pub(crate) fn out(&mut self) -> &mut Buffer {
        &mut self.out
    }

    /// Where what is received goes to.
    pub(crate) fn received(&mut self) -> &mut Buffer {
        self.came = true;
        &mut self.received
    }

    /// What is to be received.
    pub(crate) fn wanted(&self) -> Wanted {
        // What waits lies in memory of its own: not in a block that holds others' commands.
        if self.backlog.is_held_up && self.room.is_none() {
            return Wanted { missing: BLOCK_BYTES + 1, head_only: false };
        }
        // Of a value that lies in its room only the two bytes of its end are missing.
        let missing = if self.room.is_some() { 0 } else { self.parser.missing_bytes(&self.received) };
        Wanted { missing, head_only: self.expects_value && self.received.is_empty() }
    }

    /// The room of the long value that is under way, which misses bytes, and where what is behind it goes. What was received of the
    /// value before is copied there.
    pub(crate) fn room(&mut self, shared: &mut Shared) -> Option<(&mut Room, &mut Buffer)> {
        if self.room.is_none() && !self.gave_up_room && !self.backlog.is_held_up && !self.session.closing {
            self.open_room(shared);
        }
        let filling = self.room.as_mut().filter(|filling| filling.room.missing() > 0)?;
        Some((&mut filling.room, &mut self.received))
    }

    fn open_room(&mut self, shared: &mut Shared) {
        let Some(([name, key], length)) = self.parser.last_word() else { return };
        if length < ROOM_VALUE_BYTES_MIN || !self.session.authenticated || !command::is(name, "set") {
            return;
        }
        if self.session.transaction.is_some() {
            return;
        }
        let Ok(key) = shared.face.bucket.key(key) else { return };
        // A room costs memory before anything is in it.
        let room = match shared.rooms + length <= ROOMS_BYTES_MAX {
            true => shared.face.store.room(&key, length),
            false => None,
        };
        let Some(mut room) = room else { return };
        shared.rooms += room.byte_count();
        let here = self.received.len().min(length);
        let mut left = here;
        for chunk in self.received.chunks() {
            let now = left.min(chunk.len());
            room.take(chunk.get(..now).unwrap_or_default());
            left -= now;
        }
        self.received.truncate_front(here);
        self.expects_value = true;
        self.room = Some(Filling { missed: None, room });
    }

    /// Gives the room of a value back that little came into since this was called last: who sends slowly, or not the end of the
    /// command, must not keep it from others.
    pub(crate) fn look_for_room(&mut self, shared: &mut Shared) {
        let Some(filling) = &mut self.room else { return };
        let missing = filling.room.missing();
        let Some(missed) = filling.missed.replace(missing) else { return };
        if missed - missing >= ROOM_LOOK_BYTES_MIN {
            return;
        }
        let behind = std::mem::replace(&mut self.received, Buffer::from(filling.room.to_vec()));
        assert!(
            behind.is_empty() || missing == 0,
            "what is behind a value comes when it is there as a whole"
        );
        self.received.append_buffer(behind);
        self.close_room(shared);
        // Not at once again.
        self.gave_up_room = true;
    }

    /// Whether it is in the middle of a command and has sent less of it than it must, for as long as that may be. `period` went by
    /// since this was asked last; nothing is asked of a client that the server does not listen to.
    pub(crate) fn is_too_slow(&mut self, shared: &Shared, period: Duration) -> bool {
        let is_within = self.parser.is_within() || !self.received.is_empty();
        if !is_within || !self.is_listened_to {
            self.pace.forget();
            return false;
        }
        let limits = &shared.face.options.limits;
        self.pace.waited(period, limits.pace_window, limits.pace_min)
    }

    fn close_room(&mut self, shared: &mut Shared) -> Option<Room> {
        let room = self.room.take()?.room;
        shared.rooms -= room.byte_count();
        Some(room)
    }

    /// So many bytes came.
    pub(crate) fn note_received(&mut self, bytes: usize) {
        self.pace.came(bytes);
        self.backlog.came(bytes);
    }

    /// Nothing more comes.
    pub(crate) fn set_ended(&mut self) {
        self.ended = true;
    }

    /// Whether nothing more is understood, as the connection ends when its answers were sent.
    pub(crate) fn is_closing(&self) -> bool {
        self.session.closing
    }

    /// What it counts among what the thread's connections hold is no more.
    pub(crate) fn forget(&mut self, shared: &mut Shared) {
        shared.received -= std::mem::take(&mut self.counted);
        shared.answers -= std::mem::take(&mut self.counted_answers);
        shared.pinned -= std::mem::take(&mut self.pinned);
        self.close_room(shared);
    }

    /// Goes on with what was begun, and begins what was received as far as it may; says whether more is wanted from the
    /// socket. Whoever waits then says where it is to be woken.
    pub(crate) fn advance(&mut self, shared: &mut Shared) -> bool {
        self.poll_begun(shared);
        loop {
            let begun_all = self.begin_commands(shared);
            let before = (self.queue.len(), self.queue.bytes());
            self.poll_begun(shared);
            // What was begun may be through already, and then what waits for it may begin.
            if begun_all || (self.queue.len(), self.queue.bytes()) == before {
                self.is_listened_to = begun_all && !self.session.closing && !self.ended;
                // Before its client can know of it.
                if self.last.is_some() && self.session.authenticated {
                    self.session.client.set_authenticated();
                }
                self.session.show_transaction();
                return self.is_listened_to || self.is_read_on(shared);
            }
        }
    }

    /// Whether it is read from although nothing more of it is begun: a client may write all that it has to say before it takes an
    /// answer. What comes behind the last command that is understood is thrown away.
    fn is_read_on(&mut self, shared: &mut Shared) -> bool {
        if self.ended {
            return false;
        }
        if self.session.closing {
            self.close_room(shared);
            self.backlog.throw_away(&mut self.received);
            return self.backlog.may_throw_away();
        }
        let limits = &shared.face.options.limits;
        self.is_held_up_by_client(limits.answer_bytes_max) && self.pending_bytes() < limits.pending_bytes_max
    }

    /// Whether it waits for nothing but its client, who has not taken its answers.
    fn is_held_up_by_client(&self, answers_max: usize) -> bool {
        self.backlog.is_held_up && self.out.len() + self.backlog.unsent >= answers_max
    }

    /// What waits for its client to take answers, the answers among it.
    fn pending_bytes(&self) -> usize {
        self.received.len()
            + self.parser.held_bytes()
            + self.held_bytes
            + self.out.len()
            + self.backlog.unsent
    }

    /// Bytes of commands that wait for its client to take answers; none where they do not.
    pub(crate) fn waiting_bytes(&self, shared: &Shared) -> Option<usize> {
        let answers_max = shared.face.options.limits.answer_bytes_max;
        let waits = !self.session.closing && self.is_held_up_by_client(answers_max);
        (waits && !self.received.is_empty()).then(|| self.received.len())
    }

    /// Whether as much waits as may, and its client does not take anything, `stuck_ns` long: it never will.
    pub(crate) fn is_over_full(&self, shared: &Shared, stuck_ns: u64) -> bool {
        u128::from(stuck_ns) >= TAKES_NOTHING_MIN.as_nanos()
            && self.waiting_bytes(shared).is_some()
            && self.pending_bytes() >= shared.face.options.limits.pending_bytes_max
    }

    /// Nothing of what waits is executed: its client is told so behind its answers, and it ends.
    pub(crate) fn refuse(&mut self, shared: &mut Shared) {
        let most = shared.face.options.limits.pending_bytes_max;
        self.held = None;
        self.held_bytes = 0;
        self.parser = RequestParser::new(RequestLimits::default(), true);
        self.received.clear();
        self.close_room(shared);
        self.session.closing = true;
        self.backlog.refuse(shared.now_ns);
        self.answer(Answer::Error(
            format!(
                "ERR this connection's commands and untaken answers have more than {most} bytes, or those of all connections \
                 more than there may be: nothing behind here was executed; take answers while you send"
            )
            .into(),
        ));
    }

    /// Whether it was refused, and its client takes nothing of what is left.
    pub(crate) fn is_given_up(&self, stuck_ns: u64, now_ns: u64) -> bool {
        self.backlog.is_given_up(stuck_ns, now_ns)
    }

    /// Whether its client sends although it does not take its answers; asked once a period.
    pub(crate) fn fed_ns(&mut self, shared: &Shared, period: Duration) -> u64 {
        self.backlog.fed_ns(shared.now_ns, period, shared.face.options.limits.pace_min)
    }

    /// Begins commands as far as they are there and may begin; false where one of them, or the client, must be waited for.
    fn begin_commands(&mut self, shared: &mut Shared) -> bool {
        let limits = &shared.face.options.limits;
        let (commands_max, answers_max) = (limits.commands_in_flight_max, limits.answer_bytes_max);
        loop {
            if self.session.closing {
                return true;
            }
            let answers = self.out.len() + self.backlog.unsent + self.queue.bytes();
            self.backlog.is_held_up = answers >= answers_max;
            if self.backlog.is_held_up || self.queue.len() >= commands_max {
                return false;
            }
            if self.has_value() {
                if !self.begin_with_value(shared) {
                    return false;
                }
                continue;
            }
            if self.held.is_none() && self.begin_at_once(shared, commands_max, answers_max) {
                continue;
            }
            let (words, command) = match self.held.take() {
                Some(held) => {
                    self.held_bytes = 0;
                    held
                }
                None => match self.parser.next(&mut self.received) {
                    Ok(Some(Request::Words(words))) => match self.admit(shared, words) {
                        Some(admitted) => admitted,
                        None => {
                            self.session.replies.next();
                            continue;
                        }
                    },
                    Ok(Some(Request::TooLong)) => {
                        self.session.spoil();
                        self.answer(Answer::error(TOO_LONG));
                        self.session.replies.next();
                        continue;
                    }
                    Ok(None) => return true,
                    Err(error) => {
                        self.answer(Answer::Error(format!("ERR {error}").into()));
                        self.session.closing = true;
                        return true;
                    }
                },
            };
            if !self.may_begin(&words, command) {
                self.held_bytes = memory_of(&words);
                self.held = Some((words, command));
                return false;
            }
            self.begin(shared, words, command, None);
        }
    }

    /// Whether the value that was received into a room is there as a whole, with its end.
    fn has_value(&self) -> bool {
        let is_full = |filling: &Filling| filling.room.missing() == 0;
        self.room.as_ref().is_some_and(is_full) && self.received.len() >= 2
    }

    /// Begins the SET whose value lies in its room; false where it must wait for others.
    fn begin_with_value(&mut self, shared: &mut Shared) -> bool {
        let may = |(words, _): (&[Bytes], usize)| self.queue.may_begin(words, command::set());
        if !self.parser.last_word().is_some_and(may) {
            return false;
        }
        self.pace.forget();
        let words = self.parser.end_elsewhere(&mut self.received);
        if let (Some(words), Some(room)) = (words, self.close_room(shared)) {
            shared.commands += 1;
            self.begin(shared, words, command::set(), Some(room));
        }
        true
    }

    /// Begins the short commands at the start of what was received that need no task, as far as they may: GETs whose values
    /// can be told at once, and plain SETs of short values, whose answers wait together. Nothing is copied but values, and no
    /// memory is taken but for records. Says whether there were any.
    fn begin_at_once(&mut self, shared: &mut Shared, commands_max: usize, answers_max: usize) -> bool {
        // In the relaxed mode reads see what is in flight, and writes do not wait.
        let is_answered = self.session.replies == Replies::All;
        if !self.session.authenticated || !is_answered || shared.face.is_relaxed() || self.queue.is_running()
        {
            return false;
        }
        if self.session.transaction.is_some() {
            return false;
        }
        let chunk = self.received.first_chunk();
        let (mut taken, mut commands) = (0, 0);
        let mut written: Option<(Pending, usize)> = None;
        let mut reply = Reply::new(&mut self.out, self.session.protocol);
        while let Some(glance) = self.parser.glance(chunk.get(taken..).unwrap_or_default()) {
            let writes = written.as_ref().map_or(0, |(_, writes)| *writes);
            let (mut bytes, mut count) = (glance.bytes, 1);
            match glance.second {
                None if command::is(glance.name, "get") && writes == 0 && self.queue.is_empty() => {
                    let Ok(key) = shared.face.bucket.key(glance.argument) else { break };
                    let show = |value: Option<&[u8]>| match value {
                        Some(value) => reply.bulk(value),
                        None => reply.null(),
                    };
                    if shared.near.show(&key, show).is_none() {
                        break;
                    }
                    self.last = Some((command::get(), 0));
                }
                Some(_) if command::is(glance.name, "set") && self.queue.len() + writes < commands_max => {
                    let most = commands_max - self.queue.len() - writes;
                    let behind = chunk.get(taken + glance.bytes..).unwrap_or_default();
                    let Some(placed) = place_sets(shared, &self.parser, glance, behind, most) else { break };
                    (bytes, count) = (placed.bytes, placed.sets);
                    written = Some((placed.last, writes + count));
                    self.last = Some((command::set(), 0));
                }
                _ => break,
            }
            taken += bytes;
            commands += count as u64;
            if reply.bytes() >= answers_max {
                break;
            }
        }
        if taken == 0 {
            return false;
        }
        self.received.truncate_front(taken);
        self.expects_value = false;
        self.pace.forget();
        if let Some((last, writes)) = written {
            self.queue.wait_for_writes(last, writes);
        }
        shared.near.settle();
        shared.commands += commands;
        true
    }

    /// Whether a command may begin beside those that were begun. What EXEC does is about the keys of what was queued.
    fn may_begin(&self, words: &[Bytes], command: &Command) -> bool {
        match &self.session.transaction {
            Some(transaction) if transactions::is_exec(words, command) => {
                let keys = transaction.keys.iter().copied();
                self.queue.may_begin_keys(keys, transaction.order(), transaction.writes)
            }
            _ => self.queue.may_begin(words, command),
        }
    }

    /// The command that the words are, or none where it was answered already: refused, or queued in a transaction.
    fn admit(&mut self, shared: &mut Shared, words: Vec<Bytes>) -> Option<(Vec<Bytes>, &'static Command)> {
        shared.commands += 1;
        self.pace.forget();
        let name = words.first().map_or(&[][..], |name| name);
        let Some(command) = command::find(name) else {
            // A browser was made to send this (cross-protocol scripting).
            if command::is(name, "post") || command::is(name, "host:") {
                self.session.closing = true;
            } else {
                self.session.spoil();
                self.answer(command::unknown(&words));
            }
            return None;
        };
        if !command.takes(words.len()) {
            let text = format!("ERR wrong number of arguments for '{}' command", command.name);
            self.session.spoil();
            self.answer(Answer::Error(text.into()));
            return None;
        }
        if !self.session.authenticated && !command.is_for_strangers() {
            self.answer(Answer::error("NOAUTH Authentication required."));
            return None;
        }
        if let Some(transaction) = &mut self.session.transaction {
            if !transactions::is_at_once(&words, command) {
                let queued = transaction.queue(words, command, shared.face.options.limits.command_bytes_max);
                self.answer(queued);
                return None;
            }
            if command.name == "watch" {
                self.answer(Answer::error("ERR WATCH inside MULTI is not allowed"));
                return None;
            }
        }
        Some((words, command))
    }

    /// Begins what was queued since MULTI; the words are EXEC's.
    fn begin_transaction(&mut self, shared: &mut Shared, words: &[Bytes], transaction: Transaction) {
        let watches = std::mem::take(&mut self.session.watches);
        let identity = match command::identity_of(words) {
            _ if transaction.is_spoiled => return self.answer(Answer::error(transactions::ABORTED)),
            Ok(identity) => identity,
            Err(Failed(text)) => return self.answer(Answer::Error(text)),
        };
        let (order, writes) = (transaction.order(), transaction.writes);
        let bytes = transaction.bytes() + ANSWER_BYTES_GUESS;
        let keys = transaction.keys.iter().copied().collect();
        let task = transactions::execute(shared.face.clone(), transaction, watches, identity);
        self.poll_first(shared, Box::pin(task), writes, |queue, task| {
            queue.run_as(task, keys, (order, writes), bytes);
        });
    }

    /// A task that begins: it is through at once, or goes on in the queue.
    fn poll_first(
        &mut self,
        shared: &mut Shared,
        mut task: command::Task,
        writes: bool,
        run: impl FnOnce(&mut Queue, command::Task),
    ) {
        let waker = Waker::from(self.waker.clone());
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => match finish(shared, &mut self.session, outcome, writes) {
                Ok(answer) => self.answer(answer),
                Err(through) => self.queue.wait(through),
            },
            Poll::Pending => run(&mut self.queue, task),
        }
        self.parser.set_authenticated(self.session.authenticated);
    }

    fn begin(
        &mut self,
        shared: &mut Shared,
        words: Vec<Bytes>,
        command: &'static Command,
        room: Option<Room>,
    ) {
        self.begin_one(shared, words, command, room);
        self.session.replies.next();
    }

    fn begin_one(
        &mut self,
        shared: &mut Shared,
        words: Vec<Bytes>,
        command: &'static Command,
        room: Option<Room>,
    ) {
        let part = command.part_of(words.get(1).map(|word| &word[..]));
        self.last = Some((command, part));
        let is_answered = self.session.replies == Replies::All;
        self.queue.set_muted(!is_answered);
        self.expects_value = room.is_some() || is_set_of_long(&words, command);
        self.gave_up_room = false;
        if transactions::is_exec(&words, command)
            && let Some(transaction) = self.session.transaction.take()
        {
            self.session.client.used(command, part);
            return self.begin_transaction(shared, &words, *transaction);
        }
        if command.name == "watch" && self.session.watches.len() + words.len() > transactions::WATCHES_MAX {
            let most = transactions::WATCHES_MAX;
            let text = format!("ERR a connection watches at most {most} keys: UNWATCH forgets them");
            return self.answer(Answer::Error(text.into()));
        }
        let newest = self.queue.is_writing() || shared.face.is_relaxed();
        if command.name == "get" && is_answered && !newest && self.get_from_memory(shared, &words) {
            return;
        }
        let keys = Queue::keys(&words, command);
        let word_bytes = memory_of(&words) + room.as_ref().map_or(0, Room::byte_count);
        // What walks over all keys sees what is durable: then that has to be what this thread acknowledged.
        let before = if command.order == Order::All { shared.acknowledged() } else { None };
        let call = Call { face: shared.face.clone().into(), words, room, command, newest, before };
        match command.run {
            Run::Now(run) => {
                self.session.client.used(command, part);
                let answer = run(&mut self.session, &call).unwrap_or_else(|Failed(text)| Answer::Error(text));
                self.parser.set_authenticated(self.session.authenticated);
                self.answer(answer);
            }
            Run::Task(run) => self.poll_first(shared, run(call), command.writes, |queue, task| {
                queue.run(task, keys, command, word_bytes);
            }),
        }
    }

    /// Answers a GET without a task where everything that it needs is in memory. A get has no effect, so that one that
    /// must wait is simply dropped, and made again as a task.
    fn get_from_memory(&mut self, shared: &Shared, words: &[Bytes]) -> bool {
        let Some(Ok(key)) = words.get(1).map(|key| shared.face.key(key)) else {
            return false;
        };
        if let Some(value) = shared.face.store.get_at_once(&key) {
            match self.queue.is_empty() {
                true => reply_value(&mut Reply::new(&mut self.out, self.session.protocol), value),
                false => self.queue.ready(value.map_or(Answer::Null, Answer::Bulk)),
            }
            return true;
        }
        let get = pin!(shared.face.store.get(&key, ByteRange::ALL));
        let Poll::Ready(Ok(object)) = get.poll(&mut Context::from_waker(Waker::noop())) else { return false };
        if self.queue.is_empty() {
            let mut reply = Reply::new(&mut self.out, self.session.protocol);
            match object {
                Some(object) => reply.value(object.value),
                None => reply.null(),
            }
        } else {
            self.queue.ready(object.map_or(Answer::Null, |object| Answer::Value(Box::new(object.value))));
        }
        true
    }

    /// An answer behind those of what was begun before.
    fn answer(&mut self, answer: Answer) {
        if self.session.replies != Replies::All {
            return;
        }
        if self.queue.is_empty() {
            answer.write(&mut Reply::new(&mut self.out, self.session.protocol));
        } else {
            self.queue.ready(answer);
        }
    }

    /// Goes on with what runs and what waits, and writes the answers that are ready.
    fn poll_begun(&mut self, shared: &mut Shared) {
        // Cleared first, also where nothing waits: what is woken from here on is looked at again.
        self.waker.queued.store(false, Ordering::SeqCst);
        if self.queue.is_empty() {
            return;
        }
        let waker = Waker::from(self.waker.clone());
        let mut context = Context::from_waker(&waker);
        let session = &mut self.session;
        self.queue.poll_running(&mut context, |outcome, writes| finish(shared, session, outcome, writes));
        self.parser.set_authenticated(self.session.authenticated);
        while let Some((answer, times)) = self.queue.pop(&mut context) {
            if times == 0 {
                continue;
            }
            answer.write_times(times, &mut Reply::new(&mut self.out, self.session.protocol));
        }
    }

    /// Keeps the thread's count of unfinished commands; says whether it is too much with what came for this one.
    pub(crate) fn count_received(&mut self, shared: &mut Shared) -> bool {
        let left = self.received.len() + self.parser.held_bytes() + self.held_bytes;
        let filled = self.room.as_ref().map_or(0, |filling| filling.room.filled());
        let now = left + filled + self.session.held_bytes();
        if now == 0 && self.counted == 0 {
            return false;
        }
        if self.came && left < DETACHED_BYTES_MAX {
            // Little that is left must not hold the memory that many requests were received into, however little it is.
            self.parser.detach();
            self.received = own(&self.received);
            self.came = false;
        }
        shared.received = shared.received - self.counted + now;
        let grew = now > self.counted;
        self.counted = now;
        grew && now > UNFINISHED_BYTES_FREE && shared.received > shared.face.options.limits.received_bytes_max
    }

    /// Keeps the thread's count of the cache's memory that answers keep which wait; where it would be too much, copies this
    /// connection's.
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

    /// Keeps the thread's count of answers; gives this connection's.
    pub(crate) fn count_answers(&mut self, shared: &mut Shared) -> usize {
        let unsent = self.sealed_bytes().unwrap_or(0);
        self.backlog.unsent = unsent;
        self.count_pinned(shared);
        let now = unsent + self.out.len() + self.queue.bytes();
        shared.answers = shared.answers - self.counted_answers + now;
        self.counted_answers = now;
        now
    }

    /// Whether all was said and sent: nothing more is understood or comes, and nothing is under way.
    pub(crate) fn is_done(&self) -> bool {
        self.says_no_more() && self.out.is_empty()
    }

    fn says_no_more(&self) -> bool {
        let waits = self.held.is_some() || self.has_value() || self.backlog.is_held_up;
        let said_all = self.session.closing || (self.ended && !waits);
        said_all && self.queue.is_empty()
    }

    /// Whether commands waited only for room among the answers, and there is some again.
    pub(crate) fn wants_more(&self, shared: &Shared) -> bool {
        let answers = self.out.len() + self.backlog.unsent + self.queue.bytes();
        self.backlog.is_held_up && answers < shared.face.options.limits.answer_bytes_max
    }

    /// Notes for CLIENT LIST what it said last, and when, and what it has in memory.
    pub(crate) fn show(&self, now_ns: u64) {
        let client = &self.session.client;
        client.last_ms.store(now_ns / 1_000_000, Ordering::Relaxed);
        client.received_bytes.store(self.counted, Ordering::Relaxed);
        client.answer_bytes.store(self.counted_answers, Ordering::Relaxed);
        if let Some((last, part)) = self.last {
            self.session.client.used(last, part);
        }
    }
}

/// The same bytes in memory that nothing else is in.
fn own(bytes: &Buffer) -> Buffer {
    if bytes.len() > COPY_BYTES_MAX {
        return Buffer::from(bytes.to_vec());
    }
    let mut own = Buffer::new();
    bytes.chunks().for_each(|chunk| own.append_copy(chunk));
    own
}

/// Whether this is a SET whose value could have been received into a room.
fn is_set_of_long(words: &[Bytes], command: &'static Command) -> bool {
    let long = matches!(words, [_, _, value] if value.len() >= ROOM_VALUE_BYTES_MIN);
    long && std::ptr::eq(command, command::set())
}

/// Memory that words take.
fn memory_of(words: &[Bytes]) -> usize {
    size_of_val(words) + words.iter().map(Bytes::len).sum::<usize>()
}

/// A short value, or null.
fn reply_value(reply: &mut Reply<'_>, value: Option<Bytes>) {
    match value {
        Some(value) if value.len() <= COPY_BYTES_MAX => reply.bulk(&value),
        Some(value) => reply.value(value.into()),
        None => reply.null(),
    }
}

/// What became of a command whose task is through: its answer, or what it waits for.
fn finish(
    shared: &mut Shared,
    session: &mut Session,
    outcome: Outcome,
    writes: bool,
) -> Result<Answer, Through> {
    let Finished { mut answer, mut pending, effect } = match outcome {
        Ok(finished) => finished,
        Err(failed) => failed.into(),
    };
    if let Some(effect) = effect {
        session.effect(*effect, &mut answer);
    }
    let wants_version = answer.wants_version();
    pending.retain(|pending| wants_version || !pending.is_durable());
    if pending.is_empty() || (!wants_version && shared.relax(&mut pending)) {
        return Ok(answer);
    }
    Err(Through { answer, pending, writes })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::rc::Rc;
    use std::sync::atomic::AtomicBool;

    use shoal_device::{Device, MemDevice};
    use shoal_engine::{Bucket, Environment, FormatOptions, OpenOptions, Store, block_on};

    use super::*;
    use crate::clients::{Addresses, Entered};
    use crate::face::Face;
    use crate::mailbox::Mailbox;
    use crate::options::{Limits, RedisOptions};

    const BLOCKS: u64 = 32_768;

    /// A connection of a new store, and what it shares with others.
    fn connection(limits: Limits) -> (Connection, Shared) {
        let device = Device::new(Arc::new(MemDevice::new(BLOCKS)));
        let store = block_on(async {
            let options = FormatOptions { tablets: 4, ..FormatOptions::for_blocks(BLOCKS) };
            Store::format(&device, &options, &Environment::default()).await.unwrap();
            let options = OpenOptions { cache_bytes: 32 << 20, ..OpenOptions::default() };
            Store::open(device.clone(), options, Environment::default()).await.unwrap()
        });
        let address = (Ipv4Addr::LOCALHOST, 1).into();
        let options = RedisOptions { limits, ..RedisOptions::default() };
        let bucket = Bucket::new(&options.bucket).unwrap();
        let face = Face::new(store, options, bucket, address, Environment::default());
        let waker = Arc::new(ConnectionWaker {
            mailbox: Mailbox::new().unwrap(),
            token: Token { place: 0, generation: 1 },
            queued: AtomicBool::new(false),
        });
        let addresses = Addresses { peer: address, local: address, socket: 0 };
        let client = Entered::new(&face, addresses, 0, waker.clone()).unwrap();
        let face: FaceRef = Rc::new(face);
        (Connection::new(Session::new(client, true), waker, &face), Shared::new(face))
    }

    #[test]
    fn what_is_left_of_a_block_does_not_hold_it() {
        let (mut connection, mut shared) = connection(Limits::default());
        // Twice as much in a row too: what is left is other bytes then.
        for left in [1, 10, 10, COPY_BYTES_MAX, COPY_BYTES_MAX + 1, 10_000] {
            // It ends what was left before.
            let block = [b"\r\n".to_vec(), b"PING\r\n".repeat(1_000), vec![b'x'; left]].concat();
            let block = Bytes::from(block);
            connection.received().append_external(block.clone());
            assert!(connection.advance(&mut shared));
            assert!(!connection.count_received(&mut shared));
            assert_eq!(connection.received.to_vec(), vec![b'x'; left]);
            assert_eq!(shared.received, left);
            assert!(block.is_unique(), "{left} bytes hold {}", block.len());
        }
        let out = connection.out().to_vec();
        assert_eq!(out.windows(7).filter(|answer| *answer == b"+PONG\r\n").count(), 6_000);
    }

    #[test]
    fn what_is_unfinished_is_counted() {
        let limits = Limits { received_bytes_max: 100_000, ..Limits::default() };
        let (mut connection, mut shared) = connection(limits);
        connection.received().append_copy(&[b'x'; 100_000]);
        assert!(!connection.count_received(&mut shared));
        assert_eq!(shared.received, 100_000);
        assert!(!connection.count_received(&mut shared), "nothing came");
        connection.received().append_copy(b"x");
        assert!(connection.count_received(&mut shared));
        connection.forget(&mut shared);
        assert_eq!(shared.received, 0);
    }
}
