//! Turns of sending: the longer answers of a connection leave one after the other.
//!
//! HTTP/2 sends a frame of each of its answers in turn. So answers that were ready at once also finish at once, and a client that sends its
//! next request when it has an answer falls into step with its server: one works while the other waits. Here a connection gets a few
//! answers at a time, in the order of their requests, and more when all of them have left. A remaining piece then waits for a window that
//! its client closed, and delays no other answer.
//!
//! Measured with 64 KiB values and 100 calls in flight: `docs/measurements/performance-log.md`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::MemoryPermit;

/// Bytes of answers in a round; the last answer may pass it.
const ROUND_BYTES: usize = 32 << 10;

/// Shorter pieces need no turn: they are a frame each.
const TURN_BYTES_MIN: usize = 8 << 10;

/// The answers of one connection that wait for their turn.
#[derive(Debug)]
pub(crate) struct Sending(Mutex<Round>);

#[derive(Debug)]
struct Round {
    /// Bytes that may still be handed over.
    room: usize,
    /// The answers that wait, by ticket.
    waiting: VecDeque<(u64, Waker)>,
    tickets: u64,
    /// True if the connection could not write all of its bytes.
    is_blocked: bool,
    /// True if a piece that needs a turn was handed over.
    is_long: bool,
}

/// The place of an answer in the queue; it must be returned to [`Sending::leave`] if the answer finishes before its turn.
#[derive(Debug, Default)]
struct Ticket(Option<u64>);

impl Default for Sending {
    /// Without rounds the room is unlimited: for connections that send one answer at a time anyway.
    fn default() -> Self {
        Self(Mutex::new(Round {
            room: usize::MAX,
            waiting: VecDeque::new(),
            tickets: 0,
            is_blocked: false,
            is_long: false,
        }))
    }
}

impl Sending {
    fn round(&self) -> MutexGuard<'_, Round> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes if a write was refused because the peer has not taken the earlier bytes.
    pub(crate) fn note_blocked(&self, is_blocked: bool) {
        self.round().is_blocked = is_blocked;
    }

    /// Starts a round, if the connection, which has nothing more to do, wrote all that it could.
    pub(crate) fn begin_round(&self) {
        let mut round = self.round();
        if !round.is_blocked {
            round.room = ROUND_BYTES;
            round.wake_first();
        }
    }

    /// Returns true if a full round was handed over.
    pub(crate) fn is_over(&self) -> bool {
        self.round().room == 0
    }

    /// Returns true if a piece that needs a turn was handed over since the last call.
    pub(crate) fn take_is_long(&self) -> bool {
        std::mem::take(&mut self.round().is_long)
    }

    /// Returns true if a piece of `bytes` may leave now; if not, the context's task is woken when it may.
    fn is_turn(&self, ticket: &mut Ticket, bytes: usize, context: &Context<'_>) -> bool {
        if bytes < TURN_BYTES_MIN && ticket.0.is_none() {
            return true;
        }
        let mut round = self.round();
        let first = round.waiting.front().map(|(first, _)| *first);
        let is_first = ticket.0.map_or(first.is_none(), |own| first == Some(own));
        if is_first && round.room > 0 {
            if ticket.0.take().is_some() {
                round.waiting.pop_front();
            }
            round.room = round.room.saturating_sub(bytes);
            round.is_long = true;
            if round.room > 0 {
                round.wake_first();
            }
            return true;
        }
        match ticket.0 {
            Some(own) => {
                if let Some((_, waker)) = round.place_of(own).and_then(|place| round.waiting.get_mut(place)) {
                    waker.clone_from(context.waker());
                }
            }
            None => {
                round.tickets += 1;
                ticket.0 = Some(round.tickets);
                let own = (round.tickets, context.waker().clone());
                round.waiting.push_back(own);
            }
        }
        false
    }

    /// Leaves a place in the line.
    fn leave(&self, ticket: &mut Ticket) {
        let Some(own) = ticket.0.take() else { return };
        let mut round = self.round();
        if let Some(place) = round.place_of(own) {
            round.waiting.remove(place);
            // It may have been the one that was woken.
            if place == 0 && round.room > 0 {
                round.wake_first();
            }
        }
    }
}

