//! Group commit: all queued records become one log batch, one flush makes it durable, and its writers are woken.
//!
//! `who_commits.rs` chooses the thread, and `driver.rs` runs the commit on it. The driver takes its state out of its lock, so no lock is
//! held across I/O. Batches are written one after the other: a batch starts when the previous one is durable, so the promise (R15) in its
//! header covers all earlier batches.

mod archived;
pub(crate) mod driver;
pub(crate) mod kept;
pub(crate) mod queue;
mod refuse;
mod still_log;
mod watch;
mod who_commits;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use shoal_base::histogram::{AtomicHistogram, Durations};
use shoal_base::plug::plug;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use shoal_base::{BLOCK_BYTES, Clock, Lsn};
use shoal_common::error::{Error, Result};
use shoal_common::event::{Bell, Notifier, Sleepers, Token, TokenGuard};
use shoal_common::injected_bug::{Bug, injected};
use shoal_device::{Device, IoBuf};
use shoal_pool::Pool;
use smallvec::SmallVec;

use self::archived::ArchivedLog;
use self::kept::Kept;
use self::queue::{Item, Marker, QueuedBatch, ValueWrite};
use crate::clock::{ExpiryClock, Newest};
use crate::failure::{Poison, Room};
use crate::format::{BATCH_BLOCKS_MAX, BATCH_HEADER_BYTES, BatchBuilder, BatchHeader, peek_header};
use crate::record::{Record, Refusal};
use crate::ring::{BatchIndex, LogPlace, Ring, RingSpace};
pub use archived::ArchivedStart;
pub use refuse::Unwritten;
pub use still_log::{ClosedLog, StoppedLog};
pub use watch::DeviceWatch;

/// The state of the driver.
struct DriverState {
    next_lsn: Lsn,
}

/// Counts of commits.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitCounters {
    /// Batches, seals included.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Blocks of the ring that they took.
    pub log_blocks: u64,
}

/// The committer's thread, as seen by its callers.
struct CommitThread {
    bell: Option<Arc<Bell>>,
    /// Turns with queued writes. Only the cutting of batches depends on it.
    turns: AtomicUsize,
}

impl CommitThread {
    fn new(bell: Option<Arc<Bell>>) -> Self {
        Self { bell, turns: AtomicUsize::new(0) }
    }
}

/// The queue of records, and the state of the commits.
pub struct Committer {
    device: Device,
    pool: Pool,
    /// The used, reserved and free blocks of the ring.
    pub ring: RingSpace,
    seed: u64,
    epoch: u64,
    batch_bytes_max: usize,
    queue: Mutex<VecDeque<Item>>,
    driver: Token<DriverState>,
    /// All records up to this one are flushed. Release after the flush, acquire by readers that decide by it.
    durable: AtomicU64,
    /// All records up to this one have a number.
    assigned: AtomicU64,
    ceiling: AtomicU64,
    published: AtomicU64,
    named: AtomicU64,
    expiry: Arc<ExpiryClock>,
    /// True if the newest batch promises everything before it.
    sealed: AtomicBool,
    last_batch_ns: AtomicU64,
    /// The time that the newest batch took, in nanoseconds.
    last_took_ns: AtomicU64,
    index: Mutex<BatchIndex>,
    clock: Arc<dyn Clock>,
    thread: CommitThread,
    /// Notifies when the durable number, a marker or the tail moves.
    pub moved: Notifier,
    /// The store's threads that sleep until records are written, or a superblock that makes work for them.
    pub sleepers: Sleepers,
    poison: Arc<Poison>,
    /// The lack of room for log and superblock in the data file.
    pub room: Room,
    /// Set once the store is open.
    unwritten: OnceLock<Box<dyn Unwritten>>,
    /// Looks for another owner after each flush; `None` unless the device is shared.
    watch: Option<Arc<dyn DeviceWatch>>,
    /// The part of the log that an archive has not read; `None` without one.
    archived: Option<ArchivedLog>,
    counters: Mutex<CommitCounters>,
    /// The times of batches, each from the write to the end of its flush.
    times: AtomicHistogram,
}

