//! The memory of one request: its share of the bytes in flight, from its first frame to the end of its answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::budget::Budget;
use super::room_wait::Waits;
use super::{ConnectionFlow, Sending};

/// The requests and answers of a connection, or of all, take all the memory that they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// Those of the request's connection.
    #[error("this connection has too many bytes of requests and answers in progress")]
    Connection,
    /// Those of all connections.
    #[error("the server has too many bytes of requests and answers in progress")]
    Server,
}

/// A stream without anything to send: its memory does not wait for its client.
pub struct Idle {
    flow: Arc<ConnectionFlow>,
    bytes: usize,
}

impl Idle {
    /// Returns true if it covers all bytes that `permit` holds now.
    #[must_use]
    pub fn is_all_of(&self, permit: &MemoryPermit) -> bool {
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
pub struct FramesPermit {
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
pub struct MemoryPermit {
    pub(super) flow: Arc<ConnectionFlow>,
    started: Instant,
    bytes: AtomicUsize,
    /// Bytes that its connection keeps for the rest of the request.
    kept: AtomicUsize,
    /// The place of a unary request that waited for room, until its bytes are released.
    waits: Mutex<Option<Waits>>,
}

impl MemoryPermit {
    /// The permit of a request whose headers came at `started`.
    pub(super) fn new(flow: Arc<ConnectionFlow>, started: Instant) -> Self {
        Self { flow, started, bytes: AtomicUsize::new(0), kept: AtomicUsize::new(0), waits: Mutex::new(None) }
    }

    /// Takes `bytes` more, of a short request or an answer.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn grow(&self, bytes: usize) -> Result<(), NoRoom> {
        if !self.flow.own.take_short(bytes, self.flow.own.max) {
            return Err(self.refused(NoRoom::Connection));
        }
        if !self.flow.server.take_short(bytes, self.flow.server.short_max()) {
            self.flow.own.give(bytes);
            return Err(self.refused(NoRoom::Server));
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Announces that the request, a long one, will have `bytes` bytes; reserves room for the missing ones if there is room now. Only one
    /// thread at a time may call this.
    pub(super) fn announce(&self, bytes: usize) -> bool {
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
    pub(super) fn check_fits(&self, bytes: usize) -> Result<(), NoRoom> {
        if bytes > self.flow.own.max {
            return Err(self.refused(NoRoom::Connection));
        }
        if bytes > self.flow.server.long_max() {
            return Err(self.refused(NoRoom::Server));
        }
        Ok(())
    }

    /// Returns true if more may arrive of a request whose connection reserves the room for it.
    pub(super) fn server_has_room(&self) -> bool {
        self.flow.server.is_within(self.flow.server.long_max())
    }

    /// Holds exactly `bytes` from now on, for an answer. Only one thread at a time may call this.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn set(&self, bytes: usize) -> Result<(), NoRoom> {
        self.give_kept();
        let held = self.bytes.load(Ordering::Relaxed);
        self.shrink(held.saturating_sub(bytes));
        self.leave_line();
        if bytes > held { self.grow(bytes - held) } else { Ok(()) }
    }

    /// As [`Self::set`], but never refuses: for the answer of a write, which was applied and must not be reported as refused.
    pub fn set_regardless(&self, bytes: usize) {
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
    pub(super) fn keep_place(&self, waits: Option<Waits>) {
        *self.waits.lock().unwrap_or_else(PoisonError::into_inner) = waits;
    }

    /// Takes `bytes` of a message that have arrived already.
    pub fn take(&self, bytes: usize) {
        let kept = self.kept.load(Ordering::Relaxed).min(bytes);
        self.flow.own.force(bytes - kept);
        self.flow.server.force(bytes);
        self.kept.fetch_sub(kept, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Releases `bytes` of these.
    pub fn give(&self, bytes: usize) {
        self.shrink(bytes);
    }

    /// Takes `bytes` of the store's memory, for a value that is received into it.
    #[must_use]
    pub fn take_frames(&self, bytes: usize) -> Option<FramesPermit> {
        let server = Arc::clone(&self.flow.server);
        server.take_frames(bytes).then(|| FramesPermit { server, bytes })
    }

    /// Returns true if there was room for the bytes that it holds.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.flow.has_room()
    }

    /// The refusal of a request without room.
    #[must_use]
    pub fn no_room(&self) -> NoRoom {
        self.refused(NoRoom::Server)
    }

    #[cold]
    fn refused(&self, no_room: NoRoom) -> NoRoom {
        self.flow.refused.add(self.started.elapsed());
        no_room
    }

    fn give_kept(&self) {
        let kept = self.kept.swap(0, Ordering::Relaxed);
        if kept > 0 {
            self.flow.own.give(kept);
            self.flow.queue.wake();
        }
    }

    /// Notes that the client has nothing to take, until the result is dropped. The held bytes must not change meanwhile.
    #[must_use]
    pub fn idle(&self) -> Idle {
        let bytes = self.bytes.load(Ordering::Relaxed);
        self.flow.idle.fetch_add(bytes, Ordering::Relaxed);
        Idle { flow: Arc::clone(&self.flow), bytes }
    }

    /// The order in which the answers of its connection leave.
    pub(super) fn sending(&self) -> &Sending {
        &self.flow.sending
    }

    /// Notes that the client took a piece of an answer, or sent one of a request.
    #[inline]
    pub(super) fn note_moved(&self) {
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
