//! Bounds on the bytes of requests and answers that are in memory, and on the patience with who takes them (`patience` has
//! that with who sends).
//!
//! Every request holds a [`Lease`] from its first frame to the end of its answer. A unary request's lease grows with the
//! frames that arrive, then stands for the answer's length; that of a stream that its caller sends grows with what came of a message.
//! A long message waits where there is no room for the rest of it ([`Turn`], `line`); a short one, and an answer, is refused.
//! A message says at its beginning how long it is: one that never fits is refused then, and one that does not fit now waits then,
//! and not when most of it was carried here. The room that it still needs is kept of its connection's share only, so that who
//! announces much and sends nothing is in nobody's way but its own.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use hyper::body::Incoming;
use shoal_api::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX};
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;

use crate::connection::{FRAME_BYTES_MAX, STREAM_WINDOW_BYTES};
use crate::decode::Decoders;
use crate::failure::Failure;
use crate::line::{Line, OLDEST_BYTES, Place, WAITING_BYTES_MAX};
use crate::patience::{Patience, Watch};
use crate::sending::Sending;
use crate::unary::PREFIX_BYTES;

/// What an answer in pieces may hold, in bytes: the chunk in work, and what was read of the next.
pub(crate) const STREAM_LEASE_BYTES: usize = CHUNK_BYTES_MAX + CHUNK_BYTES_MAX / 2;

/// Of the bytes in flight one of so many is kept for answers and for short requests: puts that wait for a device that stands still
/// must not stop reads of what is in memory.
const KEPT_SHARE: usize = 8;

/// A request of up to so many bytes is a short one: most that put nothing are.
const SHORT_BYTES: usize = 4 << 10;

// Any request may go on when it is the oldest one in the line.
const _: () = assert!(MESSAGE_BYTES_MAX + PREFIX_BYTES + FRAME_BYTES_MAX as usize <= OLDEST_BYTES);

/// When a call that may take `timeout` from now is over.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    Instant::now() + timeout
}

/// How many bytes are taken, of how many.
#[derive(Debug)]
struct Budget {
    used: AtomicUsize,
    /// The part of `used` that messages in the line hold although there was no room: it does not count against short requests and
    /// answers.
    on_top: AtomicUsize,
    max: usize,
}

impl Budget {
    fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), on_top: AtomicUsize::new(0), max }
    }

    /// Whether `bytes` more stay within `max` now.
    fn has_room(&self, bytes: usize, max: usize) -> bool {
        // With `give`: who waits sees what was given back.
        self.used.load(Ordering::SeqCst).checked_add(bytes).is_some_and(|sum| sum <= max)
    }

    /// Takes `bytes`, where the sum stays within `max`.
    fn take(&self, bytes: usize, max: usize) -> bool {
        let room = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= max);
        // The load is as in `has_room`; nothing is read or written on the strength of what is stored.
        self.used.fetch_update(Ordering::Relaxed, Ordering::SeqCst, room).is_ok()
    }

    /// As [`Self::take`], for answers and short requests.
    fn take_short(&self, bytes: usize, max: usize) -> bool {
        self.take(bytes, max + self.on_top.load(Ordering::Relaxed))
    }

    /// Takes `bytes` even where there is no room.
    fn force(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give(&self, bytes: usize) {
        // With `Line::wake`: who waits sees this, or is seen.
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        assert!(before >= bytes, "{bytes} bytes were given back of {before}");
    }

    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// For answers and short requests: all but what is kept for a message that must end. Where there is little in all, that comes on
    /// top.
    fn short_max(&self) -> usize {
        if self.max >= KEPT_SHARE * OLDEST_BYTES { self.max - OLDEST_BYTES } else { self.max }
    }

    /// For longer requests.
    fn long_max(&self) -> usize {
        self.max - self.max / KEPT_SHARE
    }

    /// For a longer request of `bytes`: one that needs the kept share, too, may have that where it is alone.
    fn max_for(&self, bytes: usize) -> usize {
        if bytes > self.long_max() { self.max } else { self.long_max() }
    }

    /// Whether there is no more than `max`, for who looks again and again until there is.
    fn is_within(&self, max: usize) -> bool {
        self.used.load(Ordering::SeqCst) <= max
    }
}

