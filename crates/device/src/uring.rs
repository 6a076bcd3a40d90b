//! A file driven by io_uring.
//!
//! Submitted requests go through one ring for all threads: the caller queues them under a short lock and enters the kernel without it; a
//! caller that finds another thread entering leaves its requests to that one. One thread reaps: it takes all completions that are ready,
//! then completes their requests, outside any lock. Requests that a caller executes bypass this ring ([`crate::local`]). Writes of a
//! plugged thread are held back until its plug is released or another request enters the kernel ([`shoal_base::plug`]); neighbours among
//! them become one request.
//!
//! Invariants: at most [`IN_FLIGHT_MAX`] requests are in the ring, the others wait in a queue; every queued entry is followed by an entry
//! into the kernel, at the latest at the end of a plug; the reaper stops only when the device is dropped and nothing is left.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use parking_lot::{Mutex, MutexGuard};
use shoal_base::plug::{HELD_MAX, Hold, may_hold};

use crate::ring::{CompletionQueue, Flight, Gate, Landing, MakeRing, SHARED_ENTRIES, SubmissionQueue};
use crate::storage::Storage;
use crate::threads::{Pool, too_many};
use crate::transfer::Transfer;
use crate::{Op, Submission, WAITING_MAX, local};

/// Requests in the shared ring at once: NVMe devices and network volumes are saturated by fewer.
pub(crate) const IN_FLIGHT_MAX: usize = 256;

const _: () = assert!(IN_FLIGHT_MAX < SHARED_ENTRIES as usize, "room for the request that ends the reaper");

/// Held writes are joined to requests of at most this size, which usual devices take as one request.
const JOINED_BYTES_MAX: usize = 1 << 20;

struct Queue {
    submissions: SubmissionQueue,
    /// Writes of plugged threads.
    held: Vec<Submission>,
    waiting: VecDeque<Transfer>,
    in_flight: usize,
    /// A thread is entering the kernel and will look at the ring again.
    entering: bool,
    closed: bool,
}

struct Shared {
    storage: Arc<Storage>,
    gate: Gate,
    queue: Mutex<Queue>,
}

impl Queue {
    /// Queues the writes that are held back: neighbours among them become one request.
    fn join_held(&mut self) {
        self.held.sort_by_key(|submission| submission.block());
        let mut held = std::mem::take(&mut self.held).into_iter().peekable();
        while let Some(first) = held.next() {
            assert_eq!(first.op(), Op::Write, "only plain writes are held back");
            let (mut end, mut bytes) = (first.block() + first.blocks(), first.bytes());
            let mut group = vec![first];
            while let Some(next) =
                held.next_if(|next| next.block() == end && bytes + next.bytes() <= JOINED_BYTES_MAX)
            {
                (end, bytes) = (end + next.blocks(), bytes + next.bytes());
                group.push(next);
            }
            let is_alone = group.len() == 1;
            let request = if is_alone { group.pop() } else { Some(Submission::join(group)) };
            self.waiting.extend(request.map(Transfer::new));
        }
    }

    /// Moves the held writes and the waiting requests into the ring while it has room.
    fn fill(&mut self, storage: &Storage) {
        self.join_held();
        while self.in_flight < IN_FLIGHT_MAX {
            let Some(mut transfer) = self.waiting.pop_front() else { return };
            let Some(action) = transfer.action(storage.dsync().load(Ordering::Relaxed)) else {
                unreachable!("a request that has nothing left to do was completed, not queued")
            };
            self.submissions.push(Box::new(Flight { transfer, action }), storage.file());
            self.in_flight += 1;
        }
        assert!(self.in_flight <= IN_FLIGHT_MAX, "more requests are in flight than the ring has entries");
    }

    fn is_finished(&self) -> bool {
        self.closed && self.in_flight == 0 && self.waiting.is_empty() && self.held.is_empty()
    }
}

impl Shared {
    /// Starts admitted requests, or holds them back. They fail if the queue is full.
    fn start(self: &Arc<Self>, submissions: Vec<Submission>) {
        let mut refused = Vec::new();
        let are_writes = submissions.iter().all(|submission| submission.op() == Op::Write);
        let is_plugged = are_writes && may_hold(self);
        let mut queue = self.queue.lock();
        for submission in submissions {
            if queue.waiting.len() + queue.held.len() >= WAITING_MAX {
                refused.push(submission);
            } else if is_plugged {
                queue.held.push(submission);
            } else {
                queue.waiting.push_back(Transfer::new(submission));
                queue.fill(&self.storage);
            }
        }
        if is_plugged && queue.held.len() < HELD_MAX {
            // Before any request is finished: that runs wakers, which may submit.
            drop(queue);
        } else {
            self.enter(queue);
        }
        for submission in refused {
            self.storage.finish(submission, Err(too_many()));
        }
    }

