//! One connection: requests in, answers out, in the order of the requests.
//!
//! Commands begin in the order in which they came, and several may be under way: reads that wait for the device, writes
//! that wait for the log. A write blocks later commands on its keys only until it has its place in the order of writes;
//! reads then see it although it is not durable yet, and their answers wait for it. Answers leave in order.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use shoal_base::hash::hash64;
use shoal_buffer::{Buffer, COPY_BYTES_MAX};
use shoal_engine::{ByteRange, Lsn, ObjectKey, Pending};
use shoal_resp::{Reply, RequestLimits, RequestParser};
use smallvec::SmallVec;

use crate::answer::{Answer, Failed, Finished, Outcome};
use crate::command::{self, Call, Command, FaceRef, Order, Run, Session, Task};
use crate::mailbox::{ConnectionWaker, Token};
use crate::options::Durability;

/// How often a silent peer is asked whether it is still there.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(300);
/// Pieces of memory that one call sends.
const SLICES_MAX: usize = 256;
/// Bytes that a connection receives in one turn, so that the others get theirs.
const TURN_BYTES_MAX: usize = 1 << 20;
/// Bytes of the memory that requests are received into, shared by the connections of a thread.
const BLOCK_BYTES: usize = 64 << 10;
/// A piece of a long value is received in so many bytes at a time.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// What is received is never less than this at a time.
const ROOM_BYTES_MIN: usize = 4 << 10;
/// Acknowledged writes that need not be durable yet, of one thread in the relaxed mode.
const RELAXED_WRITES_MAX: usize = 65_536;

/// What the connections of a thread share.
pub(crate) struct Shared {
    pub face: FaceRef,
    /// What is received goes here; filled parts are split off.
    block: BytesMut,
    /// Bytes of unfinished commands.
    received: usize,
    /// Commands since the counter was last added to.
    pub commands: u64,
    /// In the relaxed mode: acknowledged and perhaps not durable, with the time of the acknowledgement.
    relaxed: VecDeque<(Pending, u64)>,
    /// Now, on the monotonic clock; read once a turn.
    pub now_ns: u64,
}

impl Shared {
    pub(crate) fn new(face: FaceRef) -> Self {
        let now_ns = face.clock.monotonic_ns();
        Self { face, block: BytesMut::new(), received: 0, commands: 0, relaxed: VecDeque::new(), now_ns }
    }

    /// Whether a write may be acknowledged although it is not durable; remembers it then.
    fn relax(&mut self, pending: &mut SmallVec<[Pending; 1]>) -> bool {
        let Durability::Relaxed(window) = self.face.options.durability else { return false };
        while self.relaxed.front().is_some_and(|(oldest, _)| oldest.is_durable()) {
            self.relaxed.pop_front();
        }
        let oldest = self.relaxed.front().map_or(self.now_ns, |&(_, since)| since);
        if self.relaxed.len() >= RELAXED_WRITES_MAX
            || u128::from(self.now_ns.saturating_sub(oldest)) > window.as_nanos()
        {
            return false;
        }
        // The log is in order: the last one stands for all.
        self.relaxed.extend(pending.pop().map(|last| (last, self.now_ns)));
        pending.clear();
        true
    }
}

/// A command that was begun.
enum Begun {
    Running {
        task: Task,
        keys: SmallVec<[u64; 2]>,
        writes: bool,
    },
    /// Through, but for what must be durable first.
    Waiting {
        answer: Answer,
        pending: SmallVec<[Pending; 1]>,
        writes: bool,
    },
    Ready(Answer),
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The other side, or a failure of the network.
    Gone,
    /// All was said.
    Done,
    /// It did not take its answers for too long.
    Silent,
    /// It needs more memory than there is for unfinished commands.
    TooMuch,
}

