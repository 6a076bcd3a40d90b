//! Writes pages that change in place, in the background.
//!
//! - A page is written from its frame, pinned: readers find it as always, and writers wait. So at most one image of a
//!   page is in flight, the newest one, and a page is read from the device only after its last write.
//! - On a slow device victims are written before their frames are needed, so that free or clean frames are ready when a
//!   page is missed: [`Pool::replenish`]. On a fast one the thread that needs the frame writes the page itself.
//! - If a side buffer is free, a page is copied into it and leaves its frame at once: [`side`].
//! - Pages that scans left and that are adjacent on the device are written with one request.
//!
//! A failed write leaves the page dirty. A flush tries it again and returns the error, and so does a request for
//! frames: such a request does not retry at once, because nothing wakes it for that, but at the next tick of the
//! watchdog; when its time is over it gets the error.

mod side;

use std::sync::{Arc, OnceLock};
use std::task::Waker;

use shoal_base::sync::atomic::{AtomicBool, Ordering};
use shoal_base::task::may_block;
use shoal_device::{DeviceError, Outcome};
use smallvec::smallvec;

use crate::PoolError;
use crate::pool::Pool;
use crate::requests::{Driven, Purpose, neighbours, start};
use crate::resident::pin::{Pinned, WriteFrames};
use crate::shared::Shared;

pub(crate) use side::ImageState;

/// Most writes in flight for wanted frames, unless more frames must be ready. Each waiting request adds one, because a
/// device may be fast at reading and slow at writing; but they take no more than half of the frames, and two at least:
/// a write that fails again and again must not keep the other pages from being written.
const WRITING_MIN: usize = 8;

/// Most writes that one miss starts.
const REPLENISHED: usize = 2;

/// Pages that one request writes at most: 256 KiB.
pub(crate) const WRITE_PAGES_MAX: usize = 64;

/// The fate of the pages after their write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Stay,
    /// They are evicted, unless a reader wants them meanwhile.
    Evict,
}

impl Pool {
    /// Returns true if the caller should do the work on its thread.
    pub(crate) fn does_it_itself(&self) -> bool {
        may_block() && !self.shared().latency.is_slow()
    }

    /// Pins the page if it is dirty and idle, to be written.
    pub(crate) fn pin_dirty(&self, index: u32) -> Option<Pinned> {
        let word = &self.residents().slot(index).word;
        if !word.is_dirty() || !word.is_idle() {
            return None;
        }
        // Only a write of its image can make a pinned page clean, and no thread can write to it.
        let pinned = self.residents().pin(index).filter(|pinned| pinned.slot().word.is_dirty());
        pinned.filter(|pinned| self.may_be_written(pinned))
    }

    /// Writes a page that the caller pinned, on this thread, which may block; without the cost of a hand-off. The pin
    /// prevents changes of the page and the eviction of its frame.
    pub(crate) fn write_here(&self, page: Pinned) {
        let outcome = self.device().write_now(page.slot().block(), WriteFrames(smallvec![page]));
        self.shared().wrote(&outcome.result, 1);
        outcome.memory.0.iter().for_each(|page| written(page, outcome.result.is_ok()));
    }

    /// Writes pages that the caller pinned, in the background unless `here`. Adjacent ones share a request. `then` is woken when a
    /// write has ended.
    pub(crate) fn write_back(
        &self,
        mut pages: Vec<Pinned>,
        after: After,
        here: bool,
        then: Option<&Waker>,
    ) -> Vec<Arc<Driven<WriteFrames, WriteBack>>> {
        if after == After::Evict && self.shared().writes.side.is_some() {
            pages = self.move_to_side(pages, then);
        }
        self.shared().writes.from_frames.fetch_add(pages.len(), Ordering::Relaxed);
        let groups = neighbours(pages, WRITE_PAGES_MAX, |page| page.unit().run());
        let requests = groups.into_iter().map(|(block, run)| {
            let (over, failed) = (AtomicBool::new(false), OnceLock::new());
            let shared = self.shared().clone();
            let write = WriteBack { shared, after, then: then.cloned(), over, failed };
            (self.device().write(block, WriteFrames(run.into())), write)
        });
        start(self.device(), !here, requests)
    }

