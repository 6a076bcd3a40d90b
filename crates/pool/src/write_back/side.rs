//! Side buffers: images of pages that change in place, in flight to the device while their frames are reused.
//!
//! - A thread that writes a dirty page for its frame copies it into a side buffer if one is free: the frame is
//!   available at once, and a writer of the page does not wait for the device. Otherwise the page is written from its
//!   frame.
//! - An image is in the shard of its block from before the page can leave until the device has it. A page that
//!   comes back meanwhile is copied from there, without a read.
//! - One image of a page is in flight at a time: a page that was changed meanwhile is not written before that write
//!   completed ([`Pool::may_be_written`]). So the newest image is written last.
//! - An image whose write failed stays, and is the page: a fetch gets it back, dirty, and the buffer is free again; a
//!   newer image takes its place; a flush tries again.
//!
//! Side buffers count beside the frames. Their memory is a second store of frames, so that this file needs no unsafe code.

use std::sync::Arc;
use std::task::Waker;

use shoal_base::Run;
use shoal_base::sync::atomic::Ordering;
use shoal_device::Outcome;

use super::WRITE_PAGES_MAX;
use crate::memory::frame::{Frames, SharedFrames};
use crate::pool::Pool;
use crate::requests::{Purpose, neighbours, start};
use crate::resident::pin::Pinned;
use crate::shared::Shared;
use crate::table::{Image, ShardGuard};
use crate::unit::{Hint, Unit};

/// The state of the image of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageState {
    InFlight,
    Failed,
}

/// An image whose write is about to start.
pub(crate) struct Leaving {
    block: u64,
    bytes: Arc<Frames>,
}

impl Pool {
    /// The state of the image of this block, if there is one.
    pub(crate) fn image_state(&self, block: u64) -> Option<ImageState> {
        self.shared().writes.side.as_ref()?;
        let guard = self.shared().table.lock(block);
        let image = guard.images.iter().find(|image| image.block == block)?;
        Some(if image.failed { ImageState::Failed } else { ImageState::InFlight })
    }

    /// Returns true if the write of some image failed.
    pub(crate) fn has_failed_image(&self) -> bool {
        let mut found = false;
        if self.shared().writes.side.is_some() {
            self.shared().table.each_shard(|guard| found |= guard.images.iter().any(|image| image.failed));
        }
        found
    }

    /// Forgets the image of this block, unless it is in flight.
    pub(crate) fn forget_failed_image(&self, block: u64) {
        self.shared().table.lock(block).images.retain(|image| image.block != block || !image.failed);
    }

    /// Returns true if a write of this page, which the caller pinned while it was dirty, may start. Forgets an older
    /// image whose write failed.
    pub(crate) fn may_be_written(&self, page: &Pinned) -> bool {
        if self.shared().writes.side.is_none() {
            return true;
        }
        let block = page.slot().block();
        let images = &mut self.shared().table.lock(block).images;
        images.retain(|image| image.block != block || !image.failed);
        !images.iter().any(|image| image.block == block)
    }

    /// Copies the page, which the caller pinned while it was dirty, into a side buffer; then it is clean and may leave.
    /// Returns the page if no buffer is free, and `None` if another thread copies it meanwhile.
    pub(crate) fn copy_to_side(&self, page: Pinned) -> Result<Option<Leaving>, Pinned> {
        let shared = self.shared();
        let Some(mut frames) = shared.writes.side.as_ref().and_then(|side| side.take(1)) else {
            return Err(page);
        };
        frames.first_mut().copy_from_slice(page.page());
        let (block, bytes) = (page.slot().block(), Arc::new(frames));
        let mut guard = shared.table.lock(block);
        guard.images.retain(|image| image.block != block || !image.failed);
        if guard.images.iter().any(|image| image.block == block) {
            drop(guard);
            return Ok(None);
        }
        guard.images.push(Image { block, bytes: bytes.clone(), failed: false });
        shared.writes.from_side.fetch_add(1, Ordering::SeqCst);
        drop(guard);
        // From here on the page may leave: a fetch that misses it finds the image.
        page.slot().word.clean();
        shared.stats.set_aside.add(1);
        Ok(Some(Leaving { block, bytes }))
    }