/// A connection.
pub(crate) struct Connection {
    socket: OwnedFd,
    session: Session,
    waker: Arc<ConnectionWaker>,
    received: Buffer,
    parser: RequestParser,
    /// What of `received` is counted among the thread's unfinished commands.
    counted: usize,
    begun: VecDeque<Begun>,
    /// Of the commands that were begun: those that run, and those that write.
    running: usize,
    writing: usize,
    /// A command that must wait for others before it begins.
    held: Option<(Vec<Bytes>, &'static Command)>,
    out: Buffer,
    /// Whether further commands wait until it takes its answers.
    held_up: bool,
    readable: bool,
    /// Nothing more comes.
    ended: bool,
    writable: bool,
    /// Since when it has not taken anything of `out`.
    stuck_since_ns: Option<u64>,
}

impl Connection {
    pub(crate) fn new(
        socket: OwnedFd,
        session: Session,
        waker: Arc<ConnectionWaker>,
        face: &FaceRef,
    ) -> Self {
        let limits = &face.options.limits;
        let limits = RequestLimits {
            word_bytes: limits.bulk_bytes_max,
            command_bytes: limits.command_bytes_max,
            ..RequestLimits::default()
        };
        let parser = RequestParser::new(limits, session.authenticated);
        Self {
            socket,
            session,
            waker,
            received: Buffer::new(),
            parser,
            counted: 0,
            begun: VecDeque::new(),
            running: 0,
            writing: 0,
            held: None,
            out: Buffer::new(),
            held_up: false,
            readable: false,
            ended: false,
            writable: true,
            stuck_since_ns: None,
        }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn token(&self) -> Token {
        self.waker.token
    }

    pub(crate) fn client_id(&self) -> u64 {
        self.session.client.id
    }

    /// The network said so.
    pub(crate) fn set_ready(&mut self, readable: bool, writable: bool) {
        self.readable |= readable && !self.ended;
        self.writable |= writable;
    }

    /// Bytes that it counts among the thread's unfinished commands are no more.
    pub(crate) fn forget(&mut self, shared: &mut Shared) {
        shared.received -= std::mem::take(&mut self.counted);
    }

    /// Goes on with everything that can go on; says whether it has more to do in the next turn.
    ///
    /// # Errors
    /// Why it ends.
    pub(crate) fn advance(&mut self, shared: &mut Shared) -> Result<bool, End> {
        let mut left = TURN_BYTES_MAX;
        self.poll_begun(shared);
        let more = loop {
            let parsed_all = self.begin_commands(shared)?;
            if !parsed_all {
                // What was begun may be through already, and then what waits for it may begin.
                let before = self.begun.len();
                self.poll_begun(shared);
                if self.begun.len() < before {
                    continue;
                }
                break false;
            }
            if !self.readable || self.session.closing {
                // Whoever waits says where it is to be woken.
                self.poll_begun(shared);
                break false;
            }
            if left == 0 {
                self.poll_begun(shared);
                break true;
            }
            left = left.saturating_sub(self.receive(shared, left)?);
        };
        self.count_received(shared)?;
        Ok(more)
    }

    /// Begins commands as far as they are there and may begin; false where one of them, or the client, must be waited for.
    fn begin_commands(&mut self, shared: &mut Shared) -> Result<bool, End> {
        let limits = &shared.face.options.limits;
        let (commands_max, out_max) = (limits.commands_in_flight_max, limits.answer_bytes_max);
        loop {
            if self.session.closing {
                return Ok(true);
            }
            self.held_up = self.out.len() >= out_max;
            if self.held_up || self.begun.len() >= commands_max {
                return Ok(false);
            }
            let (words, command) = match self.held.take() {
                Some(held) => held,
                None => match self.parser.next(&mut self.received) {
                    Ok(Some(words)) => match self.admit(shared, words) {
                        Some(admitted) => admitted,
                        None => continue,
                    },
                    Ok(None) => return Ok(true),
                    Err(error) => {
                        self.answer(Answer::Error(format!("ERR {error}").into()));
                        self.session.closing = true;
                        return Ok(true);
                    }
                },
            };
            if !self.may_begin(&words, command) {
                self.held = Some((words, command));
                return Ok(false);
            }
            self.begin(shared, words, command);
        }
    }

    /// The command that the words are, or none where it was answered already.
    fn admit(&mut self, shared: &mut Shared, words: Vec<Bytes>) -> Option<(Vec<Bytes>, &'static Command)> {
        shared.commands += 1;
        let name = words.first().map_or(&[][..], |name| name);
        let Some(command) = command::find(name) else {
            // A browser was made to send this (cross-protocol scripting).
            if command::is(name, "post") || command::is(name, "host:") {
                self.session.closing = true;
            } else {
                self.answer(command::unknown(&words));
            }
            return None;
        };
        if !command.takes(words.len()) {
            let text = format!("ERR wrong number of arguments for '{}' command", command.name);
            self.answer(Answer::Error(text.into()));
            return None;
        }
        if !self.session.authenticated && !command.is_for_strangers() {
            self.answer(Answer::error("NOAUTH Authentication required."));
            return None;
        }
        Some((words, command))
    }

    fn may_begin(&self, words: &[Bytes], command: &Command) -> bool {
        match command.order {
            Order::Free => true,
            Order::All => self.begun.is_empty(),
            Order::Keys if self.running == 0 => true,
            Order::Keys => !command.keys.of(words).any(|key| {
                let key = hash64(key);
                self.begun.iter().any(
                    |begun| matches!(begun, Begun::Running { keys, writes: true, .. } if keys.contains(&key)),
                )
            }),
        }
    }

    fn begin(&mut self, shared: &mut Shared, words: Vec<Bytes>, command: &'static Command) {
        let newest = self.writing > 0 || shared.face.is_relaxed();
        if command.name == "get" && !newest && self.get_from_memory(shared, &words) {
            return;
        }
        let keys = match command.writes {
            true => command.keys.of(&words).map(|key| hash64(key)).collect(),
            false => SmallVec::new(),
        };
        let call = Call { face: shared.face.clone().into(), words, command, newest };
        match command.run {
            Run::Now(run) => {
                let answer = run(&mut self.session, &call).unwrap_or_else(|Failed(text)| Answer::Error(text));
                self.parser.set_authenticated(self.session.authenticated);
                self.answer(answer);
            }
            Run::Task(run) => {
                let mut task = run(call);
                let waker = Waker::from(self.waker.clone());
                match task.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(outcome) => {
                        let begun = finished(shared, outcome, command.writes);
                        self.push(begun);
                    }
                    Poll::Pending => {
                        self.running += 1;
                        self.writing += usize::from(command.writes);
                        self.begun.push_back(Begun::Running { task, keys, writes: command.writes });
                    }
                }
            }
        }
    }

