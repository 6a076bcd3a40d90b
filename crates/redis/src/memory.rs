//! The memory that commands and answers hold in all threads together, and the wait for room in it.
//!
//! A thread counts the memory of its connections by itself, and adds it here in steps: a short command costs no shared write.
//! If the sum is above its bound, the frontend is *short of memory*: long commands are not received any further (their clients
//! wait for TCP), long values are not read, and a command that reads many of them fails with TRYAGAIN. One connection or read
//! at a time is exempt, so that something always completes and frees its memory. Queued commands and watched keys never wait:
//! at twice the bound, a connection that adds to them is closed.
//!
//! Invariant: `used` is the sum of the threads' [`Ledger`]s and of all [`Room`]s, including dropped rooms that are not settled
//! yet.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use shoal_engine::Error;

/// Step in which a thread adds its memory.
const STEP_BYTES: usize = 64 << 10;
/// Commands and values of fewer bytes never wait for room.
pub(crate) const LONG_BYTES: usize = 64 << 10;
/// The hard bound, as a multiple of the bound at which long commands start to wait. The division of the server's memory has
/// room for it.
pub const HARD_FACTOR: usize = 2;
/// The exempt one is a read, and not a connection.
const A_READ: u64 = u64::MAX;

thread_local! {
    /// Bytes of rooms that were dropped on this thread: the values read into them are an answer now, which [`Ledger::settle`]
    /// counts.
    static DROPPED: Cell<usize> = const { Cell::new(0) };
}

/// See the top of the file.
#[derive(Debug)]
pub(crate) struct Memory {
    used: AtomicUsize,
    max: usize,
    /// The connection or read that may continue without room; 0: there is none.
    exempt: AtomicU64,
    waiters: Mutex<Vec<Waker>>,
    has_waiters: AtomicBool,
}