impl Round {
    fn wake_first(&self) {
        if let Some((_, waker)) = self.waiting.front() {
            waker.wake_by_ref();
        }
    }

    /// The position of a ticket: they are handed out in order.
    fn place_of(&self, ticket: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }
}

/// The holdings of an answer while it is under way: its part of the budget, and its place in the line.
#[derive(Debug)]
pub struct AnswerShare {
    permit: Arc<MemoryPermit>,
    ticket: Ticket,
}

impl AnswerShare {
    /// The share of an answer whose bytes `permit` counts.
    #[must_use]
    pub fn new(permit: Arc<MemoryPermit>) -> Self {
        Self { permit, ticket: Ticket::default() }
    }

    /// The memory that it holds.
    #[must_use]
    pub fn permit(&self) -> &MemoryPermit {
        &self.permit
    }

    /// Ready when a piece of `bytes` may leave now: earlier answers of the connection were taken. The caller hands over the piece then.
    pub fn poll_turn(&mut self, bytes: usize, context: &Context<'_>) -> Poll<()> {
        if !self.permit.sending().is_turn(&mut self.ticket, bytes, context) {
            return Poll::Pending;
        }
        self.permit.note_moved();
        Poll::Ready(())
    }
}

impl Drop for AnswerShare {
    fn drop(&mut self) {
        self.permit.sending().leave(&mut self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use shoal_testkit::task::Wakes;

    use super::*;

    /// An answer that waits, or not.
    struct Answer {
        bell: Arc<Wakes>,
        waker: Waker,
        ticket: Ticket,
    }

    impl Answer {
        fn new() -> Self {
            let (bell, waker) = Wakes::new();
            Self { bell, waker, ticket: Ticket::default() }
        }

        fn asks(&mut self, sending: &Sending, bytes: usize) -> bool {
            sending.is_turn(&mut self.ticket, bytes, &Context::from_waker(&self.waker))
        }

        fn rang(&self) -> usize {
            self.bell.count()
        }
    }

    #[test]
    fn answers_leave_in_the_order_in_which_they_asked() {
        let sending = Sending::default();
        sending.begin_round();
        let [mut a, mut b, mut c, mut d] = std::array::from_fn(|_| Answer::new());
        assert!(a.asks(&sending, ROUND_BYTES - 1), "there is room");
        assert!(b.asks(&sending, ROUND_BYTES), "and a byte of it left");
        assert!(!c.asks(&sending, ROUND_BYTES) && !d.asks(&sending, ROUND_BYTES));
        assert!(sending.take_is_long() && !sending.take_is_long());
        assert!(Answer::new().asks(&sending, 100), "short ones do not wait");
        assert!(!sending.take_is_long());
        sending.note_blocked(true);
        sending.begin_round();
        assert_eq!((c.rang(), d.rang()), (0, 0), "what was handed over has not left");
        sending.note_blocked(false);
        sending.begin_round();
        assert_eq!((c.rang(), d.rang()), (1, 0));
        assert!(!d.asks(&sending, ROUND_BYTES), "it is not the first");
        assert!(!a.asks(&sending, ROUND_BYTES), "nobody overtakes who waits");
        assert!(c.asks(&sending, ROUND_BYTES));
        sending.leave(&mut d.ticket);
        sending.begin_round();
        assert_eq!(a.rang(), 1, "the place of who left is free");
        assert!(a.asks(&sending, 1));
    }

    #[test]
    fn woken_answer_that_leaves_wakes_the_next() {
        let sending = Sending::default();
        sending.begin_round();
        let [mut a, mut b, mut c] = std::array::from_fn(|_| Answer::new());
        assert!(a.asks(&sending, ROUND_BYTES));
        assert!(!b.asks(&sending, ROUND_BYTES) && !c.asks(&sending, ROUND_BYTES));
        sending.begin_round();
        sending.leave(&mut b.ticket);
        assert_eq!((b.rang(), c.rang()), (1, 1));
        assert!(c.asks(&sending, ROUND_BYTES));
    }

    #[test]
    fn without_rounds_no_answer_waits() {
        let sending = Sending::default();
        assert!((0..1000).all(|_| Answer::new().asks(&sending, 1 << 30)));
    }
}
