//! Writing pages that change in place, behind their writers' backs.
//!
//! - A page is written from its frame, pinned: readers find it as always, who wants to write to it waits. So at most one
//!   image of a page is on its way, the newest one, and a page is read from the device only after its last write.
//! - On a slow device victims are written before their frames are needed, so that free frames, or clean ones, are ready
//!   when a page is missed: [`Pool::replenish`]. On a fast one whoever needs the frame writes the page itself.
//! - Where side buffers are free, a page is copied into one and leaves its frame at once: [`crate::aside`].
//! - Pages that scans left and that are adjacent on the device go out in one request.
//!
//! A write that failed leaves the page dirty. It is tried again at a flush, which also tells the error, and where frames are
//! wanted: not at once by who waits for one, which nobody wakes for it, but at the next tick of the watchdog; when its time
//! is over it gets the error.

use std::sync::{Arc, OnceLock};
use std::task::Wake;

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, Ordering};
use shoal_base::task::may_block;
use shoal_device::{DeviceError, IoFuture, Outcome};
use smallvec::{SmallVec, smallvec};

use crate::PoolError;
use crate::ahead::Ahead;
use crate::driven;
use crate::pin::{Pinned, WriteFrames};
use crate::pool::{Inner, Pool};

/// Writes under way for frames that are wanted, at most, where not more frames are to be ready. One more for each request that
/// waits, because a device may be fast at reading and slow at writing; but not more than half of the frames, and two at least:
/// one that fails again and again must not keep the other pages from being written.
const WRITING_MIN: usize = 8;

/// Writes that one miss begins at most.
const REPLENISHED: usize = 2;

/// Pages that one request writes at most: 256 KiB.
pub(crate) const WRITE_PAGES_MAX: usize = 64;

/// What becomes of the pages when they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Stay,
    /// They go, where nobody wants them meanwhile.
    Evict,
}

impl Pool {
    /// Whether the caller should do by itself what it needs done now.
    pub(crate) fn does_it_itself(&self) -> bool {
        may_block() && !self.inner().latency.is_slow()
    }

    /// Pins the page where it is dirty and idle, to be written.
    pub(crate) fn pin_dirty(&self, index: u32) -> Option<Pinned> {
        let inner = self.inner();
        let word = inner.slots[index as usize].word();
        if !word.is_dirty() || !word.is_idle() {
            return None;
        }
        // Pinned it cannot become clean by anybody but a write of its image, and not be written to.
        let pinned = inner.pin(index).filter(|pinned| pinned.slot().word().is_dirty());
        pinned.filter(|pinned| self.may_be_written(pinned))
    }

    /// Writes a page that the caller pinned, on this thread, which may block; without anything that a hand-off needs. The
    /// pin keeps everybody from changing it, and from taking its frame.
    pub(crate) fn write_here(&self, page: Pinned) {
        let outcome = self.lane().write_now(page.slot().block(), WriteFrames(smallvec![page]));
        self.inner().count_write(&outcome.result, 1);
        outcome.memory.0.iter().for_each(|page| page.written(outcome.result.is_ok()));
    }

    /// Writes pages that the caller pinned: here and now, or in the background. Adjacent ones share a request.
    pub(crate) fn write_back(
        &self,
        mut pages: Vec<Pinned>,
        after: After,
        here: bool,
        then: Option<&Arc<Ahead>>,
    ) -> Vec<Arc<WriteBack>> {
        if after == After::Evict && self.inner().side.is_some() {
            pages = self.move_aside(pages, then);
        }
        pages.sort_unstable_by_key(|page| page.slot().block());
        self.inner().writing.fetch_add(pages.len(), Ordering::Relaxed);
        let mut begun = Vec::new();
        let mut batch = self.lane().batch();
        let mut requests = Vec::new();
        let mut pages = pages.into_iter().peekable();
        while let Some(first) = pages.next() {
            let block = first.slot().block();
            let mut run: SmallVec<[Pinned; 1]> = smallvec![first];
            while run.len() < WRITE_PAGES_MAX
                && let Some(next) = pages.next_if(|next| next.slot().block() == block + run.len() as u64)
            {
                run.push(next);
            }
            let io = self.lane().write(block, WriteFrames(run));
            let (over, failed) = (AtomicBool::new(false), OnceLock::new());
            let request = WriteBack { after, then: then.cloned(), over, failed, io: Mutex::new(None) };
            requests.push((Arc::new(request), batch.add(io)));
        }
        if here {
            batch.start();
        } else {
            batch.start_in_background();
        }
        for (request, io) in requests {
            *request.io.lock() = Some(io);
            request.clone().drive();
            begun.push(request);
        }
        begun
    }

