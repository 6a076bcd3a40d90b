//! A safe wrapper of one io_uring: transfers go in, transfers with their results come out.
//!
//! Ownership is the invariant that makes this safe: from [`SubmissionQueue::push`] until [`CompletionQueue::reap`] a transfer, with its request's
//! memory and the `iovec` list, belongs to the kernel. It is in a box that nobody frees: a ring that is dropped with transfers inside leaks
//! them. There is one value of each half, so only one thread at a time writes submissions, and only one reads completions.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};

use crate::transfer::{Action, Transfer};

/// Entries of the submission queue of a ring that threads share. More than [`crate::uring::IN_FLIGHT_MAX`], so that
/// there is always room. The completion queue has twice as many, so it cannot overflow.
pub(crate) const SHARED_ENTRIES: u32 = 512;

/// Entries of a ring that belongs to one thread: the most requests of one batch under way at once.
pub(crate) const LOCAL_ENTRIES: u32 = 64;

/// If the kernel is short of memory for a submission, it is repeated after this time.
const SHORTAGE_PAUSE: Duration = Duration::from_micros(100);

/// Marks the completion of [`SubmissionQueue::push_nothing`]. No box has address 0.
const NOTHING: u64 = 0;

/// The constructor of a device's shared ring.
pub(crate) type MakeRing = fn(&File) -> io::Result<(SubmissionQueue, CompletionQueue)>;

/// A transfer with the system call that the kernel performs for it.
pub(crate) struct Flight {
    /// The request.
    pub(crate) transfer: Transfer,
    /// The action that the kernel runs.
    pub(crate) action: Action,
}

/// The result of a completion.
pub(crate) enum Landing {
    /// A transfer, and the result of its system call.
    Flight(Box<Flight>, io::Result<usize>),
    /// The completion of [`SubmissionQueue::push_nothing`].
    Nothing,
}

/// The submitting half.
pub(crate) struct SubmissionQueue {
    ring: Arc<IoUring>,
    file: Target,
}

enum Target {
    /// The file registered with the ring.
    Registered,
    /// The file is passed with each push.
    Given,
}

/// The completing half.
pub(crate) struct CompletionQueue {
    gate: Gate,
}

/// Enters the kernel for a ring, from any thread.
pub(crate) struct Gate(Arc<IoUring>);

/// A ring for many threads, with `file` registered.
pub(crate) fn shared(file: &File) -> io::Result<(SubmissionQueue, CompletionQueue)> {
    let ring = IoUring::builder().dontfork().build(SHARED_ENTRIES)?;
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    let (mut submissions, mut completions) = halves(ring, Target::Registered);
    // Some sandboxes allow rings to be made and refuse to run them.
    submissions.push_nothing();
    submissions.gate().try_enter(1, 1)?;
    completions.reap(&mut Vec::new());
    Ok((submissions, completions))
}

/// A ring for the calling thread alone, for any file.
pub(crate) fn local() -> io::Result<(SubmissionQueue, CompletionQueue)> {
    let mut best = IoUring::builder();
    best.dontfork().setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun();
    let ring = match best.build(LOCAL_ENTRIES) {
        // Linux before 6.1 does not know these flags.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().dontfork().build(LOCAL_ENTRIES)?
        }
        result => result?,
    };
    Ok(halves(ring, Target::Given))
}

fn halves(ring: IoUring, file: Target) -> (SubmissionQueue, CompletionQueue) {
    let ring = Arc::new(ring);
    (SubmissionQueue { ring: ring.clone(), file }, CompletionQueue { gate: Gate(ring) })
}

impl SubmissionQueue {
    /// Queues `flight`; [`Gate::enter`] submits it. `file` is used only if none is registered, and then must stay open until the transfer
    /// is reaped.
    pub(crate) fn push(&mut self, flight: Box<Flight>, file: &File) {
        let address = Box::into_raw(flight);
        // SAFETY: just made from a box, and nobody else has the address.
        let flight = unsafe { &*address };
        let entry = match self.file {
            // Registered files are numbered from 0.
            Target::Registered => entry(flight, Fd(0)).flags(squeue::Flags::FIXED_FILE),
            Target::Given => entry(flight, Fd(file.as_raw_fd())),
        };
        self.push_entry(&entry.user_data(address as u64));
    }

