//! Ships a log: batches into segments, segments into slots, at most W of them in flight (R-a).

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use shoal_base::Lsn;
use tokio::time::{Instant, sleep, sleep_until};

use super::chain::{LogChain, MadeSlot};
use super::feed::Feed;
use super::progress::Shared;
use super::slot;
use crate::format::{FormatError, LogEnd, PackedBatch, SegmentKind};
use crate::source::SourceError;

/// The pause after a wait that brought nothing.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause after a wait that brought something: a busy store flushes thousands of batches a second, and a wake-up for each would take
/// processor time from its writers. Segments linger longer.
const GATHER: Duration = Duration::from_millis(5);

/// The reason why a log is not continued.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogEnded {
    /// Records are lost for the archive.
    Gap,
    /// A slot has other bytes.
    Fenced(String),
    /// The archiver is stopped, or the store is closed.
    Stopped,
}

type Read = BoxFuture<'static, (Feed, Result<Option<PackedBatch>, SourceError>)>;
type Sent = BoxFuture<'static, (u64, Result<(), String>)>;

/// A slot that is not archived, or is archived behind one that is not.
struct Flight {
    kind: SegmentKind,
    end: LogEnd,
    bytes: u64,
    /// The wall clock of its first batch.
    wall_ns: Option<u64>,
    /// See [`super::progress::Progress::replay_slot`].
    replay_slot: u64,
    is_ours: bool,
}

/// Batches of the next segment.
#[derive(Default)]
struct OpenSegment {
    batches: Vec<PackedBatch>,
    bytes: usize,
    /// A batch without room in it.
    next: Option<PackedBatch>,
}

impl OpenSegment {
    /// The last number in it.
    fn last_lsn(&self) -> Lsn {
        let numbered = self.batches.iter().rev().find(|batch| batch.count > 0);
        numbered.map_or(Lsn::NONE, PackedBatch::last_lsn)
    }
}

/// A log that is being shipped.
pub(super) struct Shipping {
    shared: Arc<Shared>,
    chain: LogChain,
    window: u64,
    feed: Option<Feed>,
    read: Option<Read>,
    open: OpenSegment,
    slots: BTreeMap<u64, Flight>,
    sending: FuturesUnordered<Sent>,
    next_seq: u64,
    last_start: Option<Instant>,
    /// The first slot with pieces of a value that is not complete at the last slot.
    pieces_from: Option<u64>,
    is_opened: bool,
    /// Nothing more is flushed than was taken.
    is_at_end: bool,
    is_store_closed: bool,
    is_closing: bool,
}

impl Shipping {
    /// Ships the records after `from` to the log of `chain`, whose first slot is `opening`.
    pub(super) fn new(
        shared: Arc<Shared>,
        chain: LogChain,
        window: u16,
        opening: MadeSlot,
        from: Lsn,
    ) -> Self {
        let feed = Some(Feed::new(Arc::clone(&shared), from));
        let mut shipping = Self {
            shared,
            chain,
            window: window.into(),
            feed,
            read: None,
            open: OpenSegment::default(),
            slots: BTreeMap::new(),
            sending: FuturesUnordered::new(),
            next_seq: 0,
            last_start: None,
            pieces_from: None,
            is_opened: false,
            is_at_end: false,
            is_store_closed: false,
            is_closing: false,
        };
        shipping.send(opening, None);
        shipping
    }

