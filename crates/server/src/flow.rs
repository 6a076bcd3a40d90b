//! Bounds on the bytes of requests and answers that are in memory, and on the patience with who takes them (`patience` has
//! that with who sends).
//!
//! Every request holds a [`Lease`] from its first frame to the end of its answer. A unary request's lease grows with the
//! frames that arrive, then stands for the answer's length; a stream reserves a chunk for its whole life. What does not
//! fit is refused: waiting for room would let a slow client stop the others. A message says at its beginning how long it
//! is: one that will not fit is refused then, and not when most of it was carried here in vain. The room that it still needs
//! is kept of its connection's share only, so that who announces much and sends nothing is in nobody's way but its own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use hyper::body::Incoming;
use shoal_api::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX};
use tokio::time::Instant;
use tonic::Status;

use crate::decode::Decoders;
use crate::failure::Failure;
use crate::patience::{Patience, Watch};
use crate::sending::Sending;
use crate::unary::PREFIX_BYTES;

/// What a stream may hold, in bytes: the chunk in work, and what has arrived of the next.
pub(crate) const STREAM_LEASE_BYTES: usize = CHUNK_BYTES_MAX + CHUNK_BYTES_MAX / 2;

/// Of the bytes in flight one of so many is kept for answers and for short requests: puts that wait for a device that stands still
/// must not stop reads of what is in memory.
const KEPT_SHARE: usize = 8;

/// A request of up to so many bytes is a short one: most that put nothing are.
const SHORT_BYTES: usize = 4 << 10;

/// When a call that may take `timeout` from now is over.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    Instant::now() + timeout
}

/// How many bytes are taken, of how many.
#[derive(Debug)]
struct Budget {
    used: AtomicUsize,
    max: usize,
}

impl Budget {
    fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), max }
    }

    /// Whether `bytes` more stay within `max` now.
    fn has_room(&self, bytes: usize, max: usize) -> bool {
        self.used().checked_add(bytes).is_some_and(|sum| sum <= max)
    }

    /// Takes `bytes`, where the sum stays within `max`.
    fn take(&self, bytes: usize, max: usize) -> bool {
        // Relaxed: nothing else is read or written on the strength of this number.
        let room = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    /// Takes `bytes` even where there is no room.
    fn force(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "{bytes} bytes were given back of {before}");
    }

    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
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
    connection_bytes_max: usize,
}

