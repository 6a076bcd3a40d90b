//! The store's threads: the committer, the applier, the one that grows the file ahead of need, and the one that moves
//! values and tidies packed runs.
//!
//! They hold the store weakly and end with it. Each does one kind of work; all of that work can also be done by a caller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use parking_lot::Mutex;
use shoal_base::task::block_on;

use crate::moving::Progress;
use crate::store::Inner;

/// How often the applier looks around without being woken.
const APPLIER_PERIOD: Duration = Duration::from_millis(100);
/// What the overlays hold is applied after this time even if it is little: space of what was deleted comes free.
const APPLY_AFTER_NS: u64 = 3_000_000_000;
/// How often the mover looks around.
const MOVER_PERIOD: Duration = Duration::from_millis(100);
/// How often the grower looks around.
const GROWER_PERIOD: Duration = Duration::from_millis(50);
/// The committer looks around this often even if nobody wakes it.
const COMMITTER_PERIOD: Duration = Duration::from_secs(1);
/// Wait after an apply that failed: the device may recover.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// One thread's door bell.
#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Bell {
    fn ring(&self) {
        // Only the first ring since the thread looked costs a system call.
        if !self.rung.swap(true, Ordering::AcqRel)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    fn wait(&self, timeout: Duration) {
        if !self.rung.swap(false, Ordering::AcqRel) {
            thread::park_timeout(timeout);
            self.rung.store(false, Ordering::Release);
        }
    }
}

/// The threads of a store.
pub(crate) struct Worker {
    commit: Bell,
    apply: Bell,
    grow: Bell,
    moving: Bell,
    stop: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Worker {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            commit: Bell::default(),
            apply: Bell::default(),
            grow: Bell::default(),
            moving: Bell::default(),
            stop: AtomicBool::new(false),
            threads: Mutex::default(),
        })
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// As the system.
    pub(crate) fn start(self: &Arc<Self>, inner: &Arc<Inner>) -> std::io::Result<()> {
        type Work = fn(&Weak<Inner>, &Worker);
        let works: [(&str, Work); 4] = [
            ("shoal-commit", committer),
            ("shoal-apply", applier),
            ("shoal-grow", grower),
            ("shoal-move", mover),
        ];
        for (name, work) in works {
            let (worker, store) = (self.clone(), Arc::downgrade(inner));
            let thread = thread::Builder::new().name(name.into()).spawn(move || work(&store, &worker))?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    pub(crate) fn wake_commit(&self) {
        self.commit.ring();
    }

    pub(crate) fn wake_apply(&self) {
        self.apply.ring();
    }

    pub(crate) fn wake_grow(&self) {
        self.grow.ring();
    }

    pub(crate) fn wake_move(&self) {
        self.moving.ring();
    }

    /// Ends the threads and waits for them. Called from one of them (the last user of the store may be one), it waits for
    /// the others only.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_commit();
        self.wake_apply();
        self.wake_grow();
        self.wake_move();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
    }

    /// Whether the threads were told to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

fn committer(store: &Weak<Inner>, worker: &Worker) {
    let _ = worker.commit.thread.set(thread::current());
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        block_on(inner.committer.lead(inner.now_ns()));
        let mut timeout = COMMITTER_PERIOD;
        if inner.committer.wants_seal() {
            let idle_ns = inner.now_ns().saturating_sub(inner.committer.last_batch_ns());
            if idle_ns >= inner.tuning.seal_after_ns {
                block_on(inner.committer.seal());
                // A caller that found the baton taken meanwhile relies on this thread.
                block_on(inner.committer.lead(inner.now_ns()));
            } else {
                timeout = Duration::from_nanos(inner.tuning.seal_after_ns - idle_ns);
            }
        }
        if inner.committer.has_work() {
            continue;
        }
        drop(inner);
        worker.commit.wait(timeout);
    }
    // Whoever saw this thread at work left its records to it; from now on they look after them themselves.
    if let Some(inner) = store.upgrade() {
        block_on(inner.committer.lead(inner.now_ns()));
    }
}

fn applier(store: &Weak<Inner>, worker: &Worker) {
    let _ = worker.apply.thread.set(thread::current());
    let mut last_full_ns = 0;
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        if inner.poison.reason().is_some() {
            return;
        }
        let now_ns = inner.now_ns();
        let result = if inner.wants_apply() {
            block_on(inner.apply_fullest())
        } else if now_ns.saturating_sub(last_full_ns) >= APPLY_AFTER_NS {
            last_full_ns = now_ns;
            block_on(inner.apply_all())
        } else {
            Ok(())
        };
        inner.streams.expire(inner.now_ns());
        inner.space.reclaim(inner.committer.named_superblock());
        // An apply may have promised the committer something to seal.
        worker.wake_commit();
        match result {
            Ok(()) if inner.wants_apply() => {}
            Ok(()) => {
                drop(inner);
                worker.apply.wait(APPLIER_PERIOD);
            }
            Err(error) => {
                tracing::warn!("an apply failed and will be tried again: {error}");
                drop(inner);
                worker.apply.wait(RETRY_AFTER);
            }
        }
    }
}

fn mover(store: &Weak<Inner>, worker: &Worker) {
    let _ = worker.moving.thread.set(thread::current());
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        if inner.poison.reason().is_some() {
            return;
        }
        let debt = Duration::from_nanos(inner.moving_wait_ns());
        let wait = if debt > Duration::ZERO {
            // The load may end meanwhile.
            debt.min(MOVER_PERIOD)
        } else {
            match block_on(inner.move_some()) {
                Ok(Progress::Worked) => {
                    worker.wake_commit();
                    continue;
                }
                Ok(Progress::Idle) => MOVER_PERIOD,
                Err(error) => {
                    tracing::warn!("moving failed and will be tried again: {error}");
                    RETRY_AFTER
                }
            }
        };
        drop(inner);
        worker.moving.wait(wait);
    }
}

fn grower(store: &Weak<Inner>, worker: &Worker) {
    let _ = worker.grow.thread.set(thread::current());
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        let mut wait = GROWER_PERIOD;
        if inner.poison.reason().is_none() && inner.wants_growth() {
            match block_on(inner.grow_unless_freed()) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!("the data file could not grow: {error}");
                    wait = RETRY_AFTER * 10;
                }
            }
        }
        drop(inner);
        worker.grow.wait(wait);
    }
}
