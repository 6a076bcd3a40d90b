//! Pages of the running apply: filled in frames, written in the background, readable at once.
//!
//! Each page goes once to a block that nothing refers to yet. So pages need no order, no page is ever rewritten, and a
//! failed write only keeps this apply from being published. Pages are gathered, sorted by block, and neighbours leave
//! in one vectored request, all requests of a gathering in one submission.
//!
//! A queued page is resident and pinned by its request; it is found like any other. The writer may be dropped with
//! requests in flight: they hold their pins until they complete. Pages that were not yet handed to the device are then
//! forgotten.
//!
//! "Written" here means completed, not durable: the engine flushes.

use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::{Poll, Waker};

use shoal_base::BLOCK_BYTES;
use shoal_base::checksum::crc32c;
use shoal_base::sync::Mutex;
use shoal_device::Outcome;
use smallvec::SmallVec;

use crate::PoolError;
use crate::memory::frame::Frames;
use crate::pool::Pool;
use crate::requests::{Purpose, neighbours, start};
use crate::resident::pin::{Pinned, WriteFrames};
use crate::shared::Shared;
use crate::unit::{Check, Hint, Unit, UnitId};

/// Limits of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Bytes that may be gathered or under way; more wait. At least one page.
    pub in_flight_bytes_max: usize,
    /// Bytes that are gathered before they leave, and the most that one request writes. At least one page, and at most
    /// half of the bytes in flight, so that one half is filled while the other is written.
    pub request_bytes_max: usize,
}

impl Default for WriterOptions {
    /// 1 MiB in flight (a flush of the log may have to wait for it), 256 KiB a request.
    fn default() -> Self {
        Self { in_flight_bytes_max: 1 << 20, request_bytes_max: 256 << 10 }
    }
}

/// The fate of a page's frame after the page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The frame is freed.
    Free,
    /// The page stays, as after a fetch with this hint.
    Resident(Hint),
    /// The page stays with the history of the page that it replaces if that one is resident; otherwise its frame is
    /// freed. The old page stays until [`Pool::let_go`]: until the new one is published, readers need the old one.
    Inherit(UnitId),
}

/// A page to be filled, zeroed at first. Goes back to the pool when it is dropped unwritten.
pub struct NewPage(Frames);

impl NewPage {
    /// Puts the checksum of the contents into the first four bytes and returns it.
    pub fn seal(&mut self) -> u32 {
        let [_, _, _, _, contents @ ..] = &**self;
        let crc = crc32c(contents);
        let [a, b, c, d, ..] = &mut **self;
        [*a, *b, *c, *d] = crc.to_le_bytes();
        crc
    }
}

impl Deref for NewPage {
    type Target = [u8; BLOCK_BYTES];

    fn deref(&self) -> &Self::Target {
        self.0.first()
    }
}

impl DerefMut for NewPage {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.first_mut()
    }
}

impl fmt::Debug for NewPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewPage").finish_non_exhaustive()
    }
}

/// A page that is queued or being written.
struct Queued {
    page: Pinned,
    keep: bool,
}

/// Pages that are gathered or in flight, shared with the requests.
#[derive(Default)]
struct Flight(Mutex<FlightState>);

#[derive(Default)]
struct FlightState {
    bytes: usize,
    error: Option<PoolError>,
    waker: Option<Waker>,
}

/// Writes new pages in the background.
pub struct Writer {
    pool: Pool,
    options: WriterOptions,
    gathered: Vec<Queued>,
    flight: Arc<Flight>,
}

impl Writer {
    pub(crate) fn new(pool: Pool, options: WriterOptions) -> Self {
        let in_flight_bytes_max = options.in_flight_bytes_max.max(BLOCK_BYTES);
        let request_bytes_max = options.request_bytes_max.min(in_flight_bytes_max / 2).max(BLOCK_BYTES);
        let options = WriterOptions { in_flight_bytes_max, request_bytes_max };
        Self { pool, options, gathered: Vec::new(), flight: Arc::default() }
    }

    /// A page to fill. Waits while too much is in flight or no frame is free.
    ///
    /// # Errors
    /// The first error of a write so far; [`PoolError::Exhausted`] if readers hold every frame.
    pub async fn page(&mut self) -> Result<NewPage, PoolError> {
        let room = self.options.in_flight_bytes_max - BLOCK_BYTES;
        self.settle(room).await?;
        let mut frames = loop {
            if let Some(frames) = self.pool.try_take(1, Hint::Lookup) {
                break frames;
            }
            // Our own writes hold frames: the end of any of them helps, if its page does not stay.
            let bytes = self.flight.0.lock().bytes;
            if bytes == 0 {
                break self.pool.take(1, Hint::Lookup).await?;
            }
            self.settle(bytes - 1).await?;
        };
        frames.first_mut().fill(0);
        Ok(NewPage(frames))
    }

    /// Queues a filled page to be written to block `id.block`, and makes it readable as [`Check::Page`] with the
    /// checksum in its first four bytes. Nothing refers to the block yet. Waits while too much is in flight.
    ///
    /// # Errors
    /// The first error of a write so far.
    ///
    /// # Panics
    /// If the page does not carry its own checksum ([`NewPage::seal`]).
    pub async fn write(&mut self, page: NewPage, id: UnitId, keep: Keep) -> Result<(), PoolError> {
        let Some((carried, contents)) = page.split_first_chunk::<4>() else {
            unreachable!("a page has 4 bytes")
        };
        let crc = u32::from_le_bytes(*carried);
        assert_eq!(crc32c(contents), crc, "block {}: a page was written without its checksum", id.block);
        self.pool.shared().damaged.was_written(id.block);
        let queued = self.publish(page.0, Unit { id, check: Check::Page { crc } }, keep);
        self.gathered.push(queued);
        self.flight.0.lock().bytes += BLOCK_BYTES;
        if self.gathered.len() * BLOCK_BYTES >= self.options.request_bytes_max {
            self.issue();
        }
        self.settle(self.options.in_flight_bytes_max).await
    }

