//! The threads of a store: waking and stopping them. Their work is in `maintenance/workers.rs`, and the order of the jobs of a thread in
//! `maintenance/schedule.rs`.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use shoal_base::sync::atomic::{AtomicBool, Ordering};
use shoal_common::event::Bell;
use shoal_tablets::checkpoint::checkpointer::Helpers;

/// A job of the store's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    Commit,
    Apply,
    /// Drops applied memtables.
    Free,
    Grow,
    /// Compacts layers.
    Compaction,
    /// Saves the groups of each bucket.
    Own,
    Move,
    Reap,
    Scrub,
    /// Checks that the data file is still there.
    Watch,
}

const DUTIES: usize = Duty::Watch as usize + 1;

/// The threads of a store. Each does one job or several, and each job is one thread's.
pub(crate) struct Worker {
    /// The bell of the commit thread belongs to the committer.
    bells: [Arc<Bell>; DUTIES],
    stop: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Worker {
    pub(crate) fn new(commit: Arc<Bell>) -> Arc<Self> {
        let mut bells: [Arc<Bell>; DUTIES] = Default::default();
        bells[Duty::Commit as usize] = commit;
        Arc::new(Self { bells, stop: AtomicBool::new(false), threads: Mutex::default() })
    }

    /// Starts the thread that does these jobs.
    ///
    /// # Errors
    /// As the system.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: &str,
        duties: Vec<Duty>,
        work: impl FnOnce(&Self) + Send + 'static,
    ) -> std::io::Result<()> {
        assert!(!self.is_stopped(), "a store that closes starts no thread");
        let worker = self.clone();
        let body = move || {
            duties.iter().for_each(|&duty| worker.bells[duty as usize].attach());
            work(&worker);
        };
        self.threads.lock().push(thread::Builder::new().name(name.into()).spawn(body)?);
        Ok(())
    }

    /// Wakes the thread of a duty.
    pub(crate) fn wake(&self, duty: Duty) {
        self.bells[duty as usize].ring();
    }

    /// The threads that applies leave work to.
    pub(crate) fn helpers(&self) -> Helpers {
        let bell = |duty: Duty| self.bell(duty).clone();
        Helpers::new(bell(Duty::Compaction), bell(Duty::Free), bell(Duty::Apply))
    }

    /// Waits, on the thread of this duty, until it is woken, at most for `timeout`.
    pub(crate) fn wait(&self, duty: Duty, timeout: Duration) {
        self.bells[duty as usize].wait(timeout);
    }

    /// The bell of a duty.
    pub(crate) fn bell(&self, duty: Duty) -> &Arc<Bell> {
        &self.bells[duty as usize]
    }

    /// Stops the threads and waits for them. If one of them calls this (it may be the last user of the store), it
    /// waits for the others only.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bells[Duty::Commit as usize].close();
        self.bells.iter().for_each(|bell| bell.ring());
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.thread().id() != thread::current().id() {
                // A panic was reported when it happened.
                let _ = thread.join();
            }
        }
    }

    /// Returns true if [`stop`](Self::stop) was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