/// The initial state of a committer.
pub struct CommitStart {
    /// The place of the ring.
    pub ring: Ring,
    /// The store's secret, which is part of every checksum.
    pub seed: u64,
    /// The epoch of this opening (R1).
    pub epoch: u64,
    /// The place of the next batch.
    pub head: LogPlace,
    /// The batches that recovery found.
    pub index: BatchIndex,
    /// Position of the oldest batch that a recovery would need.
    pub tail: u64,
    /// Blocks of the ring, from its start on, that may be written.
    pub prepared: u32,
    /// No record gets a number above this one without a new superblock (R5).
    pub ceiling: Lsn,
    /// The number of the newest superblock.
    pub superblock: u64,
    /// Most bytes of records in a batch of several write batches.
    pub batch_bytes_max: usize,
    /// The clocks of expiry.
    pub expiry: Arc<ExpiryClock>,
    /// Looks for another owner of a shared device after each flush (R45).
    pub watch: Option<Arc<dyn DeviceWatch>>,
    /// The part of the log that is kept for an archive; `None` without one.
    pub archived: Option<ArchivedStart>,
    /// Measures batches.
    pub clock: Arc<dyn Clock>,
    /// Wakes the thread that commits; `None` if callers commit.
    pub bell: Option<Arc<Bell>>,
}

impl Committer {
    /// A committer with an empty queue.
    pub fn new(device: Device, pool: Pool, start: CommitStart, poison: Arc<Poison>) -> Self {
        let next_lsn = start.head.first_lsn;
        let last = next_lsn.0 - 1;
        Self {
            device,
            pool,
            ring: RingSpace::new(start.ring, start.prepared, start.tail, start.head.position),
            seed: start.seed,
            epoch: start.epoch,
            batch_bytes_max: start.batch_bytes_max.min(BATCH_BLOCKS_MAX as usize * BLOCK_BYTES / 2),
            queue: Mutex::default(),
            driver: Token::new(DriverState { next_lsn }),
            durable: AtomicU64::new(last),
            assigned: AtomicU64::new(last),
            ceiling: AtomicU64::new(start.ceiling.0),
            published: AtomicU64::new(start.superblock),
            named: AtomicU64::new(0),
            expiry: start.expiry,
            sealed: AtomicBool::new(false),
            last_batch_ns: AtomicU64::new(0),
            last_took_ns: AtomicU64::new(0),
            index: Mutex::new(start.index),
            clock: start.clock,
            thread: CommitThread::new(start.bell),
            moved: Notifier::default(),
            sleepers: Sleepers::default(),
            poison,
            room: Room::default(),
            unwritten: OnceLock::new(),
            watch: start.watch,
            archived: start.archived.map(ArchivedLog::new),
            counters: Mutex::default(),
            times: AtomicHistogram::default(),
        }
    }

    /// Sets the memtables of the records. Nothing is queued before this call.
    pub fn set_unwritten(&self, unwritten: Box<dyn Unwritten>) {
        assert!(self.unwritten.set(unwritten).is_ok(), "a store is opened once");
    }

    /// Notes that the superblock of this opening found no room: no batch is written before another one is published (R1).
    pub fn await_opening(&self, why: &str) {
        self.room.no_opening(why);
    }