    /// Queues a request that only completes.
    pub(crate) fn push_nothing(&mut self) {
        self.push_entry(&opcode::Nop::new().build().user_data(NOTHING));
    }

    fn push_entry(&mut self, entry: &squeue::Entry) {
        // SAFETY: `&mut self` is the only value that submits to this ring.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: the memory that the entry names belongs to a leaked box until the entry has completed.
        let pushed = unsafe { queue.push(entry) };
        assert!(pushed.is_ok(), "the submission queue has more entries than requests may be in flight");
    }

    /// Requests that are queued and not submitted.
    pub(crate) fn unsubmitted(&mut self) -> usize {
        // SAFETY: `&mut self` is the only value that submits to this ring.
        unsafe { self.ring.submission_shared() }.len()
    }

    /// Enters the kernel for this ring.
    pub(crate) fn gate(&self) -> Gate {
        Gate(self.ring.clone())
    }
}

fn entry(flight: &Flight, file: Fd) -> squeue::Entry {
    let transfer = &flight.transfer;
    let window = transfer.window();
    let count = window.len() as u32;
    match flight.action {
        Action::Read => opcode::Readv::new(file, window.as_ptr(), count).offset(transfer.offset()).build(),
        Action::Write { durable } => {
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            opcode::Writev::new(file, window.as_ptr(), count)
                .offset(transfer.offset())
                .rw_flags(flags)
                .build()
        }
        Action::Sync => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
    }
}

impl Gate {
    /// Submits up to `submit` queued requests, then waits until `wait` results can be reaped (or a signal came).
    pub(crate) fn enter(&self, submit: usize, wait: usize) {
        let Err(error) = self.try_enter(submit, wait) else { return };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => thread::sleep(SHORTAGE_PAUSE),
            // The kernel got the ring, its memory and the arguments from us: any other error is a bug, and to continue would leave the
            // callers waiting for ever.
            _ => panic!("io_uring_enter: {error}"),
        }
    }

    fn try_enter(&self, submit: usize, wait: usize) -> io::Result<usize> {
        const GETEVENTS: u32 = 1;
        let flags = if wait > 0 { GETEVENTS } else { 0 };
        // SAFETY: the queued entries are valid (see `push_entry`); no argument is passed.
        unsafe { self.0.submitter().enter::<libc::sigset_t>(submit as u32, wait as u32, flags, None) }
    }
}

impl CompletionQueue {
    /// Waits until there is something to reap (or a signal came).
    pub(crate) fn wait(&mut self) {
        self.gate.enter(0, 1);
    }

    /// Takes out all completions.
    pub(crate) fn reap(&mut self, landed: &mut Vec<Landing>) {
        // SAFETY: `&mut self` is the only value that reaps this ring.
        let queue = unsafe { self.gate.0.completion_shared() };
        for completion in queue {
            let address = completion.user_data();
            if address == NOTHING {
                landed.push(Landing::Nothing);
                continue;
            }
            // SAFETY: the address comes from `push`, and each entry completes once: the kernel returns the box.
            let flight = unsafe { Box::from_raw(address as *mut Flight) };
            let result = completion.result();
            let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            landed.push(Landing::Flight(flight, result));
        }
    }

    /// Unregisters files now: the kernel tears a dropped ring down only after a while.
    pub(crate) fn release_files(&mut self) {
        if let Err(error) = self.gate.0.submitter().unregister_files() {
            tracing::debug!(%error, "no registered file to give back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second call does nothing: the kernel has no files then, and a ring that is torn down must not fail on that.
    #[test]
    fn registered_files_are_given_back_once() {
        let file = tempfile::tempfile().unwrap();
        let (_, mut completions) = shared(&file).unwrap();
        completions.release_files();
        assert!(completions.gate.0.submitter().unregister_files().is_err(), "they are back");
        completions.release_files();
    }
}
