//! Bounds on the bytes of requests and answers in memory, and on the time for which a peer may leave its answers untaken (`min_rate`
//! watches the bytes that it sends).
//!
//! Every request holds a [`MemoryPermit`] from its first frame to the end of its answer. A unary request's permit grows with the received
//! frames, then counts the answer's length; the permit of a client's stream grows with the bytes of a message. A long message waits if
//! there is no room for the rest of it ([`RoomWait`], `wait_queue`); a short one, and an answer, is refused. A message announces its length at its
//! start: one that never fits is refused then, and one that does not fit now waits then, and not when most of it has arrived. The missing
//! room is reserved in its connection's share only, so a client that announces much and sends nothing delays only itself.

mod budget;
pub(crate) mod room_wait;
pub(crate) mod sending;
mod wait_queue;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shoal_api::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX};
use tokio::time::Instant;

use self::budget::Budget;
use self::room_wait::Waits;
use self::sending::Sending;
use self::wait_queue::{OLDEST_BYTES, WINDOW_LEFT_BYTES, WaitQueue};
use crate::failure::Failure;
use crate::wire::{CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX, PREFIX_BYTES};

/// Bytes that an answer in pieces may hold: the chunk in work, and the part of the next one that was read.
pub(crate) const STREAM_PERMIT_BYTES: usize = CHUNK_BYTES_MAX + CHUNK_BYTES_MAX / 2;

/// A request of at most this length is a short one: most requests without values are.
pub(crate) const SHORT_BYTES: usize = 4 << 10;

// Any request may continue when it is the oldest one in the queue.
const _: () = assert!(MESSAGE_BYTES_MAX + PREFIX_BYTES + FRAME_BYTES_MAX as usize <= OLDEST_BYTES);

/// The deadline of a call that may take `timeout` from now.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    Instant::now() + timeout
}

/// Requests that found no room.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    pub(crate) count: AtomicU64,
    /// Microseconds from their headers to the refusal, summed over all refused requests.
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
    queue: Arc<WaitQueue>,
    connection_bytes_max: usize,
    /// Bytes of waiting messages that HTTP/2 may hold, of a connection and of all.
    waiting_max: usize,
    all_waiting_max: usize,
}

impl Flow {
    pub(crate) fn new(bytes_max: usize, connection_bytes_max: usize) -> Self {
        let budget = Arc::new(Budget::new(bytes_max));
        let waiting_max = CONNECTION_WINDOW_BYTES as usize - WINDOW_LEFT_BYTES;
        Self {
            budget,
            refused: Arc::default(),
            queue: Arc::default(),
            connection_bytes_max,
            waiting_max,
            all_waiting_max: usize::MAX,
        }
    }

    /// With these bounds on the bytes in HTTP/2: the window of a connection, and the bytes of all messages that wait for room.
    pub(crate) fn with_waiting(self, window_bytes: u32, all_waiting_max: usize) -> Self {
        let waiting_max = (window_bytes as usize).saturating_sub(WINDOW_LEFT_BYTES);
        Self { waiting_max, all_waiting_max, ..self }
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
            queue: Arc::clone(&self.queue),
            waiting: AtomicUsize::new(0),
            waiting_max: self.waiting_max,
            all_waiting_max: self.all_waiting_max,
            own: Budget::new(self.connection_bytes_max),
            moved: AtomicU64::new(0),
            working: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            sending: Sending::default(),
            turn_ns: AtomicU64::new(0),
        })
    }
}

/// The bytes in flight of one connection, and a count of their moves.
#[derive(Debug)]
pub(crate) struct ConnectionFlow {
    server: Arc<Budget>,
    refused: Arc<Refused>,
    /// Messages that wait for room.
    queue: Arc<WaitQueue>,
    /// Bytes that HTTP/2 may hold of the connection's own ones among them.
    waiting: AtomicUsize,
    waiting_max: usize,
    all_waiting_max: usize,
    own: Budget,
    /// Frames of answers that were taken.
    moved: AtomicU64,
    /// Running handlers: the store is at work, or they watch the clock themselves.
    working: AtomicUsize,
    /// Bytes of streams that have nothing to send.
    idle: AtomicUsize,
    sending: Sending,
    /// The start of its turn, on the clock of the metrics; 0: not read yet.
    turn_ns: AtomicU64,
}

impl ConnectionFlow {
    /// The order in which its answers leave.
    pub(crate) fn sending(&self) -> &Sending {
        &self.sending
    }

    /// Starts a turn.
    pub(crate) fn begin_turn(&self) {
        self.turn_ns.store(0, Ordering::Relaxed);
    }

