//! Pages that change in place: read and write guards, new and deleted pages, flushes.
//!
//! The engine's pages never change in place: this serves other users of the pool. Reads ahead of scans: [`Stream`].
//!
//! A read guard is a pin ([`Pinned`]), which is also the shared latch; a write guard ([`PageWrite`]) is the only pin.
//! Writers come first: a latched page gets no new pins. The pool guarantees that a read returns the bytes of the last
//! write guard that was dropped before it started, whether they are on the device, in flight or in the pool.
//!
//! Nothing here is durable before the device is flushed.

mod page_write;
mod read_length;
mod stream;

use std::future::poll_fn;
use std::task::Poll;

use shoal_base::sync::atomic::Ordering;
use shoal_base::task::may_block;

use crate::PoolError;
use crate::memory::frame::Frames;
use crate::pool::Pool;
use crate::resident::pin::Pinned;
use crate::unit::{Hint, Unit};
use crate::write_back::{After, ImageState};

pub use page_write::PageWrite;
pub use stream::Stream;

impl Pool {
    /// The page at `block`, to be read.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub async fn read(&self, block: u64, hint: Hint) -> Result<Pinned, PoolError> {
        self.fetch(Unit::mutable(block), hint).await
    }

    /// The page at `block`, to be changed. Waits for its readers and for a write of it in flight. A caller that has it
    /// pinned waits for ever.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub async fn write(&self, block: u64, hint: Hint) -> Result<PageWrite, PoolError> {
        let unit = Unit::mutable(block);
        loop {
            let pinned = self.fetch(unit, hint).await?;
            if let Some(page) = self.latched(pinned).await {
                return Ok(page);
            }
        }
    }

    /// Latches a pinned page. `None` if another writer had the latch: this has waited for it, and the caller must look
    /// the page up again.
    pub(crate) async fn latched(&self, pinned: Pinned) -> Option<PageWrite> {
        match PageWrite::latch(pinned) {
            Ok(draining) => Some(draining.drained().await),
            Err(pinned) => {
                let index = pinned.index();
                drop(pinned);
                self.unlatched(index).await;
                None
            }
        }
    }

    /// A new page of zeros at `block`. It is not read from the device; its old contents do not matter.
    ///
    /// # Errors
    /// [`PoolError::Exhausted`].
    pub async fn create(&self, block: u64, hint: Hint) -> Result<PageWrite, PoolError> {
        let unit = Unit::mutable(block);
        loop {
            let frames = self.take(1, hint).await?;
            let pinned = match self.install(&unit, hint, frames) {
                Some(pinned) => pinned,
                // The page is resident or in flight: it is cleared.
                None => self.fetch(unit, hint).await?,
            };
            if let Some(mut page) = self.latched(pinned).await {
                page.fill(0);
                return Ok(page);
            }
        }
    }

    /// Forgets the page at `block` without writing it, after its readers and a write in flight. The block may then be
    /// reused.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch), if it is being read from the device.
    pub async fn delete(&self, block: u64) -> Result<(), PoolError> {
        let unit = Unit::mutable(block);
        loop {
            if self.is_there(&unit) {
                match self.latched(self.fetch(unit, Hint::Scan).await?).await {
                    Some(page) => page.discard(self.shared()),
                    None => continue,
                }
            }
            match self.image_state(block) {
                None => return Ok(()),
                Some(ImageState::Failed) => self.forget_failed_image(block),
                Some(ImageState::InFlight) => {
                    self.until(|| self.image_state(block) != Some(ImageState::InFlight)).await
                }
            }
        }
    }

    /// Writes the page at `block` if it is dirty, and waits for the write.
    ///
    /// # Errors
    /// The device's.
    pub async fn flush_page(&self, block: u64) -> Result<(), PoolError> {
        let unit = Unit::mutable(block);
        loop {
            let (mut is_dirty, was_there) = (false, self.is_there(&unit));
            if was_there {
                let pinned = self.fetch(unit, Hint::Scan).await?;
                is_dirty = pinned.slot().word.is_dirty();
                if is_dirty && self.may_be_written(&pinned) {
                    let requests = self.write_back(vec![pinned], After::Stay, may_block(), None);
                    self.until(|| requests.iter().all(|request| request.purpose.is_over())).await;
                    let failed = requests.iter().find_map(|request| request.purpose.error());
                    // An error that is returned here must not be returned by the next flush.
                    failed.iter().for_each(|_| drop(self.take_write_error()));
                    return failed.map_or(Ok(()), Err);
                }
            }
            match self.image_state(block) {
                None if is_dirty => {}
                // A fetch of a page whose image could not be written takes the image, and the page is dirty again.
                None if !was_there && self.is_there(&unit) => {}
                None => return Ok(()),
                Some(ImageState::Failed) => {
                    self.take_write_error();
                    self.retry_images(|failed| failed == block);
                }
                Some(ImageState::InFlight) => {}
            }
            self.until(|| self.image_state(block) != Some(ImageState::InFlight)).await;
            if self.image_state(block) == Some(ImageState::Failed) {
                self.take_write_error().map_or(Ok(()), Err)?;
            }
        }
    }

    /// Writes every page that is dirty now, and waits for these and all other writes. `Ok` means that every page that
    /// was dirty at the call has been written; a device with a cache must be flushed then. The result does not include
    /// earlier writes: a page whose write failed stays dirty and is written again here, and only the result of that
    /// counts. For a shutdown no thread may write meanwhile.
    ///
    /// # Errors
    /// The device's, if a write of this call failed: then some page is still dirty, and the next call tries it again.
    /// Each error is returned once.
    pub async fn flush_all(&self) -> Result<(), PoolError> {
        let residents = self.residents();
        // Errors of writes before this call: their pages are still dirty.
        drop(self.take_write_error());
        loop {
            self.written().await;
            let (mut pages, mut is_whole) = (Vec::new(), true);
            // Done first: a fetch of such a page makes it dirty, perhaps in a frame that was checked already.
            self.retry_images(|_| true);
            for index in 0..residents.memory.free.touched() {
                // Latched pages are waited for; the others are only pinned.
                while residents.slot(index).word.is_latched() {
                    self.unlatched(index).await;
                }
                if let Some(pinned) = residents.pin(index).filter(|pinned| pinned.slot().word.is_dirty()) {
                    if self.may_be_written(&pinned) {
                        pages.push(pinned);
                    } else {
                        // The write of an older image has just started.
                        is_whole = false;
                    }
                }
            }
            let requests = self.write_back(pages, After::Stay, false, None);
            self.written().await;
            if let Some(error) = requests.iter().find_map(|request| request.purpose.error()) {
                drop(self.take_write_error());
                return Err(error);
            }
            let has_failed_image = self.has_failed_image();
            if has_failed_image && let Some(error) = self.take_write_error() {
                return Err(error);
            }
            if is_whole && !has_failed_image {
                return Ok(());
            }
        }
    }

    fn take_write_error(&self) -> Option<PoolError> {
        self.shared().writes.error.lock().take().map(PoolError::from)
    }

    /// Waits until no page is being written.
    async fn written(&self) {
        let writes = &self.shared().writes;
        let under_way =
            || writes.from_frames.load(Ordering::SeqCst) + writes.from_side.load(Ordering::SeqCst);
        self.until(|| under_way() == 0).await;
    }

    /// Waits until `condition`, which may become true when a write completes.
    async fn until(&self, condition: impl Fn() -> bool) {
        let Some(waiting) = self.shared().writes.waiting.enter() else { return };
        poll_fn(|context| {
            waiting.register(context.waker());
            if condition() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Makes `frames`, zeroed, the page that changes in place, pinned and dirty; `None` if it is resident already or in
    /// flight.
    fn install(&self, unit: &Unit, hint: Hint, mut frames: Frames) -> Option<Pinned> {
        let shared = self.shared();
        frames.first_mut().fill(0);
        let guard = shared.table.lock(unit.id.block);
        let mut chain = shared.table.chain(unit.id.block, &guard);
        if guard.is_loading(unit) || chain.any(|index| shared.residents.slot(index).is(unit)) {
            drop(guard);
            return None;
        }
        shared.enter(&frames, unit, hint, &guard);
        let pinned = shared.residents.publish_one(frames);
        // A pinned page cannot be evicted before it is dirty.
        pinned.slot().word.soil();
        drop(guard);
        Some(pinned)
    }
}
