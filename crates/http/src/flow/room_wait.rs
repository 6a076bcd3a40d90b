//! The wait of one message for room: in the queue, only after a frame came without room, and not for longer than it may.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use shoal_api::AwakeSleep;

use super::budget::KEPT_SHARE;
use super::wait_queue::{MessagePlace, OLDEST_BYTES};
use super::{ConnectionFlow, MemoryPermit, NoRoom, RunningHandler};
use crate::limits::{FRAME_BYTES_MAX, STREAM_WINDOW_BYTES};

/// A message's place in the queue, from its first wait until its bytes are released.
#[derive(Debug)]
pub(super) struct Waits {
    place: MessagePlace,
    flow: Arc<ConnectionFlow>,
    /// Bytes of it that HTTP/2 may hold.
    unread: usize,
    /// Bytes that it holds without room.
    on_top: usize,
}

impl Waits {
    /// `None` if, with this one, the waiting messages in HTTP/2 would leave the connection no room for another message to arrive, or if the
    /// waiting messages hold much without room.
    pub(super) fn join(flow: &Arc<ConnectionFlow>, unsent: usize) -> Option<Self> {
        let server = &flow.server;
        if server.on_top.load(Ordering::Relaxed) > OLDEST_BYTES + server.max / KEPT_SHARE {
            return None;
        }
        let unread = unsent.min(STREAM_WINDOW_BYTES as usize);
        if !add_within(&flow.waiting, unread, flow.waiting_max) {
            return None;
        }
        if !add_within(&flow.queue.waiting, unread, flow.all_waiting_max) {
            flow.waiting.fetch_sub(unread, Ordering::Relaxed);
            return None;
        }
        Some(Self { place: MessagePlace::join(&flow.queue), flow: Arc::clone(flow), unread, on_top: 0 })
    }

    /// Counts bytes that came without room.
    fn add_on_top(&mut self, bytes: usize) {
        self.on_top += bytes;
        self.flow.server.on_top.fetch_add(bytes, Ordering::Relaxed);
        self.flow.own.on_top.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The message is complete: HTTP/2 holds nothing of it.
    pub(super) fn is_whole(&mut self) {
        let unread = std::mem::take(&mut self.unread);
        self.flow.waiting.fetch_sub(unread, Ordering::Relaxed);
        self.flow.queue.waiting.fetch_sub(unread, Ordering::Relaxed);
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.is_whole();
        self.flow.server.on_top.fetch_sub(self.on_top, Ordering::Relaxed);
        self.flow.own.on_top.fetch_sub(self.on_top, Ordering::Relaxed);
    }
}

/// Adds `bytes` if the sum stays within `max`.
fn add_within(sum: &AtomicUsize, bytes: usize, max: usize) -> bool {
    let more = |sum: usize| sum.checked_add(bytes).filter(|&sum| sum <= max);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// The wait of one message for room: only after a frame came without room, and not for longer in all than it may.
#[derive(Default)]
pub(super) struct RoomWait {
    waits: Option<Waits>,
    /// The remaining time of waiting, after a first wait.
    left: Option<Duration>,
    /// While it waits: the rest of that time, and the mark that the server does not wait for the client.
    waiting: Option<(AwakeSleep, RunningHandler)>,
}

impl RoomWait {
    /// Notes `bytes` of the message that arrived and were taken by its permit; `has_room` is true if there was room for them.
    pub(super) fn came(&mut self, bytes: usize, has_room: bool) {
        if let Some(waits) = self.waits.as_mut().filter(|_| !has_room) {
            waits.add_on_top(bytes);
        }
    }

    /// The request is complete, or never will be: returns its place in the queue, which its bytes keep.
    pub(super) fn end(self) -> Option<Waits> {
        let mut waits = self.waits?;
        waits.is_whole();
        Some(waits)
    }

    /// Waits until the message may continue, of which `held` bytes have arrived and `unsent` may still come; `has_room` checks for room.
    /// Returns the error for its sender if there is none within `wait_max`, or too many wait.
    pub(super) fn poll(
        &mut self,
        permit: &MemoryPermit,
        (held, unsent): (usize, usize),
        wait_max: Duration,
        context: &mut Context<'_>,
        has_room: impl FnOnce() -> bool,
    ) -> Poll<Result<(), NoRoom>> {
        let flow = &permit.flow;
        if self.waits.is_none() {
            self.waits = Waits::join(flow, unsent);
            // The last frame came before.
            self.came(held.min(FRAME_BYTES_MAX as usize), flow.has_room());
        }
        let Some(waits) = &self.waits else { return Poll::Ready(Err(permit.no_room())) };
        if waits.place.may_go_on(held, FRAME_BYTES_MAX as usize, context.waker(), has_room) {
            if let Some((timer, _)) = self.waiting.take() {
                self.left = Some(timer.left());
            }
            return Poll::Ready(Ok(()));
        }
        let left = self.left.unwrap_or(wait_max);
        let (timer, _) = self.waiting.get_or_insert_with(|| (AwakeSleep::new(left), flow.working()));
        ready!(Pin::new(timer).poll(context));
        self.waiting = None;
        Poll::Ready(Err(permit.no_room()))
    }
}