impl Memory {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            max,
            exempt: AtomicU64::new(0),
            waiters: Mutex::default(),
            has_waiters: AtomicBool::new(false),
        })
    }

    /// Returns true if more is held than the bound.
    pub(crate) fn is_short(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.max
    }

    /// Returns true if more than [`HARD_FACTOR`] times the bound is held: queued commands and watched keys never wait, so a
    /// connection that adds to them is closed.
    pub(crate) fn is_overfull(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.max.saturating_mul(HARD_FACTOR)
    }

    /// Returns true if the connection with this id may receive more of a long command.
    pub(crate) fn may_receive(&self, id: u64) -> bool {
        !self.is_short() || self.exempt.load(Ordering::Relaxed) == id || self.become_exempt(id)
    }

    fn become_exempt(&self, id: u64) -> bool {
        self.exempt.compare_exchange(0, id, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The connection with this id receives no long command any more: another one may become exempt.
    pub(crate) fn end_exemption(&self, id: u64) {
        if self.exempt.load(Ordering::Relaxed) == id
            && self.exempt.compare_exchange(id, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        {
            self.wake();
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let room = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= self.max);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).is_ok()
    }

    fn give(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        assert!(before >= bytes, "{bytes} bytes were given back of {before}");
        self.wake();
    }

    /// Wakes the waiting reads. Call it after a sequentially consistent write: either a waiter sees that, or this sees the
    /// waiter.
    fn wake(&self) {
        if self.has_waiters.load(Ordering::SeqCst) {
            let wakers = {
                let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
                self.has_waiters.store(false, Ordering::SeqCst);
                std::mem::take(&mut *waiters)
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits for room for a value of `bytes` bytes; a short one needs none.
    pub(crate) async fn room_for(&self, bytes: usize) -> Room<'_> {
        let mut room = self.room();
        if bytes < LONG_BYTES {
            return room;
        }
        poll_fn(|context| {
            if room.try_long(bytes) {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            waiters.push(context.waker().clone());
            self.has_waiters.store(true, Ordering::SeqCst);
            drop(waiters);
            // Memory may have been freed before the waker was registered.
            if room.try_long(bytes) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        room
    }

    /// A room without bytes, which can grow.
    pub(crate) fn room(&self) -> Room<'_> {
        Room { memory: self, taken: AtomicUsize::new(0), used: AtomicUsize::new(0), is_exempt: false }
    }
}

/// Memory for values that a command reads, until they are part of an answer.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    memory: &'a Memory,
    taken: AtomicUsize,
    used: AtomicUsize,
    is_exempt: bool,
}

impl Room<'_> {
    fn try_long(&mut self, bytes: usize) -> bool {
        if self.memory.take(bytes) {
            *self.taken.get_mut() = bytes;
        } else if self.memory.become_exempt(A_READ) {
            self.is_exempt = true;
        } else {
            return false;
        }
        *self.used.get_mut() = bytes;
        true
    }

    /// Takes `bytes` more.
    ///
    /// # Errors
    /// [`Error::Busy`]: there is no room.
    pub(crate) fn admit(&self, bytes: u64) -> Result<(), Error> {
        if self.grow(usize::try_from(bytes).unwrap_or(usize::MAX)) {
            return Ok(());
        }
        Err(Error::Busy("commands and answers use all of their memory"))
    }

    /// Takes `bytes` more; false if there is no room.
    #[must_use]
    pub(crate) fn grow(&self, bytes: usize) -> bool {
        // Relaxed: one task has the room; only a trait bound of `TransactOptions` requires that it can be shared.
        let used = self.used.load(Ordering::Relaxed).saturating_add(bytes);
        let taken = self.taken.load(Ordering::Relaxed);
        if used > taken && !self.is_exempt {
            let more = (used - taken).next_multiple_of(STEP_BYTES);
            if !self.memory.take(more) {
                return false;
            }
            self.taken.store(taken + more, Ordering::Relaxed);
        }
        self.used.store(used, Ordering::Relaxed);
        true
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        DROPPED.set(DROPPED.get() + *self.taken.get_mut());
        if self.is_exempt {
            self.memory.end_exemption(A_READ);
        }
    }
}

/// The memory of one thread's connections, as the others see it.
#[derive(Debug)]
pub(crate) struct Ledger {
    memory: Arc<Memory>,
    counted: usize,
}

impl Ledger {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        Self { memory, counted: 0 }
    }

    /// The connections of the thread hold `bytes` now.
    pub(crate) fn settle(&mut self, bytes: usize) {
        // A thread with little adds nothing: a few KiB of commands exist for one turn.
        let now = if bytes < STEP_BYTES { 0 } else { bytes.next_multiple_of(STEP_BYTES) };
        let before = self.counted + DROPPED.take();
        self.counted = now;
        if now > before {
            self.memory.used.fetch_add(now - before, Ordering::Relaxed);
        } else if now < before {
            self.memory.give(before - now);
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.settle(0);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use shoal_testkit::task::Wakes;

    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn sum_counts_threads_and_rooms() {
        let memory = Memory::new(8 * MIB);
        let (mut one, mut other) = (Ledger::new(memory.clone()), Ledger::new(memory.clone()));
        one.settle(STEP_BYTES - 1);
        assert_eq!(memory.used.load(Ordering::Relaxed), 0, "little is not told");
        one.settle(3 * MIB + 1);
        other.settle(2 * MIB);
        assert_eq!(memory.used.load(Ordering::Relaxed), 5 * MIB + STEP_BYTES);
        let room = memory.room();
        assert!(room.grow(2 * MIB) && !room.grow(2 * MIB) && !memory.is_short());
        drop(room);
        assert_eq!(memory.used.load(Ordering::Relaxed), 7 * MIB + STEP_BYTES, "it is an answer now");
        other.settle(4 * MIB);
        assert_eq!(memory.used.load(Ordering::Relaxed), 7 * MIB + STEP_BYTES, "which is counted");
        drop((one, other));
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_request_proceeds_without_room() {
        let memory = Memory::new(MIB);
        let mut ledger = Ledger::new(memory.clone());
        assert!(memory.may_receive(7) && memory.may_receive(8));
        ledger.settle(2 * MIB);
        assert!(memory.may_receive(7) && memory.may_receive(7), "the first one that asks");
        assert!(!memory.may_receive(8));
        let (wakes, waker) = Wakes::new();
        let mut context = Context::from_waker(&waker);
        let mut read = pin!(memory.room_for(MIB));
        assert!(read.as_mut().poll(&mut context).is_pending());
        memory.end_exemption(8);
        assert_eq!(wakes.count(), 0, "it was not exempt");
        memory.end_exemption(7);
        assert_eq!(wakes.count(), 1);
        let Poll::Ready(room) = read.as_mut().poll(&mut context) else { panic!("the read is exempt now") };
        assert!(!memory.may_receive(7));
        drop(room);
        assert!(memory.may_receive(8));
    }

    #[test]
    fn read_resumes_when_memory_is_freed() {
        let memory = Memory::new(2 * MIB);
        let mut ledger = Ledger::new(memory.clone());
        ledger.settle(2 * MIB);
        assert!(memory.become_exempt(1));
        let (wakes, waker) = Wakes::new();
        let mut context = Context::from_waker(&waker);
        let mut read = pin!(memory.room_for(MIB));
        assert!(read.as_mut().poll(&mut context).is_pending());
        ledger.settle(MIB);
        assert_eq!(wakes.count(), 1);
        assert!(read.as_mut().poll(&mut context).is_ready());
        let mut short = pin!(memory.room_for(LONG_BYTES - 1));
        assert!(short.as_mut().poll(&mut context).is_ready(), "a short one needs no room");
    }
}
