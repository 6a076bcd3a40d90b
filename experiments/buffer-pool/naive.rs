//! Two pools with one mutex that is held across I/O: `naive` does the I/O on the caller's thread, `naive-scheduler` hands
//! it to one scheduler thread and waits, as in the course's skeleton.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use parking_lot::{Mutex, RwLock};
use shoal_base::BLOCK_BYTES;

use super::bed::{PagePool, Role, Session};
use super::frames::Frames;
use super::page::Page;
use super::sim::Sim;

/// The disk of a pool.
pub(crate) trait Disk: Send + Sync {
    fn read(&self, number: u64, page: &mut Page);
    fn write(&self, number: u64, page: &Page);
}

impl Disk for Sim {
    fn read(&self, number: u64, page: &mut Page) {
        Self::read(self, number, page);
    }

    fn write(&self, number: u64, page: &Page) {
        Self::write(self, number, page);
    }
}

impl<D: Disk> Disk for Arc<D> {
    fn read(&self, number: u64, page: &mut Page) {
        (**self).read(number, page);
    }

    fn write(&self, number: u64, page: &Page) {
        (**self).write(number, page);
    }
}

enum Request {
    Read(u64, Box<Page>),
    Write(u64, Box<Page>),
}

/// A request, and the receiver of its page when it is done.
type Asked = (Request, SyncSender<Box<Page>>);

/// One thread that does the I/O of all callers, one request after the other.
pub(crate) struct Scheduler {
    requests: Mutex<Sender<Asked>>,
}

impl Scheduler {
    pub(crate) fn new(disk: Arc<impl Disk + 'static>) -> Self {
        let (sender, requests): (_, Receiver<Asked>) = channel();
        thread::spawn(move || {
            for (request, done) in requests {
                let page = match request {
                    Request::Read(number, mut page) => {
                        disk.read(number, &mut page);
                        page
                    }
                    Request::Write(number, page) => {
                        disk.write(number, &page);
                        page
                    }
                };
                // The caller that asked waits, unless its thread panicked.
                let _ = done.send(page);
            }
        });
        Self { requests: Mutex::new(sender) }
    }

    fn run(&self, request: Request) -> Box<Page> {
        let (sender, done) = sync_channel(1);
        assert!(self.requests.lock().send((request, sender)).is_ok(), "the scheduler ended");
        let Ok(page) = done.recv() else { unreachable!("the scheduler answers") };
        page
    }
}

impl Disk for Scheduler {
    fn read(&self, number: u64, page: &mut Page) {
        *page = *self.run(Request::Read(number, Box::new([0; BLOCK_BYTES])));
    }

    fn write(&self, number: u64, page: &Page) {
        self.run(Request::Write(number, Box::new(*page)));
    }
}

/// The pool.
pub(crate) struct Naive<D> {
    disk: D,
    frames: Mutex<Frames>,
    memory: Box<[RwLock<Box<Page>>]>,
}

impl<D: Disk> Naive<D> {
    pub(crate) fn new(disk: D, pages: u64, frames: usize, k: usize) -> Self {
        let memory = (0..frames).map(|_| RwLock::new(Box::new([0; BLOCK_BYTES]))).collect();
        Self { disk, frames: Mutex::new(Frames::new(pages, frames, k)), memory }
    }

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
            // No other thread has the frame: it was not pinned, and the lock is held.
            let mut page = self.memory[frame].write();
            if let Some(victim) = victim.filter(|victim| victim.dirty) {
                self.disk.write(victim.page, &page);
            }
            self.disk.read(number, &mut page);
            return frame;
        }
    }
}

impl<D: Disk> PagePool for Naive<D> {
    type Session<'a>
        = &'a Self
    where
        Self: 'a;

    fn session(&self, _role: Role) -> &Self {
        self
    }
}

impl<D: Disk> Session for &Naive<D> {
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