    /// Answers a GET without a task where everything that it needs is in memory. A get has no effect, so that one that
    /// must wait is simply dropped, and made again as a task.
    fn get_from_memory(&mut self, shared: &Shared, words: &[Bytes]) -> bool {
        let Some(Ok(key)) = words.get(1).map(|key| ObjectKey::new(&shared.face.options.bucket, key)) else {
            return false;
        };
        if let Some(value) = shared.face.store.get_at_once(&key) {
            self.answer_value(value);
            return true;
        }
        let get = pin!(shared.face.store.get(&key, ByteRange::ALL));
        let Poll::Ready(Ok(object)) = get.poll(&mut Context::from_waker(Waker::noop())) else { return false };
        if self.begun.is_empty() {
            let mut reply = Reply::new(&mut self.out, self.session.protocol);
            match object {
                Some(object) => reply.value(object.value),
                None => reply.null(),
            }
        } else {
            let answer = object.map_or(Answer::Null, |object| Answer::Value(Box::new(object.value)));
            self.begun.push_back(Begun::Ready(answer));
        }
        true
    }

    /// A short value, or null.
    fn answer_value(&mut self, value: Option<Bytes>) {
        if !self.begun.is_empty() {
            return self.begun.push_back(Begun::Ready(value.map_or(Answer::Null, Answer::Bulk)));
        }
        let mut reply = Reply::new(&mut self.out, self.session.protocol);
        match value {
            Some(value) if value.len() <= COPY_BYTES_MAX => reply.bulk(&value),
            Some(value) => reply.value(value.into()),
            None => reply.null(),
        }
    }