    /// The start of the turn: `now_ns` is called once in a turn.
    pub(crate) fn turn_ns(&self, now_ns: impl FnOnce() -> u64) -> u64 {
        // Relaxed: one task runs the turns of a connection.
        match self.turn_ns.load(Ordering::Relaxed) {
            0 => {
                let now_ns = now_ns();
                self.turn_ns.store(now_ns, Ordering::Relaxed);
                now_ns
            }
            turn_ns => turn_ns,
        }
    }

    pub(crate) fn permit(self: &Arc<Self>) -> Arc<MemoryPermit> {
        let started = Instant::now();
        Arc::new(MemoryPermit {
            flow: Arc::clone(self),
            started,
            bytes: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            waits: Mutex::new(None),
        })
    }

    /// Marks a handler as running until the result is dropped.
    pub(crate) fn working(self: &Arc<Self>) -> Working {
        self.working.fetch_add(1, Ordering::Relaxed);
        Working(Arc::clone(self))
    }

    /// Returns true if more of a long request may come in.
    fn has_room(&self) -> bool {
        self.own.is_within(self.own.max) && self.server.is_within(self.server.long_max())
    }

    /// The count of moves so far if the connection waits for its client to take bytes.
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

/// A stream without anything to send: its memory does not wait for its client.
pub(crate) struct Idle {
    flow: Arc<ConnectionFlow>,
    bytes: usize,
}

impl Idle {
    /// Returns true if it covers all bytes that `permit` holds now.
    pub(crate) fn is_all_of(&self, permit: &MemoryPermit) -> bool {
        self.bytes == permit.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.flow.idle.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The store's memory into which the value of a request is received; released when the permit is dropped.
#[derive(Debug)]
pub(crate) struct FramesPermit {
    server: Arc<Budget>,
    bytes: usize,
}

impl Drop for FramesPermit {
    fn drop(&mut self) {
        self.server.give_frames(self.bytes);
    }
}

/// The memory that one request holds; released when the permit is dropped.
#[derive(Debug)]
pub(crate) struct MemoryPermit {
    flow: Arc<ConnectionFlow>,
    started: Instant,
    bytes: AtomicUsize,
    /// Bytes that its connection keeps for the rest of the request.
    kept: AtomicUsize,
    /// The place of a unary request that waited for room, until its bytes are released.
    waits: Mutex<Option<Waits>>,
}

impl MemoryPermit {
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

    /// Announces that the request, a long one, will have `bytes` bytes; reserves room for the missing ones if there is room now. Only one
    /// thread at a time may call this.
    pub(crate) fn announce(&self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes.load(Ordering::Relaxed));
        let flow = &self.flow;
        if !flow.server.has_room(more, flow.server.long_max()) {
            return false;
        }
        // The bytes that have arrived are counted already.
        let has_room = flow.own.take(more, flow.own.max_for(bytes));
        self.kept.fetch_add(if has_room { more } else { 0 }, Ordering::Relaxed);
        has_room
    }

    /// Refuses a long request of `bytes` that would find no room even if it were alone.
    pub(crate) fn check_fits(&self, bytes: usize) -> Result<(), Failure> {
        if bytes > self.flow.own.max {
            return Err(self.refused("this connection"));
        }
        if bytes > self.flow.server.long_max() {
            return Err(self.refused("the server"));
        }
        Ok(())
    }

    /// Returns true if more may arrive of a request whose connection reserves the room for it.
    pub(crate) fn server_has_room(&self) -> bool {
        self.flow.server.is_within(self.flow.server.long_max())
    }

    /// Holds exactly `bytes` from now on, for an answer. Only one thread at a time may call this.
    pub(crate) fn set(&self, bytes: usize) -> Result<(), Failure> {
        self.give_kept();
        let held = self.bytes.load(Ordering::Relaxed);
        self.shrink(held.saturating_sub(bytes));
        self.leave_line();
        if bytes > held { self.grow(bytes - held) } else { Ok(()) }
    }

    /// As [`Self::set`], but never refuses: for the answer of a write, which was applied and must not be reported as refused.
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

    /// Its request's bytes were released: the next one may continue, if this one had waited for room.
    fn leave_line(&self) {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(waits);
    }

    /// Keeps the place in the queue of a request that waited for room until its bytes are released.
    pub(crate) fn keep_place(&self, waits: Option<Waits>) {
        *self.waits.lock().unwrap_or_else(PoisonError::into_inner) = waits;
    }

    /// Takes `bytes` of a message that have arrived already.
    pub(crate) fn take(&self, bytes: usize) {
        let kept = self.kept.load(Ordering::Relaxed).min(bytes);
        self.flow.own.force(bytes - kept);
        self.flow.server.force(bytes);
        self.kept.fetch_sub(kept, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Releases `bytes` of these.
    pub(crate) fn give(&self, bytes: usize) {
        self.shrink(bytes);
    }

    /// Takes `bytes` of the store's memory, for a value that is received into it.
    pub(crate) fn take_frames(&self, bytes: usize) -> Option<FramesPermit> {
        let server = Arc::clone(&self.flow.server);
        server.take_frames(bytes).then(|| FramesPermit { server, bytes })
    }

    /// Returns true if there was room for the bytes that it holds.
    pub(crate) fn has_room(&self) -> bool {
        self.flow.has_room()
    }

    /// The refusal of a request without room.
    pub(crate) fn no_room(&self) -> Failure {
        self.refused("the server")
    }

    fn refused(&self, who: &str) -> Failure {
        self.flow.refused.add(self.started.elapsed());
        Failure::overloaded(format!("{who} has too many bytes of requests and answers in progress"))
    }

    fn give_kept(&self) {
        let kept = self.kept.swap(0, Ordering::Relaxed);
        if kept > 0 {
            self.flow.own.give(kept);
            self.flow.queue.wake();
        }
    }

    /// Notes that the client has nothing to take, until the result is dropped. The held bytes must not change meanwhile.
    pub(crate) fn idle(&self) -> Idle {
        let bytes = self.bytes.load(Ordering::Relaxed);
        self.flow.idle.fetch_add(bytes, Ordering::Relaxed);
        Idle { flow: Arc::clone(&self.flow), bytes }
    }

    /// The order in which the answers of its connection leave.
    pub(crate) fn sending(&self) -> &Sending {
        &self.flow.sending
    }

    /// Notes that the client took a piece of an answer, or sent one of a request.
    pub(crate) fn note_moved(&self) {
        self.flow.moved.fetch_add(1, Ordering::Relaxed);
    }

    fn shrink(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.flow.own.give(bytes);
            self.flow.server.give(bytes);
            self.flow.queue.wake();
        }
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.give_kept();
        let held = *self.bytes.get_mut();
        self.shrink(held);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shoal_api::v1::failure::Kind;

    use std::task::{Context, Poll};

    use super::room_wait::RoomWait;
    use super::*;

    proptest! {
        /// After any steps of requests, both sums are those of the permits, and neither exceeds its bound.
        #[test]
        fn totals_match_permits(
            steps in prop::collection::vec((0..2_usize, 0..6_usize, 0..5_u8, 0..70_usize), 1..60)
        ) {
            // Small enough for all requests to be short: they may take the whole budget.
            let flow = Flow::new(100, 60);
            let connections = [flow.connection(), flow.connection()];
            // Each permit with the bytes that it holds, and those reserved for it.
            let mut permits: Vec<(usize, Arc<MemoryPermit>, usize, usize)> = Vec::new();
            let mut has_forced = false;
            for (connection, permit, action, bytes) in steps {
                let index = permit.checked_rem(permits.len()).unwrap_or(0);
                match (action, permits.get_mut(index)) {
                    (0, _) | (_, None) => permits.push((connection, connections[connection].permit(), 0, 0)),
                    (1, Some((_, permit, held, kept))) => {
                        if permit.set(bytes).is_ok() { *held = bytes; }
                        *kept = 0;
                    }
                    (2, Some((_, permit, held, kept))) if *kept == 0 => {
                        if permit.announce(bytes) { *kept = bytes.saturating_sub(*held); }
                    }
                    (3, Some((_, permit, held, kept))) => {
                        let bytes = bytes.min(*kept);
                        permit.take(bytes);
                        (*held, *kept, has_forced) = (*held + bytes, *kept - bytes, true);
                    }
                    (_, Some((_, permit, held, _))) if bytes > 3 => {
                        if permit.grow(bytes).is_ok() { *held += bytes; }
                    }
                    _ => drop(permits.swap_remove(index)),
                }
                let own = [0, 1].map(|wanted: usize| -> usize {
                    permits.iter().filter(|it| it.0 == wanted).map(|(_, _, held, kept)| held + kept).sum()
                });
                prop_assert_eq!([connections[0].own.used(), connections[1].own.used()], own);
                prop_assert_eq!(flow.bytes(), permits.iter().map(|it| it.2).sum::<usize>());
                prop_assert!(own[0] <= 60 && own[1] <= 60 && (flow.bytes() <= 100 || has_forced));
            }
            permits.clear();
            prop_assert_eq!([flow.bytes(), connections[0].own.used(), connections[1].own.used()], [0; 3]);
        }
    }

    /// A regression: puts that waited for a hanging device took all of the budget, and gets from memory were refused.
    #[test]
    fn long_requests_leave_room_for_reads() {
        let flow = Flow::new(800_000, 800_000);
        let (puts, more) = (flow.connection().permit(), flow.connection().permit());
        puts.take(700_000);
        assert!(!puts.announce(700_001) && !more.announce(SHORT_BYTES + 1));
        let get = flow.connection().permit();
        get.grow(50).unwrap();
        get.set(100_000).unwrap();
        assert!(more.set(1).is_err(), "there is an end for answers, too");
    }

    #[test]
    fn announced_message_reserves_connection_room() {
        let flow = Flow::new(1_000_000, 100_000);
        let (connection, other) = (flow.connection(), flow.connection());
        let (first, second) = (connection.permit(), connection.permit());
        first.take(10_000);
        assert!(first.announce(70_000));
        assert!(!second.announce(40_000), "before it has come");
        assert_eq!(flow.bytes(), 10_000, "what has not come does not count for the server");
        assert!(other.permit().announce(100_000), "alone it may have all");
        assert!(second.announce(17_000));
        assert!(!connection.permit().announce(SHORT_BYTES + 1), "the rest is for short ones");
        first.take(60_000);
        second.take(17_000);
        connection.permit().grow(SHORT_BYTES).unwrap();
        drop(first);
        assert_eq!(connection.own.used(), 17_000);
        assert!(second.check_fits(100_000).is_ok() && second.check_fits(100_001).is_err());
        // If the server is full now, the request does not start.
        let full = Flow::new(100_000, 100_000);
        let held = full.connection().permit();
        held.take(80_000);
        assert!(!full.connection().permit().announce(10_000));
        assert!(full.connection().permit().grow(SHORT_BYTES).is_ok());
    }

    /// The bytes that the oldest message has without room take nothing from short requests.
    #[test]
    fn bytes_without_room_do_not_reduce_short_requests() {
        const FRAME: usize = FRAME_BYTES_MAX as usize;
        let flow = Flow::new(10 * FRAME, 20 * FRAME);
        let (full, oldest, next) =
            (flow.connection().permit(), flow.connection().permit(), flow.connection());
        full.take(9 * FRAME);
        let (mut wait, mut context) = (RoomWait::default(), Context::from_waker(std::task::Waker::noop()));
        for frames in 1..9 {
            oldest.take(FRAME);
            wait.came(FRAME, false);
            let polled = wait.poll(&oldest, (frames * FRAME, FRAME), Duration::ZERO, &mut context, || false);
            assert!(matches!(polled, Poll::Ready(Ok(()))));
        }
        assert_eq!(flow.budget.on_top.load(Ordering::Relaxed), 8 * FRAME);
        let get = next.permit();
        get.grow(FRAME).unwrap();
        assert!(get.grow(1).is_err(), "there is an end for short ones, too");
        drop((oldest, wait));
        assert_eq!([flow.bytes(), flow.budget.on_top.load(Ordering::Relaxed)], [10 * FRAME, 0]);
    }

    /// HTTP/2's window of a connection is left to the messages that may continue.
    #[test]
    fn waiting_messages_leave_a_part_of_the_window() {
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
    fn a_refused_permit_says_overloaded() {
        let flow = Flow::new(10, 10);
        let failure = flow.connection().permit().grow(11).unwrap_err();
        assert_eq!(failure.kind(), Kind::Overloaded);
    }

    #[test]
    fn peer_wait_counts_only_with_bytes_and_without_work() {
        let flow = Flow::new(10, 10).connection();
        assert_eq!(flow.waits_at(), None);
        let permit = flow.permit();
        permit.grow(1).unwrap();
        assert_eq!(flow.waits_at(), Some(0));
        let working = flow.working();
        assert_eq!(flow.waits_at(), None);
        drop(working);
        assert_eq!(flow.waits_at(), Some(0));
        // A stream without anything to send: it waits for no client, and others wait as before.
        let idle = permit.idle();
        assert_eq!(flow.waits_at(), None);
        let other = flow.permit();
        other.grow(1).unwrap();
        assert_eq!(flow.waits_at(), Some(0));
        drop(idle);
        drop(other);
        assert_eq!(flow.waits_at(), Some(0));
        drop(permit);
        assert_eq!(flow.waits_at(), None);
    }
}
