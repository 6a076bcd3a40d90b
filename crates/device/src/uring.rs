//! A file driven by io_uring.
//!
//! Requests that are submitted go through one ring for all threads: the caller queues them under a short lock and
//! enters the kernel without it; who finds another thread entering leaves its requests to that one. One thread reaps:
//! everything that is ready at once, then it completes the requests, outside any lock. Requests that a caller executes
//! do not take that way ([`crate::local`]). Writes of a plugged thread stay in the ring until its plug ends or another
//! request enters the kernel ([`shoal_base::plug`]).
//!
//! Invariants: at most [`IN_FLIGHT_MAX`] requests are in the ring, the others wait in a queue; every queued entry is
//! followed by an entry into the kernel, at the latest at the end of a plug; the reaper ends only when the device is dropped and nothing is left.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use parking_lot::{Mutex, MutexGuard};
use shoal_base::plug::{HELD_MAX, Hold, may_hold};

use crate::ring::{Completions, Flight, Gate, Landing, MakeRing, SHARED_ENTRIES, Submissions};
use crate::storage::Storage;
use crate::threads::{Pool, too_many};
use crate::transfer::Transfer;
use crate::{Op, Ticket, WAITING_MAX, local};

/// Requests in the shared ring at once: NVMe devices and network volumes are saturated by fewer.
pub(crate) const IN_FLIGHT_MAX: usize = 256;

const _: () = assert!(IN_FLIGHT_MAX < SHARED_ENTRIES as usize, "room for the request that ends the reaper");

struct Queue {
    submissions: Submissions,
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
    /// Moves waiting requests into the ring as far as there is room.
    fn fill(&mut self, storage: &Storage) {
        while self.in_flight < IN_FLIGHT_MAX {
            let Some(mut transfer) = self.waiting.pop_front() else { return };
            let Some(action) = transfer.action(storage.dsync().load(Ordering::Relaxed)) else {
                unreachable!("a request that has nothing left to do was completed, not queued")
            };
            self.submissions.push(Box::new(Flight { transfer, action }), storage.file());
            self.in_flight += 1;
        }
    }

    fn is_finished(&self) -> bool {
        self.closed && self.in_flight == 0 && self.waiting.is_empty()
    }
}

impl Shared {
    /// Starts admitted requests, or holds them back. Those that find the queue full fail.
    fn start(self: &Arc<Self>, tickets: Vec<Ticket>) {
        let mut refused = Vec::new();
        let are_writes = tickets.iter().all(|ticket| ticket.op() == Op::Write);
        let mut queue = self.queue.lock();
        for ticket in tickets {
            if queue.waiting.len() < WAITING_MAX {
                queue.waiting.push_back(Transfer::new(ticket));
            } else {
                refused.push(ticket);
            }
            queue.fill(&self.storage);
        }
        let is_held = are_writes && queue.submissions.unsubmitted() < HELD_MAX && may_hold(self);
        if is_held {
            // Before anything is finished: that runs wakers, which may submit.
            drop(queue);
        } else {
            self.enter(queue);
        }
        for ticket in refused {
            self.storage.finish(ticket, Err(too_many()));
        }
    }

    /// Submits what is in the ring, unless another thread is about to.
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

    /// The reaper's life.
    fn reap(&self, mut completions: Completions) {
        let mut landed = Vec::with_capacity(IN_FLIGHT_MAX);
        let mut finished = Vec::with_capacity(IN_FLIGHT_MAX);
        loop {
            completions.wait();
            completions.reap(&mut landed);
            let over = self.land(&mut landed, &mut finished);
            for (ticket, result) in finished.drain(..) {
                self.storage.finish(ticket, result);
            }
            if over {
                completions.release_files();
                return;
            }
        }
    }

    /// Sorts out what is finished and what goes on, and fills the ring again. Whether everything is over.
    fn land(&self, landed: &mut Vec<Landing>, finished: &mut Vec<(Ticket, io::Result<()>)>) -> bool {
        let mut going_on = Vec::new();
        let mut flights = 0;
        for landing in landed.drain(..) {
            let Landing::Flight(flight, result) = landing else { continue };
            flights += 1;
            let Flight { mut transfer, action } = *flight;
            let dsync = self.storage.dsync();
            match transfer.took(action, result, dsync) {
                Ok(()) if transfer.action(dsync.load(Ordering::Relaxed)).is_some() => going_on.push(transfer),
                result => finished.push((transfer.into_request(), result)),
            }
        }
        let mut queue = self.queue.lock();
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
    /// Discards are rare and slow, and not every kernel has them in a ring: a thread of their own, when first needed.
    side: OnceLock<Option<Pool>>,
}

impl Uring {
    pub(crate) fn start(storage: Arc<Storage>, make_ring: MakeRing) -> io::Result<Self> {
        let (submissions, completions) = make_ring(storage.file())?;
        let gate = submissions.gate();
        let queue =
            Queue { submissions, waiting: VecDeque::new(), in_flight: 0, entering: false, closed: false };
        let shared = Arc::new(Shared { storage, gate, queue: Mutex::new(queue) });
        let reaping = shared.clone();
        let reaper =
            thread::Builder::new().name("shoal-io-reaper".into()).spawn(move || reaping.reap(completions))?;
        Ok(Self { shared, reaper: Some(reaper), side: OnceLock::new() })
    }

    /// Starts admitted requests: the discards on the side thread, what is complete already at once.
    pub(crate) fn submit(&self, admitted: impl Iterator<Item = Ticket>) {
        let mut transfers = Vec::new();
        for ticket in admitted {
            match ticket.op() {
                Op::Discard { .. } => self.discard(ticket),
                Op::Read | Op::Write | Op::WriteDurable if ticket.bytes() == 0 => {
                    self.shared.storage.finish(ticket, Ok(()));
                }
                _ => transfers.push(ticket),
            }
        }
        self.shared.start(transfers);
    }

    /// Runs admitted requests on this thread: one is one system call, several go through a ring of the thread's own.
    pub(crate) fn execute(&self, admitted: impl Iterator<Item = Ticket>) {
        let storage = &self.shared.storage;
        let mut admitted: Vec<Ticket> = admitted.collect();
        if admitted.len() > 1 {
            admitted = local::run(storage, admitted);
        }
        for ticket in admitted {
            storage.run(ticket);
        }
    }

    fn discard(&self, ticket: Ticket) {
        let pool = self.side.get_or_init(|| Pool::start(self.shared.storage.clone(), 1).ok());
        match pool {
            Some(pool) => pool.submit(vec![ticket], None),
            // A discard promises nothing.
            None => self.shared.storage.finish(ticket, Ok(())),
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
        // The reaper that drops the device (the last one, in a waker) cannot wait for itself. It ends on its own, after
        // the last request.
        if reaper.thread().id() != thread::current().id() && reaper.join().is_err() {
            tracing::error!("the thread that reaps the I/O completions panicked");
        }
    }
}
