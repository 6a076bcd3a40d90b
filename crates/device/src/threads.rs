//! A file driven by a pool of threads with plain system calls, if io_uring is refused or not wanted.
//!
//! Requests wait in one queue, oldest first, and each thread takes one at a time. The threads end when the device is
//! dropped and the queue is empty.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

use crate::storage::Storage;
use crate::{Ticket, WAITING_MAX};

/// Default threads of a pool: about the requests that a SATA disk serves at once. 8 threads reach 80,000 reads a second of 4 KiB on a
/// measured NVMe device.
pub(crate) const THREADS_DEFAULT: usize = 8;

/// Counts down the requests of one `execute`.
pub(crate) struct Group {
    left: Mutex<usize>,
    all_done: Condvar,
}

impl Group {
    fn one_done(&self) {
        let mut left = self.left.lock();
        *left -= 1;
        if *left == 0 {
            self.all_done.notify_all();
        }
    }

    fn wait(&self) {
        let mut left = self.left.lock();
        while *left > 0 {
            self.all_done.wait(&mut left);
        }
    }
}

struct Job {
    ticket: Ticket,
    group: Option<Arc<Group>>,
}

struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    closed: bool,
}

struct Shared {
    storage: Arc<Storage>,
    queue: Mutex<Queue>,
    work: Condvar,
}

impl Shared {
    /// The next job, or none when the pool is closed and the queue is empty.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            queue.idle += 1;
            self.work.wait(&mut queue);
            queue.idle -= 1;
        }
    }

    fn serve(&self) {
        while let Some(job) = self.next() {
            self.storage.run(job.ticket);
            if let Some(group) = job.group {
                group.one_done();
            }
        }
    }
}

/// Threads that run requests.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` threads.
    pub(crate) fn start(storage: Arc<Storage>, threads: usize) -> io::Result<Self> {
        assert!(threads > 0, "a pool without threads would never complete a request");
        let queue = Queue { jobs: VecDeque::new(), idle: 0, closed: false };
        let shared = Arc::new(Shared { storage, queue: Mutex::new(queue), work: Condvar::new() });
        let mut pool = Self { shared, threads: Vec::with_capacity(threads) };
        for number in 0..threads {
            let shared = pool.shared.clone();
            let name = format!("shoal-io-{number}");
            pool.threads.push(thread::Builder::new().name(name).spawn(move || shared.serve())?);
        }
        Ok(pool)
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Runs admitted requests and returns when all are complete. The caller runs the first one itself, the pool the others.
    pub(crate) fn execute(&self, mut admitted: impl Iterator<Item = Ticket>) {
        let Some(first) = admitted.next() else { return };
        let others: Vec<Ticket> = admitted.collect();
        if others.is_empty() {
            return self.shared.storage.run(first);
        }
        let group = Arc::new(Group { left: Mutex::new(others.len()), all_done: Condvar::new() });
        self.submit(others, Some(&group));
        self.shared.storage.run(first);
        group.wait();
    }

    /// Queues admitted requests. They fail if the queue is full.
    pub(crate) fn submit(&self, tickets: Vec<Ticket>, group: Option<&Arc<Group>>) {
        let mut refused = Vec::new();
        let mut queue = self.shared.queue.lock();
        let mut added = 0;
        for ticket in tickets {
            if queue.jobs.len() >= WAITING_MAX {
                refused.push(ticket);
                continue;
            }
            queue.jobs.push_back(Job { ticket, group: group.cloned() });
            added += 1;
        }
        let wake = added.min(queue.idle);
        drop(queue);
        for _ in 0..wake {
            self.shared.work.notify_one();
        }
        for ticket in refused {
            self.shared.storage.finish(ticket, Err(too_many()));
            if let Some(group) = group {
                group.one_done();
            }
        }
    }
}

/// The error of a request beyond [`WAITING_MAX`].
pub(crate) fn too_many() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "too many requests are waiting for the device")
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.work.notify_all();
        // A thread of the pool that drops it (with the last device, in a waker) cannot wait for itself. The threads then stop by
        // themselves, after the last request.
        let own = thread::current().id();
        if self.threads.iter().any(|thread| thread.thread().id() == own) {
            return;
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the I/O pool panicked");
            }
        }
    }
}
