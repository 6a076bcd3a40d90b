//! The seed's own solution: one big lock over a disk-manager proxy, which keeps for each page a queue of writes and one
//! cached image. A write is queued and done by a separate thread; a read is served from the newest queued write, or from
//! the cached image, before it goes to the device.
//!
//! Cached images count as frames: half of the requested frames are the pool's, half are images, the oldest of which
//! are evicted. (As published the images are without a limit: the whole device would be cached.) Images of queued
//! writes come on top.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex, RwLock};
use shoal_base::BLOCK_BYTES;

use super::bed::{PagePool, Role, Session};
use super::frames::Frames;
use super::page::Page;
use super::sim::Sim;

/// The proxy's state of one page.
#[derive(Default)]
struct PageQueue {
    /// Writes in their order; the first is under way.
    writes: VecDeque<(u64, Arc<Page>)>,
    next_write: u64,
    cached: Option<Arc<Page>>,
}

#[derive(Default)]
struct Entry {
    queue: Mutex<PageQueue>,
    turn: Condvar,
}

/// Pages whose image is cached, the oldest first.
#[derive(Default)]
struct Cached {
    order: VecDeque<u64>,
}

struct Manager {
    sim: Arc<Sim>,
    entries: Mutex<HashMap<u64, Arc<Entry>>>,
    cached: Mutex<Cached>,
    images_max: usize,
    writing: AtomicUsize,
}

impl Manager {
    fn entry(&self, number: u64) -> Arc<Entry> {
        self.entries.lock().entry(number).or_default().clone()
    }

    /// Remembers the image, and forgets the oldest of too many.
    fn cache(&self, number: u64, queue: &mut PageQueue, image: Arc<Page>) {
        let is_new = queue.cached.replace(image).is_none();
        if !is_new {
            return;
        }
        let mut cached = self.cached.lock();
        cached.order.push_back(number);
        while cached.order.len() > self.images_max {
            let Some(oldest) = cached.order.pop_front() else { return };
            if oldest == number {
                queue.cached = None;
                continue;
            }
            let entry = self.entry(oldest);
            // One that is in use stays a little longer: its lock is not waited for under this one.
            match entry.queue.try_lock() {
                Some(mut other) => other.cached = None,
                None => {
                    cached.order.push_back(oldest);
                    return;
                }
            }
        }
    }

    fn write(self: &Arc<Self>, number: u64, page: &Page) {
        let entry = self.entry(number);
        let image = Arc::new(*page);
        let turn = {
            let mut queue = entry.queue.lock();
            let turn = queue.next_write;
            queue.next_write += 1;
            queue.writes.push_back((turn, image.clone()));
            turn
        };
        self.writing.fetch_add(1, Ordering::AcqRel);
        let manager = self.clone();
        thread::spawn(move || {
            let mut queue = entry.queue.lock();
            while queue.writes.front().is_some_and(|&(first, _)| first != turn) {
                entry.turn.wait(&mut queue);
            }
            drop(queue);
            manager.sim.write(number, &image);
            let mut queue = entry.queue.lock();
            queue.writes.pop_front();
            if queue.writes.is_empty() {
                manager.cache(number, &mut queue, image);
            }
            drop(queue);
            entry.turn.notify_all();
            manager.writing.fetch_sub(1, Ordering::AcqRel);
        });
    }

    fn read(&self, number: u64, page: &mut Page) {
        let entry = self.entry(number);
        let mut queue = entry.queue.lock();
        if let Some((_, image)) = queue.writes.back() {
            *page = **image;
        } else if let Some(image) = &queue.cached {
            *page = **image;
        } else {
            // Only this page's lock is held; as in the seed the big one above it is not.
            self.sim.read(number, page);
            self.cache(number, &mut queue, Arc::new(*page));
        }
    }
}

/// The pool.
pub(crate) struct Proxy {
    manager: Arc<Manager>,
    frames: Mutex<Frames>,
    memory: Box<[RwLock<Box<Page>>]>,
}

impl Proxy {
    pub(crate) fn new(sim: Arc<Sim>, pages: u64, frames: usize, k: usize) -> Self {
        let own = frames.div_ceil(2);
        let manager = Manager {
            sim,
            entries: Mutex::default(),
            cached: Mutex::default(),
            images_max: frames - own,
            writing: AtomicUsize::new(0),
        };
        let memory = (0..own).map(|_| RwLock::new(Box::new([0; BLOCK_BYTES]))).collect();
        Self { manager: Arc::new(manager), frames: Mutex::new(Frames::new(pages, own, k)), memory }
    }

    /// The page's frame, pinned. A read from the device happens outside of the big lock, under the frame's.
    fn pin(&self, number: u64) -> usize {
        loop {
            let mut frames = self.frames.lock();
            if let Some(frame) = frames.pin(number) {
                return frame;
            }
            let Some((frame, victim)) = frames.replace(number) else {
                drop(frames);
                thread::yield_now();
                continue;
            };
            let mut page = self.memory[frame].write();
            if let Some(victim) = victim.filter(|victim| victim.dirty) {
                self.manager.write(victim.page, &page);
            }
            drop(frames);
            self.manager.read(number, &mut page);
            return frame;
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        while self.manager.writing.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
    }
}

impl PagePool for Proxy {
    type Session<'a> = &'a Self;

    fn session(&self, _role: Role) -> &Self {
        self
    }
}

impl Session for &Proxy {
    fn read<R>(&mut self, number: u64, see: impl FnOnce(&Page) -> R) -> R {
        let frame = self.pin(number);
        let result = see(&self.memory[frame].read());
        self.frames.lock().unpin(frame, false);
        result
    }

    fn write<R>(&mut self, number: u64, change: impl FnOnce(&mut Page) -> R) -> R {
        let frame = self.pin(number);
        let result = change(&mut self.memory[frame].write());
        self.frames.lock().unpin(frame, true);
        result
    }
}
