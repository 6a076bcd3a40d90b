//! The received bytes of requests: each counts for a permit, and a long request waits if there is no room.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::room_wait::RoomWait;
use super::{MemoryPermit, NoRoom, SHORT_BYTES};

/// The received bytes of a request that is kept as a whole.
pub struct Intake {
    permit: Arc<MemoryPermit>,
    room_wait_max: Duration,
    /// The bytes that were counted.
    arrived: usize,
    /// The length of the request; none while it is not known.
    announced: Option<u32>,
    /// True if the connection keeps room for all of it.
    is_kept: bool,
    /// True if it has to wait for room.
    is_over: bool,
    /// The place in the queue of a request that had to wait.
    wait: Option<Box<RoomWait>>,
}

impl Intake {
    /// Counts for `permit`. Bytes without room wait at most `room_wait_max`.
    #[must_use]
    pub fn new(permit: Arc<MemoryPermit>, room_wait_max: Duration) -> Self {
        Self {
            permit,
            room_wait_max,
            arrived: 0,
            announced: None,
            is_kept: false,
            is_over: false,
            wait: None,
        }
    }

    /// Returns true if it has to wait for room.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Notes that the client sent a piece of the request.
    #[inline]
    pub fn note_moved(&self) {
        self.permit.note_moved();
    }

    /// Counts `bytes` that arrived. `announces` returns the length of the whole request as soon as they show it; it is called until then.
    ///
    /// # Errors
    /// [`NoRoom`] if a short request finds no room, or a long one never would.
    pub fn count(&mut self, bytes: usize, announces: impl FnOnce() -> Option<u32>) -> Result<(), NoRoom> {
        let announces = if self.announced.is_none() { announces() } else { None };
        self.announced = self.announced.or(announces);
        self.arrived += bytes;
        if self.arrived.max(self.announced.unwrap_or_default() as usize) <= SHORT_BYTES {
            return self.permit.grow(bytes);
        }
        self.count_long(bytes, announces)
    }

    fn count_long(&mut self, bytes: usize, announces: Option<u32>) -> Result<(), NoRoom> {
        if let Some(bytes) = announces {
            self.permit.check_fits(bytes as usize)?;
        }
        self.permit.take(bytes);
        if let Some(wait) = &mut self.wait {
            wait.came(bytes, self.permit.has_room());
        }
        // Once there was room for all of it, its end is let in.
        self.is_over = !(self.has_room() || (self.is_kept && self.unsent() == 0));
        Ok(())
    }

    /// The bytes that may still come.
    fn unsent(&self) -> usize {
        self.announced.map_or(usize::MAX, |announced| (announced as usize).saturating_sub(self.arrived))
    }

    /// Returns true if there is room for more, and the first time for all of it.
    fn has_room(&mut self) -> bool {
        match self.announced {
            Some(_) if self.is_kept => self.permit.server_has_room(),
            Some(bytes) => {
                self.is_kept = self.permit.announce(bytes as usize);
                self.is_kept
            }
            None => self.permit.has_room(),
        }
    }

    /// Waits until there is room for more.
    ///
    /// # Errors
    /// [`NoRoom`] if there is none in time, or too many requests wait.
    #[inline]
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), NoRoom>> {
        if self.is_over { self.wait_for_room(context) } else { Poll::Ready(Ok(())) }
    }

    fn wait_for_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), NoRoom>> {
        let (held, permit, wait_max) =
            ((self.arrived, self.unsent()), Arc::clone(&self.permit), self.room_wait_max);
        let mut wait = self.wait.take().unwrap_or_default();
        let polled = wait.poll(&permit, held, wait_max, context, || self.has_room());
        self.wait = Some(wait);
        ready!(polled)?;
        self.is_over = false;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        if let Some(wait) = self.wait.take() {
            self.permit.keep_place(wait.end());
        }
    }
}

/// The received bytes of a stream of messages: they count as they arrive, until the next message is read.
pub struct StreamIntake {
    permit: Arc<MemoryPermit>,
    room_wait_max: Duration,
    /// Bytes of the frame and of the incomplete message.
    held: usize,
    /// Bytes of the message that was returned last.
    given: usize,
    /// True if a frame arrived without room for it.
    is_over: bool,
    /// Of the message that is arriving, and of the one that was returned last.
    wait: RoomWait,
}

impl StreamIntake {
    /// Counts for `permit`. A message that finds no room waits for it at most `room_wait_max`.
    #[must_use]
    pub fn new(permit: Arc<MemoryPermit>, room_wait_max: Duration) -> Self {
        Self { permit, room_wait_max, held: 0, given: 0, is_over: false, wait: RoomWait::default() }
    }

    /// Counts bytes that arrived.
    pub fn came(&mut self, bytes: usize) {
        self.permit.take(bytes);
        self.held += bytes;
        self.is_over = !self.permit.has_room();
        self.wait.came(bytes, !self.is_over);
    }

    /// A message of `bytes` is complete, and is returned to the reader.
    pub fn gives(&mut self, bytes: usize) {
        self.held -= bytes;
        self.given += bytes;
    }

    /// The reader asks for the next message: it has finished with the last one.
    pub fn end_message(&mut self) {
        if self.given > 0 {
            self.permit.give(std::mem::take(&mut self.given));
            self.wait = RoomWait::default();
        }
    }

    /// Waits until there is room for more of the message.
    ///
    /// # Errors
    /// [`NoRoom`] if there is none in time, or too many messages wait.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), NoRoom>> {
        if self.is_over && self.held > 0 {
            let (permit, wait_max) = (&self.permit, self.room_wait_max);
            // The total length is not known.
            let bytes = (self.held, usize::MAX);
            ready!(self.wait.poll(permit, bytes, wait_max, context, || permit.has_room()))?;
        }
        self.is_over = false;
        Poll::Ready(Ok(()))
    }
}

impl Drop for StreamIntake {
    fn drop(&mut self) {
        self.permit.give(self.held + self.given);
    }
}