    /// Copies pages into side buffers as far as these suffice, then evicts and writes them; returns the other pages.
    fn move_to_side(&self, pages: Vec<Pinned>, then: Option<&Waker>) -> Vec<Pinned> {
        let (mut leaving, mut others) = (Vec::new(), Vec::new());
        for page in pages {
            let index = page.index();
            match self.copy_to_side(page) {
                Ok(image) => {
                    leaving.extend(image);
                    drop(self.shared().evict(index));
                }
                Err(page) => others.push(page),
            }
        }
        self.write_images(leaving, then);
        others
    }

    /// Returns true if enough frames are free, or will be when their writes end.
    fn is_ready(&self) -> bool {
        let writes = &self.shared().writes;
        let free = self.frames().saturating_sub(self.residents().memory.free.used());
        free + writes.from_frames.load(Ordering::Relaxed) >= writes.ready_frames
    }

    /// Starts the write of a dirty page whose frame is wanted soon, unless enough writes are under way: a request
    /// that waits for a frame must not cause all often used pages to be written and evicted.
    pub(crate) fn begin_write(&self, index: u32) {
        let writes = &self.shared().writes;
        let wanted = writes.ready_frames.max(WRITING_MIN) + self.residents().memory.starving.waiting();
        let writing_max = wanted.min(self.frames() / 2).max(2);
        if writes.from_frames.load(Ordering::Relaxed) >= writing_max {
            return;
        }
        if let Some(page) = self.pin_dirty(index) {
            self.write_back(vec![page], After::Evict, false, None);
        }
    }

    /// After a miss on a slow device: starts the writes of the next pages to evict, until enough frames are ready.
    pub(crate) fn replenish(&self) {
        if !self.shared().latency.is_slow() {
            return;
        }
        for _ in 0..REPLENISHED {
            if self.is_ready() {
                return;
            }
            match self.shared().worst(false) {
                Some(index) if self.residents().slot(index).word.is_dirty() => self.begin_write(index),
                // The next victim is clean: it can be evicted when needed.
                _ => return,
            }
        }
    }
}

impl Shared {
    /// A write of pages that change in place ended.
    fn wrote(&self, result: &Result<(), DeviceError>, pages: usize) {
        self.count_write(result, pages);
        if let Err(error) = result {
            self.writes.error.lock().get_or_insert_with(|| error.clone());
        }
    }

    /// Wakes the waiters for the end of such writes.
    fn tell_of_write(&self, succeeded: bool) {
        self.writes.waiting.notify();
        if succeeded {
            // A request that found every frame dirty looks again.
            self.residents.memory.starving.notify();
        }
    }
}

/// A write of the page ended.
fn written(page: &Pinned, done: bool) {
    if done {
        page.slot().word.clean();
    } else {
        page.slot().word.let_sleep();
    }
}

/// A write of pages from their frames.
pub(crate) struct WriteBack {
    shared: Arc<Shared>,
    after: After,
    /// Woken at the end of the write: a stream that waits for frames.
    then: Option<Waker>,
    /// True once the write is complete, and its pages are unpinned.
    over: AtomicBool,
    /// The error of the write. The first flush takes the pool's own note.
    failed: OnceLock<DeviceError>,
}

impl WriteBack {
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// The error of the write, once it has ended.
    pub(crate) fn error(&self) -> Option<PoolError> {
        self.failed.get().cloned().map(PoolError::from)
    }
}

impl Purpose<WriteFrames> for WriteBack {
    fn ended(&self, outcome: Outcome<WriteFrames>) {
        let Outcome { result, memory: WriteFrames(pages) } = outcome;
        let (shared, count) = (&self.shared, pages.len());
        shared.wrote(&result, count);
        if let Err(error) = &result {
            // The write completes once.
            let _ = self.failed.set(error.clone());
        }
        for page in pages {
            written(&page, result.is_ok());
            let index = page.index();
            drop(page);
            if result.is_ok() && self.after == After::Evict {
                drop(shared.evict(index));
            }
        }
        // Pairs with a flush, which announces itself first and then looks at the number.
        shared.writes.from_frames.fetch_sub(count, Ordering::SeqCst);
        self.over.store(true, Ordering::SeqCst);
        shared.tell_of_write(result.is_ok());
        if let Some(then) = &self.then {
            then.wake_by_ref();
        }
    }
}