    /// Runs until the log is not continued.
    pub(super) async fn run(mut self) -> LogEnded {
        loop {
            if self.shared.progress.lock().gap.is_some() {
                return LogEnded::Gap;
            }
            if let Err(error) = self.start_segments() {
                self.shared.gap(error.to_string());
                return LogEnded::Gap;
            }
            if let Some(ended) = self.finish() {
                return ended;
            }
            self.read_more();
            self.publish();
            let linger = self.linger_end();
            let reading = async {
                match &mut self.read {
                    Some(read) => Pin::new(read).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some((seq, outcome)) = self.sending.next() => {
                    if let Err(why) = outcome {
                        return LogEnded::Fenced(why);
                    }
                    self.settle(seq);
                }
                (feed, found) = reading => {
                    (self.feed, self.read) = (Some(feed), None);
                    match found {
                        Ok(batch) => self.take(batch),
                        Err(SourceError::Lost(why)) => {
                            self.shared.gap(why);
                            return LogEnded::Gap;
                        }
                        Err(SourceError::Closed(_)) => self.is_store_closed = true,
                    }
                }
                () = sleep_until(linger.unwrap_or_else(Instant::now)), if linger.is_some() => {}
                () = self.shared.shipper.notified() => {}
            }
        }
    }

    /// Reads the next batch if there is room for it.
    fn read_more(&mut self) {
        if self.is_full() || self.is_store_closed || !self.has_memory() {
            return;
        }
        let Some(mut feed) = self.feed.take() else { return };
        let (waits, shared) = (self.is_at_end, Arc::clone(&self.shared));
        self.read = Some(Box::pin(async move {
            if waits {
                feed.wait().await;
                sleep(GATHER).await;
            }
            let found = feed.next().await;
            if waits && matches!(found, Ok(None)) && shared.store.durable() <= feed.sent() {
                // Nothing came all the same: the next wait may return as early.
                sleep(PAUSE).await;
            }
            (feed, found)
        }));
    }

    fn take(&mut self, batch: Option<PackedBatch>) {
        self.is_at_end = batch.is_none();
        let Some(batch) = batch else { return };
        let bytes = batch.segment_bytes();
        if !self.open.batches.is_empty() && self.open.bytes + bytes > self.shared.options.segment_bytes() {
            self.open.next = Some(batch);
            return;
        }
        self.open.bytes += bytes;
        self.open.batches.push(batch);
    }

    fn is_full(&self) -> bool {
        self.open.next.is_some() || self.open.bytes >= self.shared.options.segment_bytes()
    }

    /// Bytes of all segments in memory.
    fn memory_bytes(&self) -> u64 {
        let next = self.open.next.as_ref().map_or(0, PackedBatch::segment_bytes);
        let slots: u64 = self.slots.values().filter(|slot| !slot.is_ours).map(|slot| slot.bytes).sum();
        slots + (self.open.bytes + next) as u64
    }

    /// A batch may be read: the memory has room for a segment, or there is none in it.
    fn has_memory(&self) -> bool {
        let used = self.memory_bytes();
        used == 0
            || used + self.shared.options.segment_bytes() as u64 <= self.shared.options.memory_bytes as u64
    }

    /// Starts the segments that may start.
    fn start_segments(&mut self) -> Result<(), FormatError> {
        while self.may_start() {
            let batches = std::mem::take(&mut self.open.batches);
            self.open.bytes = 0;
            let wall_ns = batches.first().map(|batch| batch.wall_ns);
            let ends_in_pieces = batches.last().is_some_and(|batch| batch.count == 0);
            let has_records = batches.iter().any(|batch| batch.count > 0);
            let before = self.pieces_from.filter(|_| !has_records);
            self.pieces_from = ends_in_pieces.then(|| before.unwrap_or(self.next_seq));
            let made = self.chain.data(self.shared.entropy.next_u64(), batches)?;
            self.send(made, wall_ns);
            self.last_start = Some(Instant::now());
            if let Some(batch) = self.open.next.take() {
                self.take(Some(batch));
            }
        }
        Ok(())
    }

    fn may_start(&self) -> bool {
        let has_slot = self.is_opened && self.next_seq < self.frontier() + self.window;
        if !has_slot || self.open.batches.is_empty() {
            return false;
        }
        let (is_stopping, hurry) = {
            let progress = self.shared.progress.lock();
            (progress.is_stopping, progress.hurry)
        };
        let is_hurried = is_stopping || (hurry > self.sent() && self.open.last_lsn() >= hurry);
        is_hurried || self.is_full() || self.linger_end().is_none()
    }

    /// The moment at which the open segment may start; `None` if that is now, or if another event comes first.
    fn linger_end(&self) -> Option<Instant> {
        let may_wait = self.is_opened && !self.open.batches.is_empty();
        let end = self.last_start? + self.shared.options.linger;
        (may_wait && end > Instant::now() && self.next_seq < self.frontier() + self.window).then_some(end)
    }

    /// The first slot that is not archived.
    fn frontier(&self) -> u64 {
        self.slots.keys().next().copied().unwrap_or(self.next_seq)
    }

    fn send(&mut self, made: MadeSlot, wall_ns: Option<u64>) {
        let seq = made.slot.seq;
        let flight = Flight {
            kind: made.kind,
            end: made.end,
            bytes: made.bytes.len() as u64,
            wall_ns,
            replay_slot: self.pieces_from.unwrap_or(seq + 1),
            is_ours: false,
        };
        self.slots.insert(seq, flight);
        self.next_seq = seq + 1;
        self.shared.progress.lock().flights.insert(seq, Instant::now());
        let shared = Arc::clone(&self.shared);
        self.sending.push(Box::pin(async move { (seq, slot::send(&shared, &made).await) }));
    }

    /// Slot `seq` has our bytes. Everything in the slots from the first one on that have theirs is archived.
    fn settle(&mut self, seq: u64) {
        if let Some(flight) = self.slots.get_mut(&seq) {
            flight.is_ours = true;
        }
        let shared = Arc::clone(&self.shared);
        shared.progress.lock().flights.remove(&seq);
        while let Some(first) = self.slots.first_entry().filter(|slot| slot.get().is_ours) {
            let (seq, flight) = first.remove_entry();
            self.archived(seq, &flight);
        }
        shared.release();
        shared.publish_safe();
        if shared.spool.last() > Lsn::NONE {
            shared.overflow.notify_one();
        }
    }

    fn archived(&mut self, seq: u64, flight: &Flight) {
        let (durable, now_ns) = (self.shared.store.durable(), self.shared.clock.wall_ns());
        let mut progress = self.shared.progress.lock();
        progress.archived = flight.end.last_lsn;
        (progress.next_slot, progress.replay_slot) = (seq + 1, flight.replay_slot);
        progress.segment_bytes += flight.bytes;
        match flight.kind {
            SegmentKind::Data => {
                progress.segments.data += 1;
                progress.archived_ns = flight.end.wall_ns;
            }
            SegmentKind::Opening => progress.segments.opening += 1,
            SegmentKind::Close => progress.segments.close += 1,
            SegmentKind::Heartbeat => {}
        }
        if progress.archived >= durable {
            progress.caught_up_ns = now_ns;
        }
        self.is_opened = true;
    }

    /// Updates the figures that others look at.
    fn publish(&self) {
        let open = self.open.batches.first().map(|batch| batch.wall_ns);
        let waiting_ns = self.slots.values().find_map(|slot| slot.wall_ns).or(open);
        let used = self.memory_bytes();
        let mut progress = self.shared.progress.lock();
        (progress.waiting_ns, progress.memory_bytes) = (waiting_ns, used);
        let was_behind = progress.is_behind;
        progress.is_behind = match was_behind {
            true => used > self.shared.options.memory_bytes as u64 / 2,
            false => used > 0 && !self.has_memory(),
        };
        if progress.is_behind && !was_behind {
            drop(progress);
            self.shared.overflow.notify_one();
        }
    }

    /// Closes the log once everything is shipped and the archiver stops.
    fn finish(&mut self) -> Option<LogEnded> {
        if !self.is_store_closed && !self.shared.is_stopping() {
            return None;
        }
        let is_read = self.is_store_closed || (self.is_at_end && self.shared.store.durable() <= self.sent());
        let is_empty = self.open.batches.is_empty() && self.slots.is_empty();
        if !is_read || !is_empty || !self.is_opened {
            return None;
        }
        if self.is_closing || self.is_store_closed {
            return Some(LogEnded::Stopped);
        }
        let made = self.chain.close(self.shared.entropy.next_u64()).ok()?;
        self.is_closing = true;
        self.send(made, None);
        None
    }

    fn sent(&self) -> Lsn {
        self.chain.last()
    }
}