    /// Submits the ring's entries, unless another thread is about to.
    fn enter(&self, mut queue: MutexGuard<'_, Queue>) {
        if queue.entering {
            return;
        }
        queue.entering = true;
        loop {
            queue.fill(&self.storage);
            let unsubmitted = queue.submissions.unsubmitted();
            if unsubmitted == 0 {
                queue.entering = false;
                return;
            }
            MutexGuard::unlocked(&mut queue, || self.gate.enter(unsubmitted, 0));
        }
    }

    /// The loop of the reaper.
    fn reap(&self, mut completions: CompletionQueue) {
        let mut landed = Vec::with_capacity(IN_FLIGHT_MAX);
        let mut finished = Vec::with_capacity(IN_FLIGHT_MAX);
        loop {
            completions.wait();
            completions.reap(&mut landed);
            let over = self.land(&mut landed, &mut finished);
            for (submission, result) in finished.drain(..) {
                self.storage.finish(submission, result);
            }
            if over {
                completions.release_files();
                return;
            }
        }
    }

    /// Sorts the landed requests into finished and continuing ones, and refills the ring. Returns true if everything is over.
    fn land(&self, landed: &mut Vec<Landing>, finished: &mut Vec<(Submission, io::Result<()>)>) -> bool {
        let mut going_on = Vec::new();
        let mut flights = 0;
        for landing in landed.drain(..) {
            let Landing::Flight(flight, result) = landing else { continue };
            flights += 1;
            let Flight { mut transfer, action } = *flight;
            let dsync = self.storage.dsync();
            match transfer.took(action, result, dsync) {
                Ok(()) if transfer.action(dsync.load(Ordering::Relaxed)).is_some() => going_on.push(transfer),
                Ok(()) => finished.push((transfer.into_request(), Ok(()))),
                Err(error) => {
                    let mut request = transfer.into_request();
                    // Of joined requests it is unknown which one failed: each is tried alone.
                    let parts = request.take_parts();
                    if parts.is_empty() {
                        finished.push((request, Err(error)));
                    }
                    going_on.extend(parts.into_iter().map(Transfer::new));
                }
            }
        }
        let mut queue = self.queue.lock();
        assert!(flights <= queue.in_flight, "each request leaves the ring once");
        queue.in_flight -= flights;
        for transfer in going_on.into_iter().rev() {
            queue.waiting.push_front(transfer);
        }
        let over = queue.is_finished();
        if !queue.waiting.is_empty() {
            self.enter(queue);
        }
        over
    }
}

impl Hold for Shared {
    fn start_held(&self) {
        self.enter(self.queue.lock());
    }
}

/// See the module.
pub(crate) struct Uring {
    shared: Arc<Shared>,
    reaper: Option<JoinHandle<()>>,
    /// Discards are rare and slow, and not every kernel has them in a ring: a separate thread runs them, started when first needed.
    side: OnceLock<Option<Pool>>,
}

impl Uring {
    pub(crate) fn start(storage: Arc<Storage>, make_ring: MakeRing) -> io::Result<Self> {
        let (submissions, completions) = make_ring(storage.file())?;
        let gate = submissions.gate();
        let queue = Queue {
            submissions,
            held: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: 0,
            entering: false,
            closed: false,
        };
        let shared = Arc::new(Shared { storage, gate, queue: Mutex::new(queue) });
        let reaping = shared.clone();
        let reaper =
            thread::Builder::new().name("shoal-io-reaper".into()).spawn(move || reaping.reap(completions))?;
        Ok(Self { shared, reaper: Some(reaper), side: OnceLock::new() })
    }

    /// Starts admitted requests: the discards on the side thread. Completes requests without work at once.
    pub(crate) fn submit(&self, admitted: impl Iterator<Item = Submission>) {
        let mut transfers = Vec::new();
        for submission in admitted {
            match submission.op() {
                Op::Discard { .. } => self.discard(submission),
                Op::Read | Op::Write | Op::WriteDurable if submission.bytes() == 0 => {
                    self.shared.storage.finish(submission, Ok(()));
                }
                _ => transfers.push(submission),
            }
        }
        self.shared.start(transfers);
    }