/// Requests that there was no room for.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    pub(crate) count: AtomicU64,
    /// Microseconds from their headers to the refusal, of all together.
    pub(crate) after_us: AtomicU64,
    /// The longest of these times.
    pub(crate) after_us_max: AtomicU64,
}

impl Refused {
    fn add(&self, after: Duration) {
        let us = after.as_micros() as u64;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.after_us.fetch_add(us, Ordering::Relaxed);
        self.after_us_max.fetch_max(us, Ordering::Relaxed);
    }
}

/// The bytes in flight of the whole server.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    budget: Arc<Budget>,
    refused: Arc<Refused>,
    line: Arc<Line>,
    connection_bytes_max: usize,
}

impl Flow {
    pub(crate) fn new(bytes_max: usize, connection_bytes_max: usize) -> Self {
        let budget = Arc::new(Budget::new(bytes_max));
        Self { budget, refused: Arc::default(), line: Arc::default(), connection_bytes_max }
    }

    pub(crate) fn refused(&self) -> &Refused {
        &self.refused
    }

    pub(crate) fn bytes(&self) -> usize {
        self.budget.used()
    }

    pub(crate) fn connection(&self) -> Arc<ConnectionFlow> {
        Arc::new(ConnectionFlow {
            server: Arc::clone(&self.budget),
            refused: Arc::clone(&self.refused),
            line: Arc::clone(&self.line),
            waiting: AtomicUsize::new(0),
            own: Budget::new(self.connection_bytes_max),
            moved: AtomicU64::new(0),
            working: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            sending: Sending::default(),
        })
    }
}

/// The bytes in flight of one connection, and whether they move.
#[derive(Debug)]
pub(crate) struct ConnectionFlow {
    server: Arc<Budget>,
    refused: Arc<Refused>,
    /// Messages that wait for room.
    line: Arc<Line>,
    /// Bytes that HTTP/2 may hold of those of them that are its own.
    waiting: AtomicUsize,
    own: Budget,
    /// Frames of answers that were taken.
    moved: AtomicU64,
    /// Handlers that run: the store is at work, or they watch the clock for themselves.
    working: AtomicUsize,
    /// Bytes that streams hold which have nothing to send.
    idle: AtomicUsize,
    sending: Sending,
}

impl ConnectionFlow {
    /// The order in which its answers leave.
    pub(crate) fn sending(&self) -> &Sending {
        &self.sending
    }

    pub(crate) fn lease(self: &Arc<Self>) -> Arc<Lease> {
        let begun = Instant::now();
        Arc::new(Lease {
            flow: Arc::clone(self),
            begun,
            bytes: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            waits: Mutex::new(None),
        })
    }

    /// Says that a handler runs until what this gives is dropped.
    pub(crate) fn working(self: &Arc<Self>) -> Working {
        self.working.fetch_add(1, Ordering::Relaxed);
        Working(Arc::clone(self))
    }

    /// Whether more of a long request may come in.
    fn has_room(&self) -> bool {
        self.own.is_within(self.own.max) && self.server.is_within(self.server.long_max())
    }

    /// Where it is the client's turn to take what the connection holds: how much it has taken so far.
    pub(crate) fn waits_at(&self) -> Option<u64> {
        let is_taken = self.own.used() <= self.idle.load(Ordering::Relaxed);
        let waits = !is_taken && self.working.load(Ordering::Relaxed) == 0;
        waits.then(|| self.moved.load(Ordering::Relaxed))
    }
}

