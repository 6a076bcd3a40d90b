//! Turns: a write batch of several keys that loses too many races queues for its keys instead of retrying for ever.
//!
//! The keys share lines by their hashes. A batch takes its places in all lines of its keys, in the order of the lines, and waits in each
//! until it is the first; so batches cannot wait in a circle. It keeps its places until its records are queued. Batches that arrive
//! meanwhile queue after it; writes of one key do not. After further conflicts the first batch closes its lines: writes of one key then
//! wait at the gate until the batch leaves. A line is no lock: a batch that waits in it holds nothing else, and the first batch may wait
//! for the device (`docs/locks.md`). While no batch queues, all of this costs a write one load.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicUsize, Ordering};
use shoal_base::sync::stripes;
use shoal_common::key::ObjectKey;
use smallvec::SmallVec;

use crate::hash_of;

/// The number of lines that the keys share.
const LINES: usize = stripes(256);

/// A line: the batches that queue for some keys.
#[derive(Default)]
struct Queue {
    /// The places in their order, each with its number and its waker. The first place has the turn.
    places: VecDeque<(u64, Option<Waker>)>,
    next: u64,
    /// True if writes of one key also wait at the gate; their wakers are in `at_gate`.
    closed: bool,
    at_gate: Vec<Waker>,
}

/// All lines.
pub struct Turns {
    lines: Box<[Mutex<Queue>]>,
    /// Counts of places in all lines and of closed lines. Relaxed: a write that misses one causes one more conflict.
    places: AtomicUsize,
    closed: AtomicUsize,
}

/// A place in one line, until it is dropped.
struct LinePlace<'a> {
    turns: &'a Turns,
    line: usize,
    number: u64,
}

/// The turn in the lines of some keys, until it is dropped.
pub struct Turn<'a> {
    places: SmallVec<[LinePlace<'a>; 4]>,
}

impl Default for Turns {
    fn default() -> Self {
        let lines = (0..LINES).map(|_| Mutex::default()).collect();
        Self { lines, places: AtomicUsize::new(0), closed: AtomicUsize::new(0) }
    }
}

fn line_of(hash: u64) -> usize {
    hash as usize % LINES
}

impl Turns {
    /// Returns true if any batch queues.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.places.load(Ordering::Relaxed) > 0
    }

    /// Returns true if a batch queues for one of the keys with these hashes.
    #[inline]
    pub fn is_busy(&self, hashes: impl IntoIterator<Item = u64>) -> bool {
        self.is_any() && hashes.into_iter().any(|hash| !self.lines[line_of(hash)].lock().places.is_empty())
    }

    /// Waits for the turn of the keys with these hashes.
    pub async fn take(&self, hashes: impl IntoIterator<Item = u64>) -> Turn<'_> {
        let mut lines: SmallVec<[usize; 4]> = hashes.into_iter().map(line_of).collect();
        lines.sort_unstable();
        lines.dedup();
        let mut turn = Turn { places: SmallVec::new() };
        for line in lines {
            let place = self.enter(line);
            poll_fn(|context| place.poll_first(context)).await;
            turn.places.push(place);
        }
        turn
    }

    fn enter(&self, line: usize) -> LinePlace<'_> {
        let mut queue = self.lines[line].lock();
        let number = queue.next;
        queue.next += 1;
        queue.places.push_back((number, None));
        self.places.fetch_add(1, Ordering::Relaxed);
        LinePlace { turns: self, line, number }
    }

    /// Returns true if any line is closed.
    #[inline]
    pub fn is_any_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) > 0
    }

    /// Returns true if a write of the key with this hash must wait at the gate.
    #[inline]
    pub fn is_closed(&self, hash: u64) -> bool {
        self.is_any_closed() && self.lines[line_of(hash)].lock().closed
    }

    /// Waits until a write of the key with this hash may start. The caller must hold no permit and no space: the first batch of the line
    /// may need them.
    pub async fn pass(&self, hash: u64) {
        if self.is_closed(hash) {
            poll_fn(|context| {
                let mut queue = self.lines[line_of(hash)].lock();
                if !queue.closed {
                    return Poll::Ready(());
                }
                queue.at_gate.push(context.waker().clone());
                Poll::Pending
            })
            .await;
        }
    }
}

