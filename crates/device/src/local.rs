//! Batches that the calling thread runs itself: one ring a thread, one entry into the kernel for a whole batch.
//!
//! The ring is made when a thread first needs it and serves every device. If the system refuses one, the caller falls back to plain system
//! calls. A batch longer than the ring is run in pieces, each waited for as a whole.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::Ordering;

use crate::ring::{self, Completions, Flight, Gate, LOCAL_ENTRIES, Landing, Submissions};
use crate::storage::Storage;
use crate::transfer::Transfer;
use crate::{Op, Ticket};

struct LocalRing {
    submissions: Submissions,
    completions: Completions,
    gate: Gate,
    landed: Vec<Landing>,
}

#[derive(Default)]
enum Slot {
    #[default]
    Untried,
    /// In use further up on this thread's stack, or refused.
    Empty,
    Ready(Box<LocalRing>),
}

thread_local! {
    static RING: RefCell<Slot> = const { RefCell::new(Slot::Untried) };
}

/// Runs the requests of an admitted batch and completes them. Returns the requests that are not for a ring.
pub(crate) fn run(storage: &Storage, batch: Vec<Ticket>) -> Vec<Ticket> {
    let Some(mut ring) = take() else { return batch };
    let mut others = Vec::new();
    let mut waiting = Vec::with_capacity(batch.len());
    for ticket in batch {
        match ticket.op() {
            Op::Discard { .. } => others.push(ticket),
            _ => waiting.push(Transfer::new(ticket)),
        }
    }
    let mut finished = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        ring.run_some(storage, &mut waiting, &mut finished);
    }
    // The ring is back in its slot before wakers run: they might do I/O on this thread.
    put_back(ring);
    for (ticket, result) in finished {
        storage.finish(ticket, result);
    }
    others
}

fn take() -> Option<Box<LocalRing>> {
    // A thread that is exiting has no slot for a ring any more.
    let slot = RING.try_with(|slot| slot.replace(Slot::Empty)).ok()?;
    match slot {
        Slot::Untried => LocalRing::new().map(Box::new).ok(),
        Slot::Empty => None,
        Slot::Ready(ring) => Some(ring),
    }
}

fn put_back(ring: Box<LocalRing>) {
    // If the thread is exiting, the ring is dropped, too.
    let _ = RING.try_with(|slot| slot.replace(Slot::Ready(ring)));
}

impl LocalRing {
    fn new() -> io::Result<Self> {
        let (submissions, completions) = ring::local()?;
        let gate = submissions.gate();
        Ok(Self { submissions, completions, gate, landed: Vec::new() })
    }

    /// Submits as many requests as fit, from the end of `waiting`, and waits for all of them. Puts back a request that has to continue.
    fn run_some(
        &mut self,
        storage: &Storage,
        waiting: &mut Vec<Transfer>,
        finished: &mut Vec<(Ticket, io::Result<()>)>,
    ) {
        let dsync = storage.dsync();
        let mut in_flight = 0;
        while in_flight < LOCAL_ENTRIES as usize {
            let Some(mut transfer) = waiting.pop() else { break };
            let Some(action) = transfer.action(dsync.load(Ordering::Relaxed)) else {
                finished.push((transfer.into_request(), Ok(())));
                continue;
            };
            self.submissions.push(Box::new(Flight { transfer, action }), storage.file());
            in_flight += 1;
        }
        while in_flight > 0 {
            self.gate.enter(self.submissions.unsubmitted(), in_flight);
            self.completions.reap(&mut self.landed);
            for landing in self.landed.drain(..) {
                let Landing::Flight(flight, result) = landing else { continue };
                in_flight -= 1;
                let Flight { mut transfer, action } = *flight;
                match transfer.took(action, result, dsync) {
                    Ok(()) => waiting.push(transfer),
                    Err(error) => finished.push((transfer.into_request(), Err(error))),
                }
            }
        }
    }
}