    /// An answer behind those of what was begun before.
    fn answer(&mut self, answer: Answer) {
        self.push(Begun::Ready(answer));
    }

    fn push(&mut self, begun: Begun) {
        match begun {
            Begun::Ready(answer) if self.begun.is_empty() => {
                answer.write(&mut Reply::new(&mut self.out, self.session.protocol));
            }
            begun => {
                self.writing += usize::from(matches!(begun, Begun::Waiting { writes: true, .. }));
                self.begun.push_back(begun);
            }
        }
    }

    /// Goes on with what runs and what waits, and writes the answers that are ready.
    fn poll_begun(&mut self, shared: &mut Shared) {
        // Cleared first, also where nothing waits: what is woken from here on is looked at again.
        self.waker.queued.store(false, Ordering::SeqCst);
        if self.begun.is_empty() {
            return;
        }
        let waker = Waker::from(self.waker.clone());
        let mut context = Context::from_waker(&waker);
        if self.running > 0 {
            for begun in &mut self.begun {
                let Begun::Running { task, writes, .. } = begun else { continue };
                let writes = *writes;
                if let Poll::Ready(outcome) = task.as_mut().poll(&mut context) {
                    self.running -= 1;
                    self.writing -= usize::from(writes);
                    *begun = finished(shared, outcome, writes);
                    self.writing += usize::from(matches!(begun, Begun::Waiting { writes: true, .. }));
                }
            }
        }
        // Only the first waits: what is behind it cannot be answered before it, and the log is in order.
        while let Some(begun) = self.begun.front_mut() {
            let answer = match begun {
                Begun::Running { .. } => break,
                Begun::Ready(answer) => std::mem::replace(answer, Answer::Null),
                Begun::Waiting { answer, pending, writes } => match poll_durable(pending, &mut context) {
                    Poll::Pending => break,
                    Poll::Ready(durable) => {
                        self.writing -= usize::from(*writes);
                        let answer = std::mem::replace(answer, Answer::Null);
                        durable
                            .map_or_else(|Failed(text)| Answer::Error(text), |version| known(answer, version))
                    }
                },
            };
            self.begun.pop_front();
            answer.write(&mut Reply::new(&mut self.out, self.session.protocol));
        }
    }

    /// Reads once from the socket; gives how much.
    fn receive(&mut self, shared: &mut Shared, most: usize) -> Result<usize, End> {
        let missing = self.parser.missing_bytes(&self.received);
        let room = missing.clamp(ROOM_BYTES_MIN, PIECE_BYTES_MAX).min(most.max(ROOM_BYTES_MIN));
        if room > BLOCK_BYTES {
            // A long value: memory for this much of it alone, and not before this much may come.
            let mut piece = BytesMut::zeroed(room);
            return self.receive_into(&mut piece);
        }
        if shared.block.len() < room {
            shared.block = BytesMut::zeroed(BLOCK_BYTES);
        }
        self.receive_into(&mut shared.block)
    }