    /// Takes the frame of an idle dirty page if a side buffer is free for it.
    pub(crate) fn take_frame_to_side(&self, index: u32) -> Option<Frames> {
        self.shared().writes.side.as_ref()?;
        let leaving = self.copy_to_side(self.pin_dirty(index)?).ok()??;
        let frames = self.shared().evict(index);
        self.write_images(vec![leaving], None);
        frames
    }

    /// Writes images in the background, adjacent ones with one request. `then` may have waited for the frames.
    pub(super) fn write_images(&self, images: Vec<Leaving>, then: Option<&Waker>) {
        if images.is_empty() {
            return;
        }
        let groups = neighbours(images, WRITE_PAGES_MAX, |image| Run::new(image.block, 1));
        let requests = groups.into_iter().map(|(block, run)| {
            let memory = SharedFrames(run.into_iter().map(|image| image.bytes).collect());
            (self.device().write(block, memory), ImageWrite { shared: self.shared().clone(), block })
        });
        drop(start(self.device(), true, requests));
        if let Some(then) = then {
            then.wake_by_ref();
        }
    }

    /// Retries the writes of images that failed.
    pub(crate) fn retry_images(&self, mut wanted: impl FnMut(u64) -> bool) {
        if self.shared().writes.side.is_none() {
            return;
        }
        let mut leaving = Vec::new();
        self.shared().table.each_shard(|mut guard| {
            for image in guard.images.iter_mut().filter(|image| image.failed && wanted(image.block)) {
                image.failed = false;
                self.shared().writes.from_side.fetch_add(1, Ordering::SeqCst);
                leaving.push(Leaving { block: image.block, bytes: image.bytes.clone() });
            }
        });
        self.write_images(leaving, None);
    }
}

impl Shared {
    /// Makes `frames` the page whose image is in a side buffer, pinned, under the lock of its shard. Returns the frames
    /// if there is no image.
    pub(crate) fn restore(
        self: &Arc<Self>,
        unit: &Unit,
        hint: Hint,
        mut frames: Frames,
        guard: &mut ShardGuard<'_>,
    ) -> Result<Pinned, Frames> {
        let of_unit = |image: &Image| image.block == unit.id.block && unit.is_mutable();
        let Some(at) = guard.images.iter().position(of_unit) else { return Err(frames) };
        frames.first_mut().copy_from_slice(guard.images[at].bytes.first());
        let failed = guard.images[at].failed;
        if failed {
            guard.images.swap_remove(at);
        }
        self.enter(&frames, unit, hint, guard);
        let pinned = self.residents.publish_one(frames);
        if failed {
            // A pinned page cannot be evicted before it is dirty.
            pinned.slot().word.soil();
        }
        self.stats.queue_hits.add(1);
        Ok(pinned)
    }

    /// The write of this image ended.
    fn left_side(&self, block: u64, bytes: &Arc<Frames>, done: bool) {
        let images = &mut self.table.lock(block).images;
        let Some(at) = images.iter().position(|image| Arc::ptr_eq(&image.bytes, bytes)) else {
            unreachable!("an image stays while it is on its way")
        };
        if done {
            images.swap_remove(at);
        } else {
            images[at].failed = true;
        }
    }
}

/// A write of images from side buffers.
struct ImageWrite {
    shared: Arc<Shared>,
    block: u64,
}

impl Purpose<SharedFrames> for ImageWrite {
    fn ended(&self, outcome: Outcome<SharedFrames>) {
        let Outcome { result, memory: SharedFrames(images) } = outcome;
        let (shared, count) = (&self.shared, images.len());
        shared.wrote(&result, count);
        for (block, bytes) in (self.block..).zip(&images) {
            shared.left_side(block, bytes, result.is_ok());
        }
        drop(images);
        // As for writes from frames: a flush announces itself first and then looks at the number.
        shared.writes.from_side.fetch_sub(count, Ordering::SeqCst);
        shared.tell_of_write(result.is_ok());
    }
}