    /// Runs admitted requests on this thread: one is one system call, several go through the thread's own ring.
    pub(crate) fn execute(&self, admitted: impl Iterator<Item = Submission>) {
        let storage = &self.shared.storage;
        let mut admitted: Vec<Submission> = admitted.collect();
        if admitted.len() > 1 {
            admitted = local::run(storage, admitted);
        }
        for submission in admitted {
            storage.run(submission);
        }
    }

    fn discard(&self, submission: Submission) {
        let pool = self.side.get_or_init(|| Pool::start(self.shared.storage.clone(), 1).ok());
        match pool {
            Some(pool) => pool.submit(vec![submission], None),
            // A discard promises nothing.
            None => self.shared.storage.finish(submission, Ok(())),
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        queue.submissions.push_nothing();
        self.shared.enter(queue);
        let Some(reaper) = self.reaper.take() else { return };
        // The reaper that drops the device (the last one, in a waker) cannot wait for itself. It stops by itself, after the last request.
        if reaper.thread().id() != thread::current().id() && reaper.join().is_err() {
            tracing::error!("the thread that reaps the I/O completions panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use shoal_base::BLOCK_BYTES;
    use shoal_base::plug::plug;
    use shoal_base::task::block_on;
    use tempfile::TempDir;

    use super::*;
    use crate::request::request_for_test;
    use crate::transfer::Action;
    use crate::{FileOptions, IoBuf, IoFuture, ring};

    fn started() -> (TempDir, Uring) {
        let folder = tempfile::tempdir().unwrap();
        let options = FileOptions { create: true, ..FileOptions::default() };
        let storage = Arc::new(crate::file::open_storage(&folder.path().join("data"), &options).unwrap());
        storage.lengthen(1_024, true).unwrap();
        (folder, Uring::start(storage, ring::shared).unwrap())
    }

    fn write(block: u64, blocks: usize) -> (IoFuture<IoBuf>, Submission) {
        request_for_test(Op::Write, block, IoBuf::copied_from(&vec![block as u8; blocks * BLOCK_BYTES]))
    }

    fn wait_for(futures: Vec<IoFuture<IoBuf>>) {
        futures.into_iter().for_each(|future| assert!(block_on(future).result.is_ok()));
    }

    /// The first byte of a block.
    fn byte_at(folder: &Path, block: usize) -> u8 {
        fs::read(folder.join("data")).unwrap()[block * BLOCK_BYTES]
    }

    #[test]
    fn held_neighbours_are_one_request() {
        let (folder, uring) = started();
        let (futures, submissions): (Vec<_>, Vec<_>) = [(1, 3), (4, 1), (5, 200), (205, 100), (500, 1)]
            .map(|(block, blocks)| write(block, blocks))
            .into_iter()
            .unzip();
        plug(|| submissions.into_iter().for_each(|submission| uring.submit(std::iter::once(submission))));
        wait_for(futures);
        let counters = uring.shared.storage.counters();
        assert_eq!((counters.writes, counters.blocks_written), (3, 305), "1 MiB is as much as one has");
        for block in [1, 4, 5, 205, 500] {
            assert_eq!(byte_at(folder.path(), block), block as u8);
        }
        assert_eq!(byte_at(folder.path(), 305), 0);
    }

    #[test]
    fn a_joined_request_that_fails_is_tried_in_its_parts() {
        let (folder, uring) = started();
        let (futures, parts): (Vec<_>, Vec<_>) =
            [(7, 2), (9, 1)].map(|(block, blocks)| write(block, blocks)).into_iter().unzip();
        let flight = Flight {
            transfer: Transfer::new(Submission::join(parts)),
            action: Action::Write { durable: false },
        };
        let failed = Err(io::Error::from_raw_os_error(libc::EIO));
        uring.shared.queue.lock().in_flight += 1;
        let mut finished = Vec::new();
        assert!(!uring.shared.land(&mut vec![Landing::Flight(Box::new(flight), failed)], &mut finished));
        assert!(finished.is_empty(), "nobody has an error yet");
        wait_for(futures);
        assert_eq!((byte_at(folder.path(), 7), byte_at(folder.path(), 9)), (7, 9));
        assert_eq!(uring.shared.storage.counters().writes, 2);
    }
}