impl Turn<'_> {
    /// Closes the lines: from now on writes of one key also wait.
    pub fn close(&self) {
        for place in &self.places {
            let mut queue = place.turns.lines[place.line].lock();
            if !std::mem::replace(&mut queue.closed, true) {
                place.turns.closed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl LinePlace<'_> {
    fn poll_first(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.turns.lines[self.line].lock();
        for (at, (number, waker)) in queue.places.iter_mut().enumerate() {
            if *number == self.number {
                if at == 0 {
                    return Poll::Ready(());
                }
                *waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        unreachable!("a place stays in its line until it is dropped")
    }
}

impl Drop for LinePlace<'_> {
    fn drop(&mut self) {
        let mut woken = SmallVec::<[Waker; 4]>::new();
        let mut queue = self.turns.lines[self.line].lock();
        let Some(at) = queue.places.iter().position(|(number, _)| *number == self.number) else { return };
        queue.places.remove(at);
        self.turns.places.fetch_sub(1, Ordering::Relaxed);
        if at == 0 {
            woken.extend(queue.places.front_mut().and_then(|(_, waker)| waker.take()));
            // Only the first batch closes the line.
            if std::mem::take(&mut queue.closed) {
                self.turns.closed.fetch_sub(1, Ordering::Relaxed);
                woken.extend(std::mem::take(&mut queue.at_gate));
            }
        }
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Conflicts of a batch before it queues for its keys, and again before it closes their lines.
const CONFLICTS_MAX: usize = 3;

/// The tries of a write batch, with the conflicts that it met.
pub struct Tries<'a> {
    turns: &'a Turns,
    conflicts: usize,
    turn: Option<Turn<'a>>,
}

impl<'a> Tries<'a> {
    /// A batch that has not been tried yet.
    pub fn new(turns: &'a Turns) -> Self {
        Self { turns, conflicts: 0, turn: None }
    }

    /// Called before each try of a batch of several keys: it queues if another batch queues for one of its keys.
    pub async fn begin<'k>(&mut self, keys: impl Iterator<Item = &'k ObjectKey> + Clone) {
        if self.turn.is_none() && self.turns.is_any() && self.turns.is_busy(keys.clone().map(hash)) {
            self.conflicts = self.conflicts.max(CONFLICTS_MAX);
        }
        self.go_on(keys).await;
    }

    /// Called before each try: the batch queues after too many conflicts, and closes its lines after twice as many.
    pub async fn go_on<'k>(&mut self, keys: impl Iterator<Item = &'k ObjectKey>) {
        if self.conflicts >= CONFLICTS_MAX && self.turn.is_none() {
            self.turn = Some(self.turns.take(keys.map(hash)).await);
        }
        if let Some(turn) = self.turn.as_ref().filter(|_| self.conflicts >= 2 * CONFLICTS_MAX) {
            turn.close();
        }
    }

    /// Notes a conflict: another write changed the keys first.
    pub fn conflict(&mut self) {
        self.conflicts += 1;
    }
}

fn hash(key: &ObjectKey) -> u64 {
    hash_of(key.encoded())
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};

    use shoal_testkit::task::Wakes;

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(waker))
    }

    #[test]
    fn turns_come_in_the_order_of_the_places() {
        let (turns, (wakes, waker)) = (Turns::default(), Wakes::new());
        assert!(!turns.is_busy([1, 2]));
        let mut first = pin!(turns.take([2, 1]));
        let Poll::Ready(first) = poll(first.as_mut(), &waker) else { panic!("nobody was there") };
        assert!(turns.is_busy([2]) && turns.is_busy([3, 1]) && !turns.is_busy([3]));
        let mut second = pin!(turns.take([2, 3]));
        let mut third = Box::pin(turns.take([2]));
        let mut fourth = pin!(turns.take([2]));
        assert!(poll(second.as_mut(), &waker).is_pending());
        assert!(poll(third.as_mut(), &waker).is_pending() && poll(fourth.as_mut(), &waker).is_pending());
        drop(first);
        assert_eq!(wakes.count(), 1, "the next one is woken, and nobody else");
        assert!(poll(third.as_mut(), &waker).is_pending() && poll(fourth.as_mut(), &waker).is_pending());
        let Poll::Ready(second) = poll(second.as_mut(), &waker) else { panic!("it is the first now") };
        // A place dropped in the middle leaves no gap.
        drop(third);
        drop(second);
        let Poll::Ready(fourth) = poll(fourth.as_mut(), &waker) else { panic!("it is the first now") };
        drop(fourth);
        assert!(!turns.is_busy([1, 2, 3]));
        assert_eq!(turns.places.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn writes_wait_at_a_closed_gate_only() {
        let (turns, (wakes, waker)) = (Turns::default(), Wakes::new());
        let mut turn = pin!(turns.take([1]));
        let Poll::Ready(turn) = poll(turn.as_mut(), &waker) else { panic!("nobody was there") };
        assert!(poll(pin!(turns.pass(1)), &waker).is_ready());
        turn.close();
        turn.close();
        let mut write = pin!(turns.pass(1));
        assert!(poll(write.as_mut(), &waker).is_pending() && poll(pin!(turns.pass(2)), &waker).is_ready());
        drop(turn);
        assert_eq!(wakes.count(), 1);
        assert!(poll(write.as_mut(), &waker).is_ready() && !turns.is_closed(1));
        assert_eq!(turns.closed.load(Ordering::Relaxed), 0);
    }
}