    /// Waits until every page that was queued is written. It is not flushed yet. The writer may be used again.
    ///
    /// # Errors
    /// The first error of all writes: then some of the pages are not on the device.
    pub async fn finish(&mut self) -> Result<(), PoolError> {
        self.issue();
        self.settled(0).await;
        self.failed()
    }

    fn failed(&self) -> Result<(), PoolError> {
        self.flight.0.lock().error.clone().map_or(Ok(()), Err)
    }

    /// Waits until at most `bytes_max` bytes are in flight.
    async fn settle(&mut self, bytes_max: usize) -> Result<(), PoolError> {
        if self.flight.0.lock().bytes > bytes_max {
            self.issue();
            self.settled(bytes_max).await;
        }
        self.failed()
    }

    async fn settled(&self, bytes_max: usize) {
        poll_fn(|context| {
            let mut flight = self.flight.0.lock();
            if flight.bytes <= bytes_max {
                return Poll::Ready(());
            }
            flight.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Makes the page readable, pinned until its write completes.
    fn publish(&self, frames: Frames, unit: Unit, keep: Keep) -> Queued {
        let shared = self.pool.shared();
        let hint = if let Keep::Resident(hint) = keep { hint } else { Hint::Lookup };
        let guard = shared.table.lock(unit.id.block);
        // Earlier versions at the block: no reader fetches them any more.
        let earlier = shared.retire(unit.id.block, &guard, |_| true);
        shared.enter(&frames, &unit, hint, &guard);
        let page = shared.residents.publish_one(frames);
        drop(guard);
        drop(earlier);
        let keep = match keep {
            Keep::Free => false,
            Keep::Resident(_) => true,
            Keep::Inherit(old) => self.inherit(old, &page),
        };
        Queued { page, keep }
    }

    /// Hands the history of the page `old` over to `page`, if `old` is resident.
    fn inherit(&self, old: UnitId, page: &Pinned) -> bool {
        let shared = self.pool.shared();
        let guard = shared.table.lock(old.block);
        let mut named =
            shared.table.chain(old.block, &guard).filter(|&index| shared.residents.slot(index).id() == old);
        let from = named.find_map(|index| shared.residents.pin(index));
        // The lock keeps it from being retired meanwhile.
        if let Some(from) = &from {
            shared.policy.inherit((from.slot(), from.index()), (page.slot(), page.index()));
        }
        drop(guard);
        from.is_some()
    }

    /// Hands everything that is gathered to the device.
    fn issue(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        let pages_max = self.options.request_bytes_max / BLOCK_BYTES;
        let groups = neighbours(gathered, pages_max, |queued| queued.page.unit().run());
        let requests = groups.into_iter().map(|(block, run)| {
            let (pages, keep): (SmallVec<[Pinned; 1]>, _) =
                run.into_iter().map(|queued| (queued.page, queued.keep)).unzip();
            let write = PageWrites { shared: self.pool.shared().clone(), flight: self.flight.clone(), keep };
            (self.pool.device().write(block, WriteFrames(pages)), write)
        });
        drop(start(self.pool.device(), true, requests));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.gathered.drain(..).for_each(|queued| forget(self.pool.shared(), &queued.page));
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Pool {
    /// A writer of new pages through the pool.
    #[must_use]
    pub fn writer(&self, options: WriterOptions) -> Writer {
        Writer::new(self.clone(), options)
    }

    /// Notes that no new reader needs the page at `block`. If it is resident, it is evicted before everything else.
    pub fn let_go(&self, block: u64) {
        let shared = self.shared();
        let guard = shared.table.lock(block);
        let pinned: SmallVec<[Pinned; 2]> =
            shared.table.chain(block, &guard).filter_map(|index| shared.residents.pin(index)).collect();
        // The lock keeps them from being retired meanwhile.
        pinned.iter().for_each(|pinned| shared.policy.let_go(pinned.slot(), pinned.index()));
        drop(guard);
    }
}

/// Removes a page from the table: its block does not hold it, or its frame is wanted.
fn forget(shared: &Shared, page: &Pinned) {
    let guard = shared.table.lock(page.slot().block());
    shared.retire_pinned(page, &guard);
}

/// A write of pages that follow each other on the device.
struct PageWrites {
    shared: Arc<Shared>,
    flight: Arc<Flight>,
    /// Which of the pages stay.
    keep: Vec<bool>,
}

impl Purpose<WriteFrames> for PageWrites {
    fn ended(&self, outcome: Outcome<WriteFrames>) {
        let Outcome { result, memory: WriteFrames(pages) } = outcome;
        let bytes = pages.len() * BLOCK_BYTES;
        self.shared.count_write(&result, pages.len());
        for (page, keep) in pages.iter().zip(&self.keep) {
            if result.is_err() || !keep {
                forget(&self.shared, page);
            }
        }
        // The frames are free before the writer is woken.
        drop(pages);
        let waker = {
            let mut flight = self.flight.0.lock();
            flight.bytes -= bytes;
            if let Err(error) = result {
                flight.error.get_or_insert(error.into());
            }
            flight.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
