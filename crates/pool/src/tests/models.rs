//! Models of the threads, by the rules of the memory model: loom runs every schedule of a few threads on the real pin
//! word and the real free list, with every value that a load may legally see, and checks that the accesses of the
//! protected bytes are ordered.

#![allow(unsafe_code)]
#![allow(clippy::duplicate_mod, reason = "with other atomics")]

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use self::free::FreeList;
use self::word::Word;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

#[path = "../memory/free.rs"]
#[allow(dead_code, reason = "only a part of it is modelled")]
mod free;

#[path = "../resident/word.rs"]
#[allow(dead_code, reason = "only a part of it is modelled")]
mod word;

/// A page: its word, its bytes, and its image on the device.
struct Page {
    word: Word,
    bytes: UnsafeCell<u32>,
    device: UnsafeCell<u32>,
}

impl Page {
    /// Resident, not pinned, clean.
    fn new() -> Arc<Self> {
        let page = Self { word: Word::default(), bytes: UnsafeCell::new(0), device: UnsafeCell::new(0) };
        page.word.publish(0);
        Arc::new(page)
    }

    /// The bytes. loom panics if another thread may write them at the same time.
    fn read(&self) -> u32 {
        // SAFETY: loom checks it.
        self.bytes.with(|bytes| unsafe { *bytes })
    }

    fn change(&self, change: impl FnOnce(u32) -> u32) {
        // SAFETY: as above.
        self.bytes.with_mut(|bytes| unsafe { *bytes = change(*bytes) });
    }

    fn write_to_device(&self) {
        let image = self.read();
        // SAFETY: as above.
        self.device.with_mut(|device| unsafe { *device = image });
    }

    fn read_from_device(&self) -> u32 {
        // SAFETY: as above.
        self.device.with(|device| unsafe { *device })
    }

    /// Releases a pin as `Pinned` does. A thread that gets the frames writes to them, as the next read into them
    /// will.
    fn unpin(&self) {
        if !self.word.unpin() && self.word.unpin_for_others().free {
            self.change(|_| 77);
        }
    }

    /// A reader: the bytes do not change while it reads them.
    fn look(&self) -> Option<u32> {
        self.word.pin(true).then(|| {
            let seen = self.read();
            assert_eq!(self.read(), seen);
            self.unpin();
            seen
        })
    }

    /// A writer, as `PageWrite`: adds 1. `false` if another writer has the latch or the page is gone.
    fn add_one(&self) -> bool {
        if !self.word.pin(true) {
            return false;
        }
        if !self.word.latch() {
            self.unpin();
            return false;
        }
        while !self.word.is_drained() {
            thread::yield_now();
        }
        self.change(|value| value + 1);
        if !self.word.unlatch_and_unpin() {
            self.word.unlatch(true);
            self.unpin();
        }
        true
    }

    /// As a write-back does.
    fn write_back(&self) {
        if !self.word.is_dirty() || !self.word.is_idle() || !self.word.pin(false) {
            return;
        }
        if self.word.is_dirty() {
            self.write_to_device();
            self.word.clean();
        }
        self.unpin();
    }

    /// As an eviction and the next load into the frame do; the image that the device had.
    fn evict(&self) -> Option<u32> {
        self.word.claim().map(|_| {
            let image = self.read_from_device();
            self.change(|_| image);
            self.word.publish(0);
            image
        })
    }
}

/// Runs both at the same time, in every interleaving.
fn race<A: Send + 'static, B: Send + 'static>(
    one: impl Fn(&Page) -> A + Copy + Send + Sync + 'static,
    other: impl Fn(&Page) -> B + Copy + Send + Sync + 'static,
    end: impl Fn(&Page, A, B) + Send + Sync + 'static,
) {
    loom::model(move || {
        let page = Page::new();
        let shared = page.clone();
        let thread = thread::spawn(move || one(&shared));
        let second = other(&page);
        let first = thread.join().unwrap();
        end(&page, first, second);
    });
}

#[test]
fn an_eviction_waits_for_readers() {
    race(|page| (page.look(), page.look()), Page::evict, |page, _, _| assert!(page.word.is_evictable()));
}

#[test]
fn updates_are_not_lost_or_torn() {
    race(
        |page| (page.look(), u32::from(page.add_one())),
        |page| u32::from(page.add_one()),
        |page, (_, first), second| assert_eq!(page.look(), Some(first + second)),
    );
}

#[test]
fn an_evicted_page_is_on_the_device() {
    race(
        |page| u32::from(page.add_one()),
        |page| {
            page.write_back();
            page.evict();
        },
        |page, added, ()| assert_eq!(page.look(), Some(added)),
    );
}

#[test]
fn a_write_back_does_not_hide_a_later_change() {
    race(
        |page| page.add_one() && page.add_one(),
        |page| {
            page.write_back();
            page.evict();
        },
        |page, _, ()| {
            let newest = page.look();
            page.write_back();
            assert_eq!(page.evict(), newest, "the image on the device is the newest one");
        },
    );
}