pub(crate) struct Working(Arc<ConnectionFlow>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that has nothing to send: what it holds does not wait for its client.
pub(crate) struct Idle {
    flow: Arc<ConnectionFlow>,
    bytes: usize,
}

impl Idle {
    /// Whether it stands for all that `lease` holds now.
    pub(crate) fn is_all_of(&self, lease: &Lease) -> bool {
        self.bytes == lease.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.flow.idle.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A message's place in the line of those who wait for room, from when it first waited until its bytes were given back.
#[derive(Debug)]
struct Waits {
    place: Place,
    flow: Arc<ConnectionFlow>,
    /// What HTTP/2 may hold of it.
    unread: usize,
    /// What it holds although there was no room.
    on_top: usize,
}

impl Waits {
    /// None where HTTP/2 holds so much of the connection's waiting messages that with this one nothing else might come, or where those
    /// who wait hold much although there was no room.
    fn join(flow: &Arc<ConnectionFlow>, unsent: usize) -> Option<Self> {
        let server = &flow.server;
        if server.on_top.load(Ordering::Relaxed) > OLDEST_BYTES + server.max / KEPT_SHARE {
            return None;
        }
        let unread = unsent.min(STREAM_WINDOW_BYTES as usize);
        let one_more = |waiting: usize| (waiting + unread <= WAITING_BYTES_MAX).then_some(waiting + unread);
        flow.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self { place: Place::join(&flow.line), flow: Arc::clone(flow), unread, on_top: 0 })
    }

    /// So many bytes came although there was no room.
    fn add_on_top(&mut self, bytes: usize) {
        self.on_top += bytes;
        self.flow.server.on_top.fetch_add(bytes, Ordering::Relaxed);
        self.flow.own.on_top.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The message is there as a whole: HTTP/2 holds nothing of it.
    fn is_whole(&mut self) {
        self.flow.waiting.fetch_sub(std::mem::take(&mut self.unread), Ordering::Relaxed);
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.is_whole();
        self.flow.server.on_top.fetch_sub(self.on_top, Ordering::Relaxed);
        self.flow.own.on_top.fetch_sub(self.on_top, Ordering::Relaxed);
    }
}

/// How one message waits for room: not before a frame came for which there is none, and not for longer than it may in all.
#[derive(Default)]
pub(crate) struct Turn {
    waits: Option<Waits>,
    /// How long it has waited before.
    waited: Duration,
    /// While it waits: since when, until when it may, and that it is not the client's turn.
    waiting: Option<(Instant, Pin<Box<Sleep>>, Working)>,
}

impl Turn {
    /// So many bytes of the message came, which its lease has taken; `has_room`: whether there was room for them.
    pub(crate) fn came(&mut self, bytes: usize, has_room: bool) {
        if let Some(waits) = self.waits.as_mut().filter(|_| !has_room) {
            waits.add_on_top(bytes);
        }
    }

    /// Waits until the message may go on, of which `held` bytes are there and `unsent` may still come; `has_room` looks whether there
    /// is room. Says what to tell its sender where there is none within `wait_max`, or too many wait.
    pub(crate) fn poll(
        &mut self,
        lease: &Lease,
        (held, unsent): (usize, usize),
        wait_max: Duration,
        context: &mut Context<'_>,
        has_room: impl FnOnce() -> bool,
    ) -> Poll<Result<(), Failure>> {
        let flow = &lease.flow;
        if self.waits.is_none() {
            self.waits = Waits::join(flow, unsent);
            // The last frame came before.
            self.came(held.min(FRAME_BYTES_MAX as usize), flow.has_room());
        }
        let Some(waits) = &self.waits else { return Poll::Ready(Err(lease.no_room())) };
        if waits.place.may_go_on(held, FRAME_BYTES_MAX as usize, context.waker(), has_room) {
            if let Some((since, ..)) = self.waiting.take() {
                self.waited += since.elapsed();
            }
            return Poll::Ready(Ok(()));
        }
        let left = wait_max.saturating_sub(self.waited);
        let (_, timer, _) =
            self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left)), flow.working()));
        ready!(timer.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(Err(lease.no_room()))
    }
}

