//! The received bytes of a unary request: each counts for a permit, and a long request waits if there is no room.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use shoal_api::MESSAGE_BYTES_MAX;

use crate::failure::Failure;
use crate::flow::room_wait::RoomWait;
use crate::flow::{MemoryPermit, SHORT_BYTES};
use crate::wire::PREFIX_BYTES;

/// The received bytes of a unary request: each counts for a permit, and a long request waits if there is no room.
pub(super) struct Intake {
    permit: Arc<MemoryPermit>,
    room_wait_max: Duration,
    /// The bytes that were counted.
    arrived: usize,
    /// The length of the message with its prefix; none while the prefix is not there.
    announced: Option<u32>,
    /// True if the connection keeps room for all of it.
    is_kept: bool,
    /// True if it has to wait for room.
    is_over: bool,
    /// The place in the queue of a request that had to wait.
    wait: Option<Box<RoomWait>>,
}

impl Intake {
    pub(super) fn new(permit: Arc<MemoryPermit>, room_wait_max: Duration) -> Self {
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
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Notes that the client sent a piece of the request.
    pub(super) fn note_moved(&self) {
        self.permit.note_moved();
    }

    /// Counts `bytes`, which decode to `plain`.
    pub(super) fn count(&mut self, bytes: usize, plain: &[u8]) -> Result<(), Failure> {
        // The reader of the message refuses a message that is too long, with the right error.
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
            return self.permit.grow(bytes);
        }
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
    pub(super) fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if !self.is_over {
            return Poll::Ready(Ok(()));
        }
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