impl Flow {
    pub(crate) fn new(bytes_max: usize, connection_bytes_max: usize) -> Self {
        Self { budget: Arc::new(Budget::new(bytes_max)), refused: Arc::default(), connection_bytes_max }
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
        })
    }

    /// Says that a handler runs until what this gives is dropped.
    pub(crate) fn working(self: &Arc<Self>) -> Working {
        self.working.fetch_add(1, Ordering::Relaxed);
        Working(Arc::clone(self))
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

impl Drop for Idle {
    fn drop(&mut self) {
        self.flow.idle.fetch_sub(self.bytes, Ordering::Relaxed);
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
}

impl Lease {
    /// Takes `bytes` more, of a request.
    pub(crate) fn grow(&self, bytes: usize) -> Result<(), Failure> {
        self.grow_within(bytes, self.server_max(self.bytes.load(Ordering::Relaxed) + bytes))
    }

    /// Says that the request will have `bytes` in all, and keeps room for what has not arrived. Only one thread at a time may
    /// call this.
    pub(crate) fn announce(&self, bytes: usize) -> Result<(), Failure> {
        let more = bytes.saturating_sub(self.bytes.load(Ordering::Relaxed));
        if !self.flow.server.has_room(more, self.server_max(bytes)) {
            return Err(self.refused("the server"));
        }
        if !self.flow.own.take(more, self.flow.own.max) {
            return Err(self.refused("this connection"));
        }
        self.kept.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    /// How much there may be in all where a request of `bytes` is let in.
    fn server_max(&self, bytes: usize) -> usize {
        let max = self.flow.server.max;
        if bytes <= SHORT_BYTES { max } else { max - max / KEPT_SHARE }
    }

    fn grow_within(&self, bytes: usize, server_max: usize) -> Result<(), Failure> {
        let kept = self.kept.load(Ordering::Relaxed).min(bytes);
        if !self.flow.own.take(bytes - kept, self.flow.own.max) {
            return Err(self.refused("this connection"));
        }
        if !self.flow.server.take(bytes, server_max) {
            self.flow.own.give(bytes - kept);
            return Err(self.refused("the server"));
        }
        self.kept.fetch_sub(kept, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Holds just `bytes` from now on, for an answer. Only one thread at a time may call this.
    pub(crate) fn set(&self, bytes: usize) -> Result<(), Failure> {
        self.give_kept();
        let held = self.bytes.load(Ordering::Relaxed);
        if bytes > held {
            return self.grow_within(bytes - held, self.flow.server.max);
        }
        self.shrink(held - bytes);
        Ok(())
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
    }

    fn refused(&self, who: &str) -> Failure {
        self.flow.refused.add(self.begun.elapsed());
        Failure::overloaded(format!("{who} has too many bytes of requests and answers under way"))
    }

    fn give_kept(&self) {
        self.flow.own.give(self.kept.swap(0, Ordering::Relaxed));
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
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.flow.own.give(bytes);
        self.flow.server.give(bytes);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_kept();
        let held = *self.bytes.get_mut();
        self.flow.own.give(held);
        self.flow.server.give(held);
    }
}

/// The body of a request, watched.
pub(crate) struct RequestBody {
    body: Incoming,
    /// Grows with what arrives; none for a stream, which has reserved what it may hold.
    lease: Option<Arc<Lease>>,
    /// None where the sender may be silent for as long as it likes.
    watch: Option<Watch>,
    /// Turns what arrives into plain frames of gRPC; none where it is.
    decoders: Option<Box<Decoders>>,
    /// Whether nothing of it was counted yet.
    is_new: bool,
}

impl RequestBody {
    pub(crate) fn new(body: Incoming, lease: Arc<Lease>, patience: Patience) -> Self {
        Self { body, lease: Some(lease), watch: Some(Watch::new(patience)), decoders: None, is_new: true }
    }

    /// What arrives is in another dress than plain gRPC.
    pub(crate) fn decoded(self, decoders: Option<Decoders>) -> Self {
        Self { decoders: decoders.map(Box::new), ..self }
    }

    /// No longer counts what arrives: its reader holds at most a chunk, in messages of at most `message_bytes_max`.
    pub(crate) fn uncounted(self, message_bytes_max: usize) -> Self {
        let decoders = self.decoders.map(|decoders| Box::new(decoders.bounded(message_bytes_max)));
        Self { lease: None, decoders, ..self }
    }

    /// Counts `bytes` that are held from now on, and with the first ones `plain`, where its message says how long it is, the
    /// rest of it.
    fn count(&mut self, bytes: usize, plain: &[u8]) -> Result<(), Status> {
        let Some(lease) = &self.lease else { return Ok(()) };
        let was_new = self.is_new;
        lease.grow(bytes).map_err(Failure::into_status)?;
        self.is_new &= plain.is_empty();
        if was_new && let Some((&[_, a, b, c, d], _)) = plain.split_first_chunk::<PREFIX_BYTES>() {
            let message_bytes = u32::from_be_bytes([a, b, c, d]) as usize;
            // What is too long is refused by who reads it, and says so.
            if message_bytes <= MESSAGE_BYTES_MAX {
                lease.announce(PREFIX_BYTES + message_bytes).map_err(Failure::into_status)?;
            }
        }
        Ok(())
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

    /// As [`Self::uncounted`], and its sender may be silent: it has reserved what it may hold, and keep-alive finds out where
    /// it is gone.
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
        if let Some(part) = self.decoded_part()? {
            return Poll::Ready(Some(self.count(part.len(), &part).map(|()| Frame::data(part))));
        }
        loop {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
                let Some(watch) = &mut self.watch else { return Poll::Pending };
                return watch.poll(context).map(|failure| Some(Err(failure.into_status())));
            };
            return Poll::Ready(match frame {
                Some(Ok(frame)) => {
                    let arrived = frame.data_ref().map_or(0, Bytes::len);
                    if let Some(watch) = &mut self.watch {
                        watch.came(arrived).map_err(Failure::into_status)?;
                    }
                    // A slow sender is not one who does not take its answers.
                    if let Some(lease) = &self.lease {
                        lease.note_moved();
                    }
                    let decoded = self.decode(frame)?;
                    let plain = decoded.as_ref().and_then(Frame::data_ref).map_or(&[][..], |data| data);
                    if let Err(status) = self.count(plain.len().max(arrived), plain) {
                        return Poll::Ready(Some(Err(status)));
                    }
                    let Some(frame) = decoded else { continue };
                    Some(Ok(frame))
                }
                // A reset stream is an error here, not its end: tonic would take "cancelled" for the latter.
                Some(Err(error)) => Some(Err(Status::aborted(format!("the request broke off: {error}")))),
                None => match self.decoders.take().map_or(Ok(()), |decoders| decoders.end()) {
                    Ok(()) => None,
                    Err(status) => Some(Err(status)),
                },
            });
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.decoders.is_none()
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
            steps in prop::collection::vec((0..2_usize, 0..6_usize, 0..4_u8, 0..70_usize), 1..60)
        ) {
            // So small that all requests are short: they may take all there is.
            let flow = Flow::new(100, 60);
            let connections = [flow.connection(), flow.connection()];
            // Each with what it holds, and what is kept for it.
            let mut leases: Vec<(usize, Arc<Lease>, usize, usize)> = Vec::new();
            for (connection, lease, action, bytes) in steps {
                let index = lease.checked_rem(leases.len()).unwrap_or(0);
                match (action, leases.get_mut(index)) {
                    (0, _) | (_, None) => leases.push((connection, connections[connection].lease(), 0, 0)),
                    (1, Some((_, lease, held, kept))) => {
                        if lease.set(bytes).is_ok() { *held = bytes; }
                        *kept = 0;
                    }
                    (2, Some((_, lease, held, kept))) if *kept == 0 => {
                        if lease.announce(bytes).is_ok() { *kept = bytes.saturating_sub(*held); }
                    }
                    (_, Some((_, lease, held, kept))) if bytes > 3 => {
                        if lease.grow(bytes).is_ok() {
                            *held += bytes;
                            *kept = kept.saturating_sub(bytes);
                        }
                    }
                    _ => drop(leases.swap_remove(index)),
                }
                let own = [0, 1].map(|wanted: usize| -> usize {
                    leases.iter().filter(|it| it.0 == wanted).map(|(_, _, held, kept)| held + kept).sum()
                });
                prop_assert_eq!([connections[0].own.used(), connections[1].own.used()], own);
                prop_assert_eq!(flow.bytes(), leases.iter().map(|it| it.2).sum::<usize>());
                prop_assert!(own[0] <= 60 && own[1] <= 60 && flow.bytes() <= 100);
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
        puts.grow(700_000).unwrap();
        assert!(puts.grow(1).is_err() && more.grow(SHORT_BYTES + 1).is_err());
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
        first.grow(10_000).unwrap();
        first.announce(70_000).unwrap();
        assert!(second.announce(40_000).is_err(), "it is refused before it has come");
        assert_eq!(flow.bytes(), 10_000, "what has not come does not count for the server");
        other.lease().announce(100_000).unwrap();
        second.announce(30_000).unwrap();
        first.grow(60_000).unwrap();
        second.grow(30_000).unwrap();
        assert!(second.grow(1).is_err(), "more than it said, and more than there is");
        drop(first);
        assert_eq!(connection.own.used(), 30_000);
        // Where the server is full now, there is no sense in beginning.
        let full = Flow::new(100_000, 100_000);
        let held = full.connection().lease();
        held.grow(80_000).unwrap();
        assert!(full.connection().lease().announce(10_000).is_err());
        assert!(full.connection().lease().announce(SHORT_BYTES).is_ok());
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
