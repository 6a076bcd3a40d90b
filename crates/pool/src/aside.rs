//! Side buffers: images of pages that change in place, on their way to the device while their frames are used for something
//! else.
//!
//! - Whoever has a dirty page written for its frame copies it into a side buffer, where one is free: the frame can be had at
//!   once, and nobody who wants to change the page waits for the device. Where none is free the page is written from its frame.
//! - An image stands in the shard of its block from before the page can leave until the device has it. A page that comes back
//!   meanwhile is copied from there, without a read.
//! - One image of a page is on its way at a time: a page that was changed meanwhile is not written before that ended
//!   ([`Pool::may_be_written`]). So the newest image is the last one to be written.
//! - An image whose write failed stays, and is the page: who fetches it gets it back, dirty, and the buffer is free again; a newer
//!   one takes its place; a flush tries again.
//!
//! Side buffers count beside the frames. Their memory is a second store of frames, so that this file needs no unsafe code.

use std::sync::Arc;
use std::task::Wake;

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicUsize, Ordering};
use shoal_device::{IoFuture, Outcome};
use smallvec::{SmallVec, smallvec};

use crate::ahead::Ahead;
use crate::behind::WRITE_PAGES_MAX;
use crate::counters::Alone;
use crate::driven;
use crate::fetch::Hinted;
use crate::frame::{Frames, SharedFrames, Stores};
use crate::pin::Pinned;
use crate::pool::{Inner, Pool};
use crate::table::ShardGuard;

/// The side buffers of a pool.
pub(crate) struct Side {
    store: Stores,
    /// Images on their way.
    pub(crate) writing: Alone<AtomicUsize>,
}

impl Side {
    pub(crate) fn new(buffers: u32) -> std::io::Result<Self> {
        Ok(Self { store: Stores::new(buffers)?, writing: Alone::default() })
    }

    pub(crate) fn buffers(&self) -> usize {
        self.store.free.frames()
    }

    /// Buffers that hold an image.
    pub(crate) fn used(&self) -> usize {
        self.store.free.used()
    }
}

/// The image of a page in a side buffer.
pub(crate) struct Image {
    block: u64,
    bytes: Arc<Frames>,
    /// Its write failed, and none is under way.
    failed: bool,
}

/// What is known of the image of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    OnItsWay,
    Failed,
}

/// An image whose write is to begin.
pub(crate) struct Leaving {
    block: u64,
    bytes: Arc<Frames>,
}

impl Pool {
    /// What is known of the image of this block, where there is one.
    pub(crate) fn aside(&self, block: u64) -> Option<Aside> {
        self.inner().side.as_ref()?;
        let guard = self.inner().table.lock(block);
        let image = guard.images.iter().find(|image| image.block == block)?;
        Some(if image.failed { Aside::Failed } else { Aside::OnItsWay })
    }

    /// Whether there is an image that could not be written.
    pub(crate) fn has_failed_aside(&self) -> bool {
        let mut found = false;
        if self.inner().side.is_some() {
            self.inner().table.each_shard(|guard| found |= guard.images.iter().any(|image| image.failed));
        }
        found
    }

    /// Forgets the image of this block, unless it is on its way.
    pub(crate) fn forget_aside(&self, block: u64) {
        self.inner().table.lock(block).images.retain(|image| image.block != block || !image.failed);
    }

    /// Whether a write of this page, which the caller pinned while it was dirty, may begin. Forgets an older image that
    /// could not be written.
    pub(crate) fn may_be_written(&self, page: &Pinned) -> bool {
        if self.inner().side.is_none() {
            return true;
        }
        let block = page.slot().block();
        let images = &mut self.inner().table.lock(block).images;
        images.retain(|image| image.block != block || !image.failed);
        !images.iter().any(|image| image.block == block)
    }

    /// Copies the page, which the caller pinned while it was dirty, into a side buffer; it is clean then and may leave. Gives the
    /// page back where no buffer is free; nothing where somebody else sets it aside.
    pub(crate) fn set_aside(&self, page: Pinned) -> Result<Option<Leaving>, Pinned> {
        let inner = self.inner();
        let Some((side, mut frames)) =
            inner.side.as_ref().and_then(|side| side.store.take(1).map(|frames| (side, frames)))
        else {
            return Err(page);
        };
        frames.first_mut().copy_from_slice(page.page());
        let (block, bytes) = (page.slot().block(), Arc::new(frames));
        let mut guard = inner.table.lock(block);
        guard.images.retain(|image| image.block != block || !image.failed);
        if guard.images.iter().any(|image| image.block == block) {
            drop(guard);
            return Ok(None);
        }
        guard.images.push(Image { block, bytes: bytes.clone(), failed: false });
        side.writing.fetch_add(1, Ordering::SeqCst);
        drop(guard);
        // From here on the page may leave: who misses it finds the image.
        page.slot().word().clean();
        inner.stats.set_aside.add(1);
        Ok(Some(Leaving { block, bytes }))
    }

