//! Bounds on the bytes of requests and answers in memory, and on the time for which a peer may leave its answers untaken (`min_rate.rs`
//! watches the bytes that it sends).
//!
//! Every request holds a [`MemoryPermit`] from its first frame to the end of its answer. A unary request's permit grows with the received
//! frames, then counts the answer's length; the permit of a client's stream grows with the bytes of a message. A long message waits if
//! there is no room for the rest of it (`room_wait.rs`, `wait_queue.rs`); a short one, and an answer, is refused. A message announces its length at its
//! start: one that never fits is refused then, and one that does not fit now waits then, and not when most of it has arrived. The missing
//! room is reserved in its connection's share only, so a client that announces much and sends nothing delays only itself.

mod budget;
mod intake;
mod permit;
mod room_wait;
mod sending;
mod wait_queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use self::budget::Budget;
pub use self::intake::{Intake, StreamIntake};
pub use self::permit::{FramesPermit, Idle, MemoryPermit, NoRoom};
pub use self::sending::AnswerShare;
pub(crate) use self::sending::Sending;
use self::wait_queue::{OLDEST_BYTES, WINDOW_LEFT_BYTES, WaitQueue};
use crate::limits::{CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX};

/// A request of at most this length is a short one: most requests without values are.
const SHORT_BYTES: usize = 4 << 10;

/// The longest message that can finish when it is the oldest one in the queue, in bytes. A protocol takes no longer ones.
pub const WAITING_BYTES_MAX: usize = OLDEST_BYTES - FRAME_BYTES_MAX as usize;

/// The deadline of a request that may take `timeout` from now.
#[must_use]
pub fn deadline_after(timeout: Duration) -> Instant {
    Instant::now() + timeout
}

/// Requests that found no room.
#[derive(Debug, Default)]
pub struct Refused {
    /// The number of these requests.
    pub count: AtomicU64,
    /// Microseconds from their headers to the refusal, summed over all refused requests.
    pub after_us: AtomicU64,
    /// The longest of these times.
    pub after_us_max: AtomicU64,
}

impl Refused {
    fn add(&self, after: Duration) {
        let us = after.as_micros() as u64;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.after_us.fetch_add(us, Ordering::Relaxed);
        self.after_us_max.fetch_max(us, Ordering::Relaxed);
    }
}

/// The bytes in flight of the whole server. Clones share them.
#[derive(Clone, Debug)]
pub struct Flow {
    budget: Arc<Budget>,
    refused: Arc<Refused>,
    queue: Arc<WaitQueue>,
    connection_bytes_max: usize,
    /// Bytes of waiting messages that HTTP/2 may hold, of a connection and of all.
    waiting_max: usize,
    all_waiting_max: usize,
}

impl Flow {
    /// At most `bytes_max` bytes, and `connection_bytes_max` of each connection.
    #[must_use]
    pub fn new(bytes_max: usize, connection_bytes_max: usize) -> Self {
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

    /// The requests that found no room.
    #[must_use]
    pub fn refused(&self) -> &Refused {
        &self.refused
    }

    /// The bytes in use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.budget.used()
    }

    /// The flow of a new connection.
    #[must_use]
    pub fn connection(&self) -> Arc<ConnectionFlow> {
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
pub struct ConnectionFlow {
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

    /// The permit of a request that starts now: it holds nothing yet.
    #[must_use]
    pub fn permit(self: &Arc<Self>) -> Arc<MemoryPermit> {
        Arc::new(MemoryPermit::new(Arc::clone(self), Instant::now()))
    }

    /// Marks a handler as running until the result is dropped.
    #[inline]
    pub fn working(self: &Arc<Self>) -> RunningHandler {
        self.working.fetch_add(1, Ordering::Relaxed);
        RunningHandler(Arc::clone(self))
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

/// A running handler, until this is dropped.
#[must_use]
pub struct RunningHandler(Arc<ConnectionFlow>);

impl Drop for RunningHandler {
    #[inline]
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use proptest::prelude::*;

    use super::room_wait::{RoomWait, Waits};
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