    /// Copies the pages into side buffers, as far as there are, and evicts and writes these; gives the others back.
    fn move_aside(&self, pages: Vec<Pinned>, then: Option<&Arc<Ahead>>) -> Vec<Pinned> {
        let (mut leaving, mut others) = (Vec::new(), Vec::new());
        for page in pages {
            let index = page.index();
            match self.set_aside(page) {
                Ok(image) => {
                    leaving.extend(image);
                    drop(self.inner().evict(index));
                }
                Err(page) => others.push(page),
            }
        }
        self.write_aside(leaving, then);
        others
    }

    /// Whether frames enough are free, or will be when their write ends.
    fn is_ready(&self) -> bool {
        let inner = self.inner();
        let free = inner.slots.len().saturating_sub(inner.store.free.used());
        free + inner.writing.load(Ordering::Relaxed) >= inner.ready_frames
    }

    /// Begins to write a dirty page whose frame is wanted soon, unless enough is being written: who waits for a frame must
    /// not have all pages written and evicted that are used often.
    pub(crate) fn begin_write(&self, index: u32) {
        let inner = self.inner();
        let wanted = inner.ready_frames.max(WRITING_MIN) + inner.store.starving.waiting();
        let writing_max = wanted.min(inner.slots.len() / 2).max(2);
        if inner.writing.load(Ordering::Relaxed) >= writing_max {
            return;
        }
        if let Some(page) = self.pin_dirty(index) {
            self.write_back(vec![page], After::Evict, false, None);
        }
    }

    /// After a miss on a slow device: begins to write the pages that will have to go next, until enough frames are ready.
    pub(crate) fn replenish(&self) {
        let inner = self.inner();
        if !inner.latency.is_slow() {
            return;
        }
        for _ in 0..REPLENISHED {
            if self.is_ready() {
                return;
            }
            match inner.worst(false) {
                Some(index) if inner.slots[index as usize].word().is_dirty() => self.begin_write(index),
                // What goes next is clean: it can be taken when it is needed.
                _ => return,
            }
        }
    }
}

impl Inner {
    pub(crate) fn count_write(&self, result: &Result<(), DeviceError>, pages: u64) {
        match result {
            Ok(()) => {
                self.stats.writes.add(1);
                self.stats.blocks_written.add(pages);
            }
            Err(error) => {
                self.stats.write_errors.add(1);
                self.write_error.lock().get_or_insert_with(|| error.clone());
            }
        }
    }
}

impl Pinned {
    /// A write of the page ended.
    fn written(&self, done: bool) {
        if done {
            self.slot().word().clean();
        } else {
            self.slot().word().let_sleep();
        }
    }
}

/// One request to the device. Drives itself, as [`crate::load::ReadRequest`] does.
pub(crate) struct WriteBack {
    after: After,
    /// Who waits for frames.
    then: Option<Arc<Ahead>>,
    /// It ended, and its pages are given back.
    over: AtomicBool,
    /// Why it failed. The pool's own note is taken by whoever flushes first.
    failed: OnceLock<DeviceError>,
    io: Mutex<Option<IoFuture<WriteFrames>>>,
}

impl WriteBack {
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Why it failed, once it is over.
    pub(crate) fn error(&self) -> Option<PoolError> {
        self.failed.get().cloned().map(PoolError::from)
    }

    fn drive(self: Arc<Self>) {
        if let Some(outcome) = driven::ended(&self.io, &self) {
            self.finish(outcome);
        }
    }

    fn finish(&self, outcome: Outcome<WriteFrames>) {
        let Outcome { result, memory: WriteFrames(pages) } = outcome;
        let Some(first) = pages.first() else { return };
        // Alive as long as the pages are pinned.
        let inner = first.share();
        inner.count_write(&result, pages.len() as u64);
        let count = pages.len();
        if let Err(error) = &result {
            // It ends once.
            let _ = self.failed.set(error.clone());
        }
        for page in pages {
            page.written(result.is_ok());
            let index = page.index();
            drop(page);
            if result.is_ok() && self.after == After::Evict {
                drop(inner.evict(index));
            }
        }
        // Pairs with `written`, which announces itself first and then looks at the number.
        inner.writing.fetch_sub(count, Ordering::SeqCst);
        self.over.store(true, Ordering::SeqCst);
        inner.flushing.notify();
        if result.is_ok() {
            // Who found every frame dirty looks again.
            inner.store.starving.notify();
        }
        if let Some(then) = &self.then {
            then.issue();
        }
    }
}

impl Wake for WriteBack {
    fn wake(self: Arc<Self>) {
        self.drive();
    }
}