/// What one request holds; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    flow: Arc<ConnectionFlow>,
    begun: Instant,
    bytes: AtomicUsize,
    /// What its connection keeps for the rest of the request.
    kept: AtomicUsize,
    /// The place of a unary request that waited for room, until its bytes are given back.
    waits: Mutex<Option<Waits>>,
}

impl Lease {
    /// Takes `bytes` more, of a short request or an answer.
    pub(crate) fn grow(&self, bytes: usize) -> Result<(), Failure> {
        if !self.flow.own.take_short(bytes, self.flow.own.max) {
            return Err(self.refused("this connection"));
        }
        if !self.flow.server.take_short(bytes, self.flow.server.short_max()) {
            self.flow.own.give(bytes);
            return Err(self.refused("the server"));
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Says that the request, a long one, will have `bytes` in all; keeps room for what has not arrived where there is room for it now.
    /// Only one thread at a time may call this.
    fn announce(&self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes.load(Ordering::Relaxed));
        let flow = &self.flow;
        if !flow.server.has_room(more, flow.server.long_max()) {
            return false;
        }
        // What has arrived is counted already.
        let has_room = flow.own.take(more, flow.own.max_for(bytes));
        self.kept.fetch_add(if has_room { more } else { 0 }, Ordering::Relaxed);
        has_room
    }

    /// Refuses a long request of `bytes` for which there would be no room if it were alone.
    fn check_fits(&self, bytes: usize) -> Result<(), Failure> {
        if bytes > self.flow.own.max {
            return Err(self.refused("this connection"));
        }
        if bytes > self.flow.server.long_max() {
            return Err(self.refused("the server"));
        }
        Ok(())
    }

    /// Whether more of a request may come in whose connection keeps the room for it.
    fn server_has_room(&self) -> bool {
        self.flow.server.is_within(self.flow.server.long_max())
    }

    /// Holds just `bytes` from now on, for an answer. Only one thread at a time may call this.
    pub(crate) fn set(&self, bytes: usize) -> Result<(), Failure> {
        self.give_kept();
        let held = self.bytes.load(Ordering::Relaxed);
        self.shrink(held.saturating_sub(bytes));
        self.leave_line();
        if bytes > held { self.grow(bytes - held) } else { Ok(()) }
    }

    /// As [`Self::set`], but never refuses: for the answer of a write, which was done and must not be called refused.
    pub(crate) fn set_regardless(&self, bytes: usize) {
        self.give_kept();
        let held = self.bytes.load(Ordering::Relaxed);
        if bytes > held {
            self.flow.own.force(bytes - held);
            self.flow.server.force(bytes - held);
            self.bytes.store(bytes, Ordering::Relaxed);
        } else {
            self.shrink(held - bytes);
        }
        self.leave_line();
    }

    /// Its request's bytes were given back: it is the next one's turn, where it had waited for room.
    fn leave_line(&self) {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(waits);
    }

    /// Takes `bytes` of a message, which are there already.
    pub(crate) fn take(&self, bytes: usize) {
        let kept = self.kept.load(Ordering::Relaxed).min(bytes);
        self.flow.own.force(bytes - kept);
        self.flow.server.force(bytes);
        self.kept.fetch_sub(kept, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives `bytes` of these back.
    pub(crate) fn give(&self, bytes: usize) {
        self.shrink(bytes);
    }

    /// Whether there was room for what it has.
    pub(crate) fn has_room(&self) -> bool {
        self.flow.has_room()
    }

    /// What to tell whom there is no room for.
    pub(crate) fn no_room(&self) -> Failure {
        self.refused("the server")
    }

    fn refused(&self, who: &str) -> Failure {
        self.flow.refused.add(self.begun.elapsed());
        Failure::overloaded(format!("{who} has too many bytes of requests and answers under way"))
    }

    fn give_kept(&self) {
        let kept = self.kept.swap(0, Ordering::Relaxed);
        if kept > 0 {
            self.flow.own.give(kept);
            self.flow.line.wake();
        }
    }

    /// Says that there is nothing to take of what it holds, which does not change until what this gives is dropped.
    pub(crate) fn idle(&self) -> Idle {
        let bytes = self.bytes.load(Ordering::Relaxed);
        self.flow.idle.fetch_add(bytes, Ordering::Relaxed);
        Idle { flow: Arc::clone(&self.flow), bytes }
    }

    /// The order in which the answers of its connection leave.
    pub(crate) fn sending(&self) -> &Sending {
        &self.flow.sending
    }

    /// Says that the client took a piece of an answer, or sent one of a request.
    pub(crate) fn note_moved(&self) {
        self.flow.moved.fetch_add(1, Ordering::Relaxed);
    }

    fn shrink(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.flow.own.give(bytes);
            self.flow.server.give(bytes);
            self.flow.line.wake();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_kept();
        let held = *self.bytes.get_mut();
        self.shrink(held);
    }
}

/// What arrives of a unary request: it counts for a lease, and a long request waits where there is no room.
struct Intake {
    lease: Arc<Lease>,
    room_wait_max: Duration,
    /// What was counted.
    arrived: usize,
    /// What the message will have with its prefix; none while that has not said it.
    announced: Option<u32>,
    /// Whether the connection keeps room for all of it.
    is_kept: bool,
    /// Whether it may not go on before there is room.
    is_over: bool,
    /// Of a request that had to wait.
    turn: Option<Box<Turn>>,
}

impl Intake {
    /// Counts `bytes`, which stand for `plain`.
    fn count(&mut self, bytes: usize, plain: &[u8]) -> Result<(), Failure> {
        // What is too long is refused by who reads it, and says so.
        let announces = match plain.split_first_chunk::<PREFIX_BYTES>() {
            Some((&[_, a, b, c, d], _)) if self.announced.is_none() => {
                let message_bytes = u32::from_be_bytes([a, b, c, d]) as usize;
                (message_bytes <= MESSAGE_BYTES_MAX).then_some((PREFIX_BYTES + message_bytes) as u32)
            }
            _ => None,
        };
        self.announced = self.announced.or(announces);
        self.arrived += bytes;
        if self.arrived.max(self.announced.unwrap_or_default() as usize) <= SHORT_BYTES {
            return self.lease.grow(bytes);
        }
        if let Some(bytes) = announces {
            self.lease.check_fits(bytes as usize)?;
        }
        self.lease.take(bytes);
        if let Some(turn) = &mut self.turn {
            turn.came(bytes, self.lease.has_room());
        }
        // Where there once was room for all of it, its end comes in.
        self.is_over = !(self.has_room() || (self.is_kept && self.unsent() == 0));
        Ok(())
    }

    /// What may still come.
    fn unsent(&self) -> usize {
        self.announced.map_or(usize::MAX, |announced| (announced as usize).saturating_sub(self.arrived))
    }

    /// Whether there is room for more, and the first time for all of it.
    fn has_room(&mut self) -> bool {
        match self.announced {
            Some(_) if self.is_kept => self.lease.server_has_room(),
            Some(bytes) => {
                self.is_kept = self.lease.announce(bytes as usize);
                self.is_kept
            }
            None => self.lease.has_room(),
        }
    }

    /// Waits until there is room for more.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if !self.is_over {
            return Poll::Ready(Ok(()));
        }
        let (held, lease, wait_max) =
            ((self.arrived, self.unsent()), Arc::clone(&self.lease), self.room_wait_max);
        let mut turn = self.turn.take().unwrap_or_default();
        let polled = turn.poll(&lease, held, wait_max, context, || self.has_room());
        self.turn = Some(turn);
        ready!(polled)?;
        self.is_over = false;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Intake {
    /// The request has come, or never will: its place in the line is that of its bytes.
    fn drop(&mut self) {
        let Some(mut waits) = self.turn.take().and_then(|turn| turn.waits) else { return };
        waits.is_whole();
        *self.lease.waits.lock().unwrap_or_else(PoisonError::into_inner) = Some(waits);
    }
}

/// The body of a request, watched.
pub(crate) struct RequestBody {
    body: Incoming,
    /// Counts what arrives; none for a stream, whose messages are counted by who reads them.
    intake: Option<Intake>,
    /// What came and may not go on yet.
    held: Option<Bytes>,
    /// None where the sender may be silent for as long as it likes.
    watch: Option<Watch>,
    /// Turns what arrives into plain frames of gRPC; none where it is.
    decoders: Option<Box<Decoders>>,
}

impl RequestBody {
    /// The body of a request whose bytes `lease` counts; where there is no room for them they wait at most `room_wait_max`.
    pub(crate) fn new(
        body: Incoming,
        lease: Arc<Lease>,
        patience: Patience,
        room_wait_max: Duration,
    ) -> Self {
        let intake = Intake {
            lease,
            room_wait_max,
            arrived: 0,
            announced: None,
            is_kept: false,
            is_over: false,
            turn: None,
        };
        Self { body, intake: Some(intake), held: None, watch: Some(Watch::new(patience)), decoders: None }
    }

    /// What arrives is in another dress than plain gRPC.
    pub(crate) fn decoded(self, decoders: Option<Decoders>) -> Self {
        Self { decoders: decoders.map(Box::new), ..self }
    }

    /// No longer counts what arrives: its reader does, in messages of at most `message_bytes_max`.
    pub(crate) fn uncounted(self, message_bytes_max: usize) -> Self {
        let decoders = self.decoders.map(|decoders| Box::new(decoders.bounded(message_bytes_max)));
        Self { intake: None, decoders, ..self }
    }

    /// Counts `bytes` that are held from now on, which stand for `plain`.
    fn count(&mut self, bytes: usize, plain: &[u8]) -> Result<(), Status> {
        match &mut self.intake {
            Some(intake) if bytes > 0 => intake.count(bytes, plain).map_err(Failure::into_status),
            _ => Ok(()),
        }
    }

    /// What the last frame of the transport stands for, as far as it was not taken yet.
    fn decoded_part(&mut self) -> Result<Option<Bytes>, Status> {
        self.decoders.as_mut().map_or(Ok(None), |decoders| decoders.next())
    }

    /// What a frame of the transport stands for; none where it is not enough yet.
    fn decode(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, Status> {
        let Some(decoders) = &mut self.decoders else { return Ok(Some(frame)) };
        match frame.into_data() {
            Ok(data) => {
                decoders.push(data)?;
                Ok(decoders.next()?.map(Frame::data))
            }
            Err(other) => Ok(Some(other)),
        }
    }

    /// As [`Self::uncounted`], and its sender may be silent: it holds nothing meanwhile, and keep-alive finds out where it is gone.
    pub(crate) fn unhurried(self, message_bytes_max: usize) -> Self {
        Self { watch: None, ..self.uncounted(message_bytes_max) }
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if let Some(intake) = &mut this.intake {
                ready!(intake.poll_room(context)).map_err(Failure::into_status)?;
            }
            if let Some(data) = this.held.take() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if let Some(part) = this.decoded_part()? {
                this.count(part.len(), &part)?;
                this.held = Some(part);
                continue;
            }
            let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
                let Some(watch) = &mut this.watch else { return Poll::Pending };
                return watch.poll(context).map(|failure| Some(Err(failure.into_status())));
            };
            return Poll::Ready(match frame {
                Some(Ok(frame)) => {
                    let arrived = frame.data_ref().map_or(0, Bytes::len);
                    if let Some(watch) = &mut this.watch {
                        watch.came(arrived).map_err(Failure::into_status)?;
                    }
                    // A slow sender is not one who does not take its answers.
                    if let Some(intake) = &this.intake {
                        intake.lease.note_moved();
                    }
                    let decoded = this.decode(frame)?;
                    let plain = decoded.as_ref().and_then(Frame::data_ref).map_or(&[][..], |data| data);
                    this.count(plain.len().max(arrived), plain)?;
                    let Some(frame) = decoded else { continue };
                    match frame.into_data() {
                        Ok(data) if this.intake.as_ref().is_some_and(|intake| intake.is_over) => {
                            this.held = Some(data);
                            continue;
                        }
                        Ok(data) => Some(Ok(Frame::data(data))),
                        Err(other) => Some(Ok(other)),
                    }
                }
                // A reset stream is an error here, not its end: tonic would take "cancelled" for the latter.
                Some(Err(error)) => Some(Err(Status::aborted(format!("the request broke off: {error}")))),
                None => match this.decoders.take().map_or(Ok(()), |decoders| decoders.end()) {
                    Ok(()) => None,
                    Err(status) => Some(Err(status)),
                },
            });
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.decoders.is_none() && self.held.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shoal_api::v1::failure::Kind;

    use super::*;

    proptest! {
        /// Whatever requests do, both sums are those of the leases, and neither passes its bound.
        #[test]
        fn the_sums_are_those_of_the_leases(
            steps in prop::collection::vec((0..2_usize, 0..6_usize, 0..5_u8, 0..70_usize), 1..60)
        ) {
            // So small that all requests are short: they may take all there is.
            let flow = Flow::new(100, 60);
            let connections = [flow.connection(), flow.connection()];
            // Each with what it holds, and what is kept for it.
            let mut leases: Vec<(usize, Arc<Lease>, usize, usize)> = Vec::new();
            let mut has_forced = false;
            for (connection, lease, action, bytes) in steps {
                let index = lease.checked_rem(leases.len()).unwrap_or(0);
                match (action, leases.get_mut(index)) {
                    (0, _) | (_, None) => leases.push((connection, connections[connection].lease(), 0, 0)),
                    (1, Some((_, lease, held, kept))) => {
                        if lease.set(bytes).is_ok() { *held = bytes; }
                        *kept = 0;
                    }
                    (2, Some((_, lease, held, kept))) if *kept == 0 => {
                        if lease.announce(bytes) { *kept = bytes.saturating_sub(*held); }
                    }
                    (3, Some((_, lease, held, kept))) => {
                        let bytes = bytes.min(*kept);
                        lease.take(bytes);
                        (*held, *kept, has_forced) = (*held + bytes, *kept - bytes, true);
                    }
                    (_, Some((_, lease, held, _))) if bytes > 3 => {
                        if lease.grow(bytes).is_ok() { *held += bytes; }
                    }
                    _ => drop(leases.swap_remove(index)),
                }
                let own = [0, 1].map(|wanted: usize| -> usize {
                    leases.iter().filter(|it| it.0 == wanted).map(|(_, _, held, kept)| held + kept).sum()
                });
                prop_assert_eq!([connections[0].own.used(), connections[1].own.used()], own);
                prop_assert_eq!(flow.bytes(), leases.iter().map(|it| it.2).sum::<usize>());
                prop_assert!(own[0] <= 60 && own[1] <= 60 && (flow.bytes() <= 100 || has_forced));
            }
            leases.clear();
            prop_assert_eq!([flow.bytes(), connections[0].own.used(), connections[1].own.used()], [0; 3]);
        }
    }

    /// Puts that waited for a device that stood still once took all there was, and gets of what is in memory were refused.
    #[test]
    fn long_requests_leave_room_for_reads() {
        let flow = Flow::new(800_000, 800_000);
        let (puts, more) = (flow.connection().lease(), flow.connection().lease());
        puts.take(700_000);
        assert!(!puts.announce(700_001) && !more.announce(SHORT_BYTES + 1));
        let get = flow.connection().lease();
        get.grow(50).unwrap();
        get.set(100_000).unwrap();
        assert!(more.set(1).is_err(), "there is an end for answers, too");
    }

    #[test]
    fn what_was_announced_has_its_room_and_nobody_else_on_its_connection() {
        let flow = Flow::new(1_000_000, 100_000);
        let (connection, other) = (flow.connection(), flow.connection());
        let (first, second) = (connection.lease(), connection.lease());
        first.take(10_000);
        assert!(first.announce(70_000));
        assert!(!second.announce(40_000), "before it has come");
        assert_eq!(flow.bytes(), 10_000, "what has not come does not count for the server");
        assert!(other.lease().announce(100_000), "alone it may have all");
        assert!(second.announce(17_000));
        assert!(!connection.lease().announce(SHORT_BYTES + 1), "the rest is for short ones");
        first.take(60_000);
        second.take(17_000);
        connection.lease().grow(SHORT_BYTES).unwrap();
        drop(first);
        assert_eq!(connection.own.used(), 17_000);
        assert!(second.check_fits(100_000).is_ok() && second.check_fits(100_001).is_err());
        // Where the server is full now, there is no sense in beginning.
        let full = Flow::new(100_000, 100_000);
        let held = full.connection().lease();
        held.take(80_000);
        assert!(!full.connection().lease().announce(10_000));
        assert!(full.connection().lease().grow(SHORT_BYTES).is_ok());
    }

    /// What the oldest message has in spite of all takes nothing from short requests.
    #[test]
    fn what_comes_without_room_is_on_top() {
        const FRAME: usize = FRAME_BYTES_MAX as usize;
        let flow = Flow::new(10 * FRAME, 20 * FRAME);
        let (full, oldest, next) = (flow.connection().lease(), flow.connection().lease(), flow.connection());
        full.take(9 * FRAME);
        let (mut turn, mut context) = (Turn::default(), Context::from_waker(std::task::Waker::noop()));
        for frames in 1..9 {
            oldest.take(FRAME);
            turn.came(FRAME, false);
            let polled = turn.poll(&oldest, (frames * FRAME, FRAME), Duration::ZERO, &mut context, || false);
            assert!(matches!(polled, Poll::Ready(Ok(()))));
        }
        assert_eq!(flow.budget.on_top.load(Ordering::Relaxed), 8 * FRAME);
        let get = next.lease();
        get.grow(FRAME).unwrap();
        assert!(get.grow(1).is_err(), "there is an end for short ones, too");
        drop((oldest, turn));
        assert_eq!([flow.bytes(), flow.budget.on_top.load(Ordering::Relaxed)], [10 * FRAME, 0]);
    }

    /// HTTP/2's window of a connection is left to those who may go on.
    #[test]
    fn those_who_wait_leave_a_part_of_the_window() {
        let flow = Flow::new(1 << 30, 1 << 30);
        let (connection, other) = (flow.connection(), flow.connection());
        let mut waiting: Vec<_> = std::iter::from_fn(|| Waits::join(&connection, usize::MAX)).collect();
        assert!(waiting.len() >= 112, "{}", waiting.len());
        assert!(Waits::join(&connection, 0).is_some() && Waits::join(&other, usize::MAX).is_some());
        waiting[0].is_whole();
        assert!(Waits::join(&connection, usize::MAX).is_some());
        drop(waiting);
        assert_eq!(connection.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_refused_lease_says_overloaded() {
        let flow = Flow::new(10, 10);
        let failure = flow.connection().lease().grow(11).unwrap_err();
        assert_eq!(failure.kind(), Kind::Overloaded);
    }

    #[test]
    fn a_connection_waits_only_while_it_holds_bytes_and_nobody_works() {
        let flow = Flow::new(10, 10).connection();
        assert_eq!(flow.waits_at(), None);
        let lease = flow.lease();
        lease.grow(1).unwrap();
        assert_eq!(flow.waits_at(), Some(0));
        let working = flow.working();
        assert_eq!(flow.waits_at(), None);
        drop(working);
        assert_eq!(flow.waits_at(), Some(0));
        // A stream that has nothing to send: it waits for nobody, and others wait as before.
        let idle = lease.idle();
        assert_eq!(flow.waits_at(), None);
        let other = flow.lease();
        other.grow(1).unwrap();
        assert_eq!(flow.waits_at(), Some(0));
        drop(idle);
        drop(other);
        assert_eq!(flow.waits_at(), Some(0));
        drop(lease);
        assert_eq!(flow.waits_at(), None);
    }
}