    /// Takes the frame of a dirty page that nobody uses, where a side buffer is free for it.
    pub(crate) fn take_frame_aside(&self, index: u32) -> Option<Frames> {
        self.inner().side.as_ref()?;
        let leaving = self.set_aside(self.pin_dirty(index)?).ok()??;
        let frames = self.inner().evict(index);
        self.write_aside(vec![leaving], None);
        frames
    }

    /// Writes images in the background, adjacent ones with one request. `then` may have waited for the frames.
    pub(crate) fn write_aside(&self, mut images: Vec<Leaving>, then: Option<&Arc<Ahead>>) {
        if images.is_empty() {
            return;
        }
        images.sort_unstable_by_key(|image| image.block);
        let mut batch = self.lane().batch();
        let mut requests = Vec::new();
        let mut images = images.into_iter().peekable();
        while let Some(Leaving { block, bytes }) = images.next() {
            let mut run: SmallVec<[Arc<Frames>; 1]> = smallvec![bytes];
            while run.len() < WRITE_PAGES_MAX
                && let Some(next) = images.next_if(|next| next.block == block + run.len() as u64)
            {
                run.push(next.bytes);
            }
            let io = self.lane().write(block, SharedFrames(run));
            let request = WriteAside { inner: self.inner().clone(), block, io: Mutex::new(None) };
            requests.push((Arc::new(request), batch.add(io)));
        }
        batch.start_in_background();
        for (request, io) in requests {
            *request.io.lock() = Some(io);
            request.drive();
        }
        if let Some(then) = then {
            then.issue();
        }
    }

    /// Tries once more to write the images whose writes failed.
    pub(crate) fn retry_aside(&self, mut wanted: impl FnMut(u64) -> bool) {
        let inner = self.inner();
        let Some(side) = &inner.side else { return };
        let mut leaving = Vec::new();
        inner.table.each_shard(|mut guard| {
            for image in guard.images.iter_mut().filter(|image| image.failed && wanted(image.block)) {
                image.failed = false;
                side.writing.fetch_add(1, Ordering::SeqCst);
                leaving.push(Leaving { block: image.block, bytes: image.bytes.clone() });
            }
        });
        self.write_aside(leaving, None);
    }
}

impl Inner {
    /// Makes `frames` the page whose image is aside, pinned, under the lock of its shard. Gives the frames back where there is no
    /// image.
    pub(crate) fn from_aside(
        self: &Arc<Self>,
        hinted: Hinted<'_>,
        mut frames: Frames,
        guard: &mut ShardGuard<'_>,
    ) -> Result<Pinned, Frames> {
        let Hinted { unit, hint } = hinted;
        let of_unit = |image: &Image| image.block == unit.id.block && unit.is_mutable();
        let Some(at) = guard.images.iter().position(of_unit) else { return Err(frames) };
        frames.first_mut().copy_from_slice(guard.images[at].bytes.first());
        let failed = guard.images[at].failed;
        if failed {
            guard.images.swap_remove(at);
        }
        let index = frames.list().head;
        let slot = &self.slots[index as usize];
        slot.name(unit);
        self.policy.entered(slot, index, hint);
        self.table.link(&self.slots, index, guard);
        let pinned = self.publish_one(frames);
        if failed {
            // Pinned it cannot be taken before it is dirty.
            slot.word().soil();
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

/// One request to the device. Drives itself, as [`crate::load::ReadRequest`] does.
struct WriteAside {
    inner: Arc<Inner>,
    block: u64,
    io: Mutex<Option<IoFuture<SharedFrames>>>,
}

impl WriteAside {
    fn drive(self: Arc<Self>) {
        if let Some(outcome) = driven::ended(&self.io, &self) {
            self.finish(outcome);
        }
    }

    fn finish(&self, outcome: Outcome<SharedFrames>) {
        let Outcome { result, memory: SharedFrames(images) } = outcome;
        let inner = &self.inner;
        inner.count_write(&result, images.len() as u64);
        for (block, bytes) in (self.block..).zip(&images) {
            inner.left_side(block, bytes, result.is_ok());
        }
        let count = images.len();
        drop(images);
        if let Some(side) = &inner.side {
            // As for writes from frames: who waits announces itself first and then looks at the number.
            side.writing.fetch_sub(count, Ordering::SeqCst);
        }
        inner.flushing.notify();
        if result.is_ok() {
            // Who found every frame dirty looks again: there is a side buffer.
            inner.store.starving.notify();
        }
    }
}

impl Wake for WriteAside {
    fn wake(self: Arc<Self>) {
        self.drive();
    }
}