    /// All records up to this one are flushed.
    #[inline]
    pub fn durable(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire))
    }

    /// All records up to this one have a number.
    #[inline]
    pub fn assigned(&self) -> Lsn {
        Lsn(self.assigned.load(Ordering::Acquire))
    }

    /// The number of the newest superblock that a flushed batch names.
    #[inline]
    pub fn named_superblock(&self) -> u64 {
        self.named.load(Ordering::Acquire)
    }

    /// Counts since the opening.
    pub fn counters(&self) -> CommitCounters {
        *self.counters.lock()
    }

    /// The times of batches, each from the write to the end of its flush.
    pub fn times(&self) -> Durations {
        let mut durations = Durations::default();
        self.times.read(&mut durations);
        durations
    }

    /// Notes that the ring is prepared up to `blocks`, as recorded in a durable superblock.
    pub fn is_prepared(&self, blocks: u32) {
        self.ring.prepare(blocks);
        self.moved.notify();
    }

    /// Appends an item to the queue. The caller holds the memtable's lock, which fixes the order (R4).
    #[inline]
    pub fn submit(&self, item: Item) {
        match item {
            Item::Writes { batch, reserved }
                if injected(Bug::WriteBatchDivided) && batch.records.len() > 1 =>
            {
                self.push_divided(batch, reserved);
            }
            item => self.queue.lock().push_back(item),
        }
    }

    /// The effect of [`Bug::WriteBatchDivided`]: a log batch for each record.
    fn push_divided(&self, batch: QueuedBatch, mut reserved: u32) {
        let QueuedBatch { records, writes, has_extents, kept } = batch;
        let mut writes = Some((writes, kept));
        let mut queue = self.queue.lock();
        for record in records {
            let records = SmallVec::from_iter([record]);
            let (writes, kept) = writes.take().unwrap_or_default();
            let part = QueuedBatch { records, writes, has_extents, kept };
            queue.push_back(Item::Writes { batch: part, reserved: std::mem::take(&mut reserved) });
        }
    }

    /// Nanoseconds that the newest batch took.
    fn last_took_ns(&self) -> u64 {
        self.last_took_ns.load(Ordering::Relaxed)
    }

    /// Returns true if no thread drives.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.driver.is_free()
    }

    /// Returns true if anything is queued.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.queued() > 0
    }

    /// Write batches and markers that wait to be committed.
    #[inline]
    fn queued(&self) -> usize {
        self.queue.lock().len()
    }

    /// Returns true if a queued write has a value with extents.
    fn has_extents(&self) -> bool {
        let queue = self.queue.lock();
        queue.iter().any(|item| matches!(item, Item::Writes { batch, .. } if batch.has_extents))
    }

    /// The place of the oldest batch that has a record from `lsn` on.
    pub fn place_of(&self, lsn: Lsn) -> LogPlace {
        self.index.lock().place_of(lsn)
    }

    /// Notes a durable superblock: the log may be overwritten up to its tail, numbers may rise to its ceiling, and the next batch names it.
    pub fn superblock_published(&self, number: u64, tail: LogPlace, ceiling: Lsn) {
        if let Some(archived) = &self.archived {
            archived.lets_go(tail);
        }
        self.index.lock().trim(tail.position, self.floor());
        self.ring.set_tail(tail.position);
        self.ceiling.store(ceiling.0, Ordering::Release);
        let before = self.published.swap(number, Ordering::AcqRel);
        assert!(before < number, "superblock {number} was published after superblock {before} (R9, R20)");
        self.room.superblock_written();
        self.moved.notify();
    }

    /// Waits until `record` is durable. Another thread must drive the commit.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the store was poisoned before; [`Error::NoRoom`] if the log had no room for the record.
    pub async fn wait_durable(&self, record: &Record) -> Result<Lsn> {
        poll_fn(|context| self.poll_durable(record, context)).await
    }

    /// Returns true if the outcome of `record` is known.
    fn is_settled(&self, record: &Record) -> bool {
        record.is_durable(self.durable()) || record.refusal().is_some() || self.poison.reason().is_some()
    }

    /// As [`Self::wait_durable`], for callers that poll.
    pub fn poll_durable(&self, record: &Record, context: &mut Context<'_>) -> Poll<Result<Lsn>> {
        for registered in [false, true] {
            if record.is_durable(self.durable()) {
                return Poll::Ready(Ok(record.lsn()));
            }
            if let Some(refusal) = record.refusal() {
                return Poll::Ready(Err(match refusal {
                    Refusal::NoRoom => self.room.error(),
                    Refusal::InDoubt => Error::Unknown(self.room.error().to_string()),
                }));
            }
            if let Some(reason) = self.poison.reason() {
                return Poll::Ready(Err(Error::Unknown(reason.to_owned())));
            }
            if !registered {
                record.register(context.waker());
            }
        }
        Poll::Pending
    }

    /// Waits until everything before `marker` is durable; returns the last number before it.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub async fn wait_marker(&self, marker: &Marker) -> Result<Lsn> {
        self.moved
            .wait_until(|| match marker.reached() {
                Some(lsn) => Some(Ok(lsn)),
                None => self.poison.check().err().map(Err),
            })
            .await
    }

    /// Commits one batch if there is one. Returns false if another thread drives: that one continues until the queue is empty, or requests
    /// that.
    async fn commit_one(&self) -> bool {
        let Some(mut driver) = self.driver.try_take() else { return false };
        if self.has_work() {
            self.commit_batch(&mut driver).await;
        }
        true
    }

    /// Returns true if no batch promises the newest one yet, or none names the newest superblock.
    pub fn wants_seal(&self) -> bool {
        let unnamed = self.named.load(Ordering::Acquire) < self.published.load(Ordering::Acquire);
        self.poison.reason().is_none()
            && (unnamed || !self.sealed.load(Ordering::Acquire) || self.room.log_is_full())
    }

    /// Nanoseconds since the last batch was written.
    fn idle_ns(&self) -> u64 {
        self.clock.monotonic_ns().saturating_sub(self.last_batch_ns.load(Ordering::Relaxed))
    }

    /// Writes an empty batch that promises everything before it (R15) and names the newest superblock (R9).
    pub async fn seal(&self) {
        let mut driver = self.driver.take().await;
        if !self.wants_seal() || self.ring.free_blocks() < 2 {
            return;
        }
        if injected(Bug::NeverSealed) {
            self.sealed.store(true, Ordering::Release);
            return;
        }
        match self.write_seal(&mut driver).await {
            Ok(()) => {}
            // The next seal is for the same place.
            Err(Error::NoRoom(_)) => return,
            Err(error) => return self.fail(&error),
        }
        drop(driver);
        self.moved.notify();
    }

    /// Writes an empty batch at the head. It supersedes the remains of a batch that found no room, so it must be the first one written
    /// after such a batch.
    ///
    /// # Errors
    /// [`Error::NoRoom`]: only a seal may be written at the head next. As the device.
    async fn write_seal(&self, driver: &mut DriverState) -> Result<()> {
        if self.room.awaits_opening() {
            return Err(self.room.error());
        }
        if self.ring.free_blocks() < 2 {
            // An apply frees blocks of the ring.
            self.room.no_log("the log's ring is full");
            return Err(self.room.error());
        }
        self.last_batch_ns.store(self.clock.monotonic_ns(), Ordering::Relaxed);
        let mut nothing = Drained::new(self);
        let written = self.write_batch(driver, &mut nothing).await;
        nothing.is_left = false;
        if let Err(Error::NoRoom(why)) = &written {
            self.room.no_log(why);
        }
        written?;
        self.sealed.store(true, Ordering::Release);
        self.room.log_written();
        Ok(())
    }

    async fn commit_batch(&self, driver: &mut TokenGuard<'_, DriverState>) {
        if let Some(reason) = self.poison.reason() {
            // No record gets a number any more (R20). Records that were queued too late get this error.
            let reason = Error::Poisoned(reason.to_owned());
            return self.fail(&reason);
        }
        if self.room.log_is_full() {
            match self.write_seal(driver).await {
                Ok(()) => {}
                Err(Error::NoRoom(_)) => {
                    let mut nothing = Drained::new(self);
                    nothing.is_left = false;
                    return self.refuse(driver, &nothing, Refusal::NoRoom);
                }
                Err(error) => return self.fail(&error),
            }
        }
        let mut drained = self.drain(driver);
        let result = if drained.records.is_empty() {
            Ok(())
        } else {
            let began_ns = self.clock.monotonic_ns();
            self.last_batch_ns.store(began_ns, Ordering::Relaxed);
            let written = self.write_batch(driver, &mut drained).await;
            let took_ns = self.clock.monotonic_ns().saturating_sub(began_ns);
            self.last_took_ns.store(took_ns, Ordering::Relaxed);
            self.times.add(took_ns, 1);
            self.pool.budget().note_commit(took_ns);
            written
        };
        let result = match result {
            Err(Error::NoRoom(why)) => self.supersede(driver, &drained, &why).await,
            result => result.map(|()| None),
        };
        drained.is_left = false;
        self.ring.unreserve(drained.reserved);
        match result {
            Ok(Some(refusal)) => self.refuse(driver, &drained, refusal),
            Ok(None) => {
                // A thread that is woken by many of the records is woken for all of them at once.
                plug(|| drained.records.iter().for_each(|record| record.wake()));
                for (marker, lsn) in &drained.markers {
                    marker.reach(*lsn);
                }
                // Markers may have been reached, and unused reserved blocks are free again.
                self.moved.notify();
                self.sleepers.happened();
            }
            Err(error) => {
                self.fail(&error);
                for record in &drained.records {
                    record.wake();
                }
            }
        }
    }

    /// Makes the store read-only after the first failure of log or values, and completes all pending records with the error (R20).
    fn fail(&self, error: &Error) {
        self.poison.set(format!("the log could not be written ({error})"));
        let pending = std::mem::take(&mut *self.queue.lock());
        for item in &pending {
            let Item::Writes { batch, .. } = item else { continue };
            batch.records.iter().for_each(|record| record.wake());
        }
        self.moved.notify();
    }

    /// Takes the records of the next batch from the queue and numbers them.
    fn drain(&self, driver: &mut DriverState) -> Drained<'_> {
        let mut drained = Drained::new(self);
        let head = self.index.lock().head().position;
        let rest = self.ring.rest(head) as usize * BLOCK_BYTES;
        let bytes_max = self.batch_bytes_max.min(self.ring.ring_bytes() / 4);
        let mut bytes = BATCH_HEADER_BYTES;
        let mut queue = self.queue.lock();
        while let Some(item) = queue.front() {
            if let Item::Writes { batch, .. } = item {
                let with = bytes + batch.bytes();
                let first = drained.records.is_empty();
                // A write batch is never divided (R22). The first one may wrap to the ring's start; later ones must not cause that.
                let alone = injected(Bug::WriteBatchDivided);
                if !first && (alone || with > bytes_max || (bytes <= rest && with > rest)) {
                    break;
                }
                bytes = with;
            }
            match queue.pop_front() {
                Some(Item::Writes { batch, reserved }) => {
                    for record in &batch.records {
                        record.number(driver.next_lsn);
                        driver.next_lsn = driver.next_lsn.next();
                    }
                    drained.reserved += reserved;
                    drained.has_extents |= batch.has_extents;
                    drained.writes.extend(batch.writes);
                    drained.kept.extend(batch.kept);
                    drained.records.extend(batch.records);
                }
                Some(Item::Marker(marker)) => drained.markers.push((marker, Lsn(driver.next_lsn.0 - 1))),
                None => break,
            }
        }
        self.assigned.store(driver.next_lsn.0 - 1, Ordering::Release);
        drained
    }

    async fn write_batch(&self, driver: &mut DriverState, drained: &mut Drained<'_>) -> Result<()> {
        let records = &drained.records;
        let first_lsn = Lsn(driver.next_lsn.0 - records.len() as u64);
        if driver.next_lsn.0 - 1 > self.ceiling.load(Ordering::Acquire) {
            // R5: each publish raises the ceiling far above the assigned numbers.
            return Err(Error::Poisoned("numbers reached the ceiling of the newest superblock".into()));
        }
        let record_bytes = records.iter().map(|record| record.bytes().len()).sum();
        let mut builder = BatchBuilder::new(record_bytes);
        for record in records {
            builder.push(record.bytes());
        }
        let before = self.index.lock().head();
        let blocks = builder.blocks();
        let position = if blocks > self.ring.rest(before.position) {
            self.ring.turn(before.position)
        } else {
            before.position
        };
        let end = position + u64::from(blocks);
        let superblock = self.published.load(Ordering::Acquire);
        self.check_batch(drained, (before, first_lsn), (position, blocks), superblock)?;
        let named = if injected(Bug::OldSuperblockNamed) { 0 } else { superblock };
        let header = BatchHeader {
            epoch: self.epoch,
            position,
            blocks,
            records: records.len() as u32,
            first_lsn,
            durable_lsn: if injected(Bug::PromiseAhead) {
                Lsn(driver.next_lsn.0 - 1)
            } else {
                self.durable()
            },
            superblock: named,
            stamp: self.expiry.stamp(self),
            chain: before.chain,
            record_bytes: record_bytes as u32,
        };
        assert!(
            header.durable_lsn < first_lsn || injected(Bug::PromiseAhead),
            "a batch promises only the records before it (R15)"
        );
        let (buf, chain) = builder.finish(&header, self.seed);
        assert_eq!(peek_header(&buf), Some(header), "recovery reads the header that is written (R1)");
        let writes = std::mem::take(&mut drained.writes);
        drained.place = Some((position, blocks, first_lsn));
        let buf = self.write_and_flush(self.ring.block(position), buf, drained.has_extents, writes).await?;
        if !injected(Bug::AlarmAfterAck) {
            self.check_owner().await?;
        }
        // Before readers can learn the versions: a read of one of them then finds the value.
        for (record, kept) in drained.kept.drain(..) {
            kept.stay(&self.pool, record.lsn());
        }
        let at = LogPlace { position, chain: before.chain, first_lsn };
        let head = LogPlace { position: end, chain, first_lsn: driver.next_lsn };
        self.index.lock().push(at, head);
        self.ring.set_head(end);
        self.sealed.store(false, Ordering::Release);
        let before = self.durable.swap(driver.next_lsn.0 - 1, Ordering::AcqRel);
        assert!(before < driver.next_lsn.0, "durable numbers only rise (R4)");
        self.keep_flushed((position, buf), driver.next_lsn, !drained.records.is_empty());
        self.named.fetch_max(superblock, Ordering::AcqRel);
        self.count(records.len(), blocks);
        if injected(Bug::AlarmAfterAck) {
            self.check_owner().await?;
        }
        Ok(())
    }

    fn count(&self, records: usize, blocks: u32) {
        let mut counters = self.counters.lock();
        counters.batches += 1;
        counters.records += records as u64;
        counters.log_blocks += u64::from(blocks);
    }

    /// Checks the next batch against the rules. If it breaks one, the store takes no more writes: recovery could not follow the log.
    ///
    /// # Errors
    /// [`Error::Poisoned`] with the reason.
    fn check_batch(
        &self,
        drained: &Drained<'_>,
        (before, first_lsn): (LogPlace, Lsn),
        (position, blocks): (u64, u32),
        superblock: u64,
    ) -> Result<()> {
        let is_divided = drained.records.last().is_some_and(|last| last.continues());
        let rules = [
            (
                !self.ring.holds(position + u64::from(blocks)),
                "the log's ring is full although room was reserved",
            ),
            // R1, R4: recovery would stop before it, or number its records again.
            (
                position < before.position || first_lsn < before.first_lsn,
                "the next batch of the log would be before the newest one",
            ),
            // R21
            (
                blocks > self.ring.rest(position),
                "the next batch of the log would be in blocks that are not prepared",
            ),
            // R9: the blocks that the previously named superblock freed may already be reused.
            (
                superblock < self.named.load(Ordering::Acquire),
                "the next batch of the log would name an older superblock than the one before it",
            ),
            // R7: its flush would not wait for them.
            (
                !drained.has_extents && !drained.writes.is_empty(),
                "a batch of the log has values to write and no record that names them",
            ),
            // R22
            (
                is_divided && !injected(Bug::WriteBatchDivided),
                "the next batch of the log would end within a write batch",
            ),
        ];
        match rules.into_iter().find(|(is_broken, _)| *is_broken) {
            Some((_, what)) => Err(Error::Poisoned(format!("an error of the program: {what}"))),
            None => Ok(()),
        }
    }

    /// One flush for the batch and for every value that it names. A batch that is the only write uses one durable write. Such a write does
    /// not cover values written before, so it is not used if there are any. Returns the memory of the batch.
    async fn write_and_flush(
        &self,
        block: u64,
        buf: IoBuf,
        has_extents: bool,
        writes: Vec<ValueWrite>,
    ) -> Result<IoBuf> {
        if injected(Bug::AckBeforeFlush) && !has_extents {
            return Ok(self.device.write(block, buf).await.ok()?);
        }
        if !has_extents {
            let durable = self.device.write_durable(block, buf);
            let mut written = IoBuf::new(0);
            let flush = async {
                written = durable.await.ok()?;
                Ok(())
            };
            self.poison.flushed(flush).await?;
            return Ok(written);
        }
        let mut batch = self.device.batch();
        let log = if injected(Bug::ValuesNotFlushed) {
            batch.add(self.device.write_durable(block, buf))
        } else {
            batch.add(self.device.write(block, buf))
        };
        let writes: Vec<ValueWrite> = writes.into_iter().map(|write| batch.add(write)).collect();
        batch.start();
        let log = log.await;
        let mut failed: Option<Error> = log.result.err().map(Error::from);
        for write in writes {
            // R7: the record may already be on the device, but its value is not. No later record may become durable.
            if let Err(error) = write.await.ok()
                && !injected(Bug::ValueErrorIgnored)
                && failed.as_ref().is_none_or(|failed| matches!(failed, Error::NoRoom(_)))
            {
                failed = Some(self.room.value_failed(error));
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        self.room.value_written();
        if injected(Bug::ValuesNotFlushed) {
            return Ok(log.memory);
        }
        let flush = async {
            let flushed = self.device.flush().await.ok();
            if injected(Bug::FlushRetried) && flushed.is_err() {
                self.device.flush().await.ok()?;
                return Ok(());
            }
            flushed.map_err(Error::Io)
        };
        self.poison.flushed(flush).await?;
        Ok(log.memory)
    }
}

impl Newest for Committer {
    fn with_newest(&self, mark: &mut dyn FnMut(Lsn)) {
        let queue = self.queue.lock();
        let records = |item: &Item| match item {
            Item::Writes { batch, .. } => batch.records.len() as u64,
            Item::Marker(_) => 0,
        };
        // The queued records get the next numbers, in this order.
        let queued: u64 = queue.iter().map(records).sum();
        mark(Lsn(self.assigned().0 + queued));
    }
}

/// The contents of a batch.
struct Drained<'a> {
    records: Vec<Arc<Record>>,
    markers: Vec<(Arc<Marker>, Lsn)>,
    writes: Vec<ValueWrite>,
    kept: Vec<(Arc<Record>, Kept)>,
    reserved: u32,
    has_extents: bool,
    /// The place of the batch on the device, once composed: its position, its blocks, and its first number.
    place: Option<(u64, u32, Lsn)>,
    committer: &'a Committer,
    /// True until the outcome of the batch is known.
    is_left: bool,
}

impl<'a> Drained<'a> {
    fn new(committer: &'a Committer) -> Self {
        Self {
            records: Vec::new(),
            markers: Vec::new(),
            writes: Vec::new(),
            kept: Vec::new(),
            reserved: 0,
            has_extents: false,
            place: None,
            committer,
            is_left: true,
        }
    }
}

/// If a driver panics or is dropped in the middle, the writers of its batch get [`Error::Unknown`]. The numbers of its records are used, so
/// nothing may be written after them either: writers that wait for room in the log or in memtables are refused, since no thread makes room
/// any more.
impl Drop for Drained<'_> {
    fn drop(&mut self) {
        if self.is_left {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("of a caller");
            let reason = format!("an error of the program in the thread {name} while it wrote a batch");
            self.committer.poison.set(reason);
            self.records.iter().for_each(|record| record.wake());
            self.committer.moved.notify();
        }
    }
}