    fn receive_into(&mut self, block: &mut BytesMut) -> Result<usize, End> {
        match rustix::net::recv(&self.socket, &mut block[..], RecvFlags::empty()) {
            // The other side says no more; it may still listen to what it asked for.
            Ok((0, _)) => {
                self.readable = false;
                self.ended = true;
                Ok(0)
            }
            Ok((count, _)) => {
                // Less than there was room for: the socket is empty, and will say when it is not.
                self.readable = count == block.len();
                self.received.append(block.split_to(count).freeze());
                Ok(count)
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(_) => Err(End::Gone),
        }
    }

    /// Keeps the thread's count of unfinished commands, and ends who takes too much of it.
    fn count_received(&mut self, shared: &mut Shared) -> Result<(), End> {
        if self.received.is_empty() && self.counted == 0 {
            return Ok(());
        }
        let now = self.received.len();
        if now > 0 && now < ROOM_BYTES_MIN && !self.received.is_contiguous() {
            // Little that is left must not hold the memory that many requests were received into.
            self.received = Buffer::from(self.received.to_vec());
        }
        shared.received = shared.received - self.counted + now;
        let grew = now > self.counted;
        self.counted = now;
        if grew && now > BLOCK_BYTES && shared.received > shared.face.options.limits.received_bytes_max {
            return Err(End::TooMuch);
        }
        Ok(())
    }

    /// Sends what is to be sent, as far as the socket takes it.
    ///
    /// # Errors
    /// Why the connection ends.
    pub(crate) fn send(&mut self, now_ns: u64) -> Result<(), End> {
        while self.writable && !self.out.is_empty() {
            let mut slices: SmallVec<[IoSlice<'_>; 16]> = SmallVec::new();
            slices.extend(self.out.io_slices().take(SLICES_MAX));
            let whole = slices.len() < SLICES_MAX;
            let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
            let mut control = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(&self.socket, &slices, &mut control, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    drop(slices);
                    self.stuck_since_ns = None;
                    if whole && count == self.out.len() {
                        self.out = Buffer::new();
                    } else {
                        self.out.advance(count);
                    }
                    self.writable = count == wanted;
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(_) => return Err(End::Gone),
            }
        }
        if self.out.is_empty() {
            self.stuck_since_ns = None;
            let said_all = self.session.closing || (self.ended && self.held.is_none() && !self.held_up);
            if said_all && self.begun.is_empty() {
                return Err(End::Done);
            }
        } else if self.stuck_since_ns.is_none() {
            self.stuck_since_ns = Some(now_ns);
        }
        Ok(())
    }

    /// Whether commands waited only for room among the answers, and there is some again.
    pub(crate) fn wants_more(&self, shared: &Shared) -> bool {
        self.held_up && self.out.len() < shared.face.options.limits.answer_bytes_max
    }

    /// Ends it where it has not taken its answers for too long.
    ///
    /// # Errors
    /// [`End::Silent`].
    pub(crate) fn check_patience(&self, shared: &Shared) -> Result<(), End> {
        let most = shared.face.options.limits.silence_max.as_nanos();
        match self.stuck_since_ns {
            Some(since) if u128::from(shared.now_ns.saturating_sub(since)) > most => Err(End::Silent),
            _ => Ok(()),
        }
    }

    /// Notes when it was last heard of, for CLIENT LIST.
    pub(crate) fn heard(&self, now_ns: u64) {
        self.session.client.last_ms.store(now_ns / 1_000_000, Ordering::Relaxed);
    }
}

/// What became of a command whose task is through.
fn finished(shared: &mut Shared, outcome: Outcome, writes: bool) -> Begun {
    let Finished { answer, mut pending } = match outcome {
        Ok(finished) => finished,
        Err(failed) => failed.into(),
    };
    pending.retain(|pending| !pending.is_durable() || matches!(answer, Answer::Version));
    if pending.is_empty() || (!matches!(answer, Answer::Version) && shared.relax(&mut pending)) {
        return Begun::Ready(answer);
    }
    Begun::Waiting { answer, pending, writes }
}

/// Waits for all of them; gives the version of the last.
fn poll_durable(
    pending: &mut SmallVec<[Pending; 1]>,
    context: &mut Context<'_>,
) -> Poll<Result<Option<Lsn>, Failed>> {
    let mut version = None;
    // From the end: where the last is durable, the others are.
    while let Some(last) = pending.last() {
        match last.poll_durable(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(lsn)) => version = version.or(Some(lsn)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
        }
        pending.pop();
    }
    Poll::Ready(Ok(version))
}

/// The answer, where it is the version itself.
fn known(answer: Answer, version: Option<Lsn>) -> Answer {
    match (answer, version) {
        (Answer::Version, Some(version)) => Answer::Integer(version.0 as i64),
        (answer, _) => answer,
    }
}