#[test]
fn the_last_reader_of_a_retired_page_frees_it() {
    race(
        |page| page.look(),
        |page| {
            assert!(page.word.pin(false));
            page.word.doom();
            page.unpin();
        },
        |page, _, ()| {
            assert!(page.word.is_vacant());
            assert_eq!(page.read(), 77, "freed once");
        },
    );
}

/// A task that waits for a latch is woken, whenever the latch is released; otherwise this would deadlock.
#[test]
fn a_task_that_waits_for_a_latch_is_woken() {
    loom::model(|| {
        let page = Page::new();
        let bucket = Arc::new((Mutex::new(false), Condvar::new()));
        assert!(page.word.pin(true) && page.word.latch());
        let (holder, told) = (page.clone(), bucket.clone());
        let thread = thread::spawn(move || {
            holder.change(|value| value + 1);
            let awaited = if holder.word.unlatch_and_unpin() {
                false
            } else {
                let awaited = holder.word.unlatch(true);
                holder.unpin();
                awaited
            };
            if awaited {
                *told.0.lock().unwrap() = true;
                told.1.notify_all();
            }
        });
        let mut woken = bucket.0.lock().unwrap();
        if page.word.tell_when_unlatched() {
            while !*woken {
                woken = bucket.1.wait(woken).unwrap();
            }
        }
        drop(woken);
        assert_eq!(page.look(), Some(1));
        thread.join().unwrap();
    });
}

/// A page that a thread reads into its frame for itself: the waiters see the bytes.
#[test]
fn a_reserved_page_is_seen_when_it_is_published() {
    loom::model(|| {
        let page =
            Arc::new(Page { word: Word::default(), bytes: UnsafeCell::new(0), device: UnsafeCell::new(5) });
        page.word.reserve();
        let loader = page.clone();
        let thread = thread::spawn(move || {
            let image = loader.read_from_device();
            loader.change(|_| image);
            loader.word.publish(1);
            loader.unpin();
        });
        assert!(matches!(page.look(), None | Some(5)));
        thread.join().unwrap();
        assert_eq!(page.look(), Some(5));
    });
}

/// A page, and its image in a side buffer, under the lock of its shard.
struct Sided {
    page: Arc<Page>,
    image: Mutex<Option<u32>>,
}

impl Sided {
    /// As the pool sets a page aside for its frame, and writes the image.
    fn set_aside(&self) {
        let word = &self.page.word;
        if !word.is_dirty() || !word.is_idle() || !word.pin(false) {
            return;
        }
        let mut image = self.image.lock().unwrap();
        if !word.is_dirty() || image.is_some() {
            drop(image);
            return self.page.unpin();
        }
        let newest = self.page.read();
        *image = Some(newest);
        drop(image);
        word.clean();
        self.page.unpin();
        self.reload();
        // SAFETY: loom checks it.
        self.page.device.with_mut(|device| unsafe { *device = newest });
        *self.image.lock().unwrap() = None;
    }

    /// The page leaves and comes back.
    fn reload(&self) {
        if self.page.word.claim().is_none() {
            return;
        }
        self.page.change(|_| 77);
        let aside = *self.image.lock().unwrap();
        let image = aside.unwrap_or_else(|| self.page.read_from_device());
        self.page.change(|_| image);
        self.page.word.publish(0);
    }
}

/// Threads move a page to a side buffer, evict it and bring it back: no image is lost, and the device's image never
/// becomes older.
#[test]
fn side_image_serves_the_page() {
    let mut few_switches = loom::model::Builder::new();
    few_switches.preemption_bound = Some(3);
    few_switches.check(|| {
        let sided = Arc::new(Sided { page: Page::new(), image: Mutex::new(None) });
        let other = sided.clone();
        let thread = thread::spawn(move || {
            let added = u32::from(other.page.add_one());
            other.set_aside();
            added
        });
        let mut added = u32::from(sided.page.add_one());
        sided.set_aside();
        sided.reload();
        added += u32::from(sided.page.add_one());
        added += thread.join().unwrap();
        assert_eq!(sided.page.look(), Some(added));
        sided.set_aside();
        assert_eq!(sided.page.read_from_device(), added, "the newest image is the last one");
    });
}

#[test]
fn no_frame_is_allocated_twice() {
    // All schedules would take minutes.
    let mut few_switches = loom::model::Builder::new();
    few_switches.preemption_bound = Some(3);
    few_switches.check(|| {
        let free = Arc::new(FreeList::new(2));
        let frames = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let work = |free: &FreeList, frames: &[UnsafeCell<u32>; 2]| {
            for _ in 0..2 {
                let Some(list) = free.take(1) else { continue };
                // SAFETY: loom checks it.
                frames[list.head as usize].with_mut(|bytes| unsafe { *bytes += 1 });
                free.give(list);
            }
        };
        let (others, bytes) = (free.clone(), frames.clone());
        let thread = thread::spawn(move || work(&others, &bytes));
        work(&free, &frames);
        thread.join().unwrap();
        assert_eq!(free.used(), 0);
        assert!(free.take(2).is_some());
    });
}
