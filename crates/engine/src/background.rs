//! The store's threads: the committer, the applier, the one that grows the file ahead of need, the one that moves values
//! and tidies packed runs, the reaper, the scrubber, and the one that looks whether the data file is still there.
//!
//! They hold the store weakly and end with it. Each does one kind of work; all of that work can also be done by a caller.
//! A thread that panics poisons the store: others wait for what it does, and must learn that it will never come.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use parking_lot::Mutex;
use shoal_base::sync::atomic::{AtomicBool, Ordering};
use shoal_base::task::block_on;

use crate::error::Result;
use crate::moving::Progress;
use crate::own_space::SAVE_PERIOD;
use crate::scrub::{ScrubPlace, ScrubReport};
use crate::store::{Inner, Store};

/// How often the applier looks around without being woken.
const APPLIER_PERIOD: Duration = Duration::from_millis(100);
/// What the overlays hold is applied after this time even if it is little: space of what was deleted comes free.
const APPLY_AFTER_NS: u64 = 3_000_000_000;
/// How often the mover looks around.
const MOVER_PERIOD: Duration = Duration::from_millis(100);
/// How often the grower looks around.
const GROWER_PERIOD: Duration = Duration::from_millis(50);
/// How often the reaper looks around.
const REAPER_PERIOD: Duration = Duration::from_millis(100);
/// The reaper walks over all objects again after so many rounds, where it forgot some.
const REAPER_ROUNDS: u32 = 600;
/// The committer looks around this often even if nobody wakes it.
const COMMITTER_PERIOD: Duration = Duration::from_secs(1);
/// The first scrub of a store begins so long after it was opened, and the next one so long after the one before.
const SCRUB_FIRST_NS: u64 = 600_000_000_000;
const SCRUB_AGAIN_NS: u64 = 7 * 24 * 3_600_000_000_000;
/// How often the scrubber looks around.
const SCRUBBER_PERIOD: Duration = Duration::from_secs(1);
/// How long the committer waits for threads that gather writes. A turn of a dispatch thread is hardly ever longer.
const GATHERING_MAX: Duration = Duration::from_millis(1);
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

/// What one thread of a store does until it is stopped.
type Work = fn(&Weak<Inner>, &Worker);

/// The threads of a store.
pub(crate) struct Worker {
    commit: Bell,
    apply: Bell,
    grow: Bell,
    own: Bell,
    moving: Bell,
    reap: Bell,
    scrub: Bell,
    watch: Bell,
    stop: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Worker {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            commit: Bell::default(),
            apply: Bell::default(),
            grow: Bell::default(),
            own: Bell::default(),
            moving: Bell::default(),
            reap: Bell::default(),
            scrub: Bell::default(),
            watch: Bell::default(),
            stop: AtomicBool::new(false),
            threads: Mutex::default(),
        })
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// As the system.
    pub(crate) fn start(self: &Arc<Self>, inner: &Arc<Inner>) -> std::io::Result<()> {
        let works: [(&str, Work); 7] = [
            ("shoal-commit", committer),
            ("shoal-apply", applier),
            ("shoal-grow", grower),
            ("shoal-move", mover),
            ("shoal-reap", reaper),
            ("shoal-scrub", scrubber),
            ("shoal-watch", watcher),
        ];
        let keeper: Option<(&str, Work)> = (inner.own.len() > 0).then_some(("shoal-own", keeper));
        for (name, work) in works.into_iter().chain(keeper) {
            let (worker, store) = (self.clone(), Arc::downgrade(inner));
            let body = move || guarded(name, work, &store, &worker);
            let thread = thread::Builder::new().name(name.into()).spawn(body)?;
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
        self.own.ring();
        self.wake_move();
        self.reap.ring();
        self.scrub.ring();
        self.watch.ring();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.thread().id() != thread::current().id() {
                // What panics was told when it did.
                let _ = thread.join();
            }
        }
    }

    /// Whether the threads were told to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// What a thread's work came to; none where it failed, which is said, and tried again later.
fn later<T>(what: &str, result: Result<T>) -> Option<T> {
    result.inspect_err(|error| tracing::warn!("{what}: {error}")).ok()
}

/// Does `work`; where it panics, an error of the program, the store is read-only from then on, and whoever waits is answered.
fn guarded(name: &str, work: Work, store: &Weak<Inner>, worker: &Worker) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(store, worker))) else { return };
    let Some(inner) = store.upgrade() else { return };
    let words = words(&*panic);
    tracing::error!("the thread {name} of the store ended by an error of the program: {words}");
    inner.poison(format!("an error of the program in its thread {name}: {words}"));
    // What is queued is refused by whoever leads next.
    let _ = catch_unwind(AssertUnwindSafe(|| block_on(inner.committer.lead(inner.now_ns()))));
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

fn committer(store: &Weak<Inner>, worker: &Worker) {
    let _ = worker.commit.thread.set(thread::current());
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        let is_led = block_on(inner.committer.lead_once(inner.now_ns()));
        // More is coming, and its hand-over rings: a batch of what is there so far would be a small one. Where somebody else leads,
        // asking all the time would only take the core from them.
        let can_wait = || is_led || inner.committer.is_gathering();
        let mut timeout = COMMITTER_PERIOD;
        if inner.committer.has_work() {
            if !can_wait() {
                continue;
            }
            timeout = GATHERING_MAX;
        } else if inner.committer.wants_seal() {
            let idle_ns = inner.now_ns().saturating_sub(inner.committer.last_batch_ns());
            if idle_ns >= inner.tuning.seal_after_ns {
                block_on(inner.committer.seal());
                // A caller that found the baton taken meanwhile relies on this thread.
                block_on(inner.committer.lead(inner.now_ns()));
            } else {
                timeout = Duration::from_nanos(inner.tuning.seal_after_ns - idle_ns);
            }
        }
        if inner.committer.has_work() && !can_wait() {
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
        let wait = match later("an apply failed and will be tried again", result) {
            Some(()) if inner.wants_apply() => continue,
            Some(()) => APPLIER_PERIOD,
            None => RETRY_AFTER,
        };
        drop(inner);
        worker.apply.wait(wait);
    }
}

/// Remembers which groups belong to which bucket.
fn keeper(store: &Weak<Inner>, worker: &Worker) {
    let _ = worker.own.thread.set(thread::current());
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        later(
            "which groups belong to which bucket could not be saved",
            block_on(Store(inner).save_own_space()),
        );
        worker.own.wait(SAVE_PERIOD);
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
            match later("moving failed and will be tried again", block_on(inner.move_some())) {
                Some(Progress::Worked) => {
                    worker.wake_commit();
                    continue;
                }
                Some(Progress::Idle) => MOVER_PERIOD,
                None => RETRY_AFTER,
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
        inner.note_rate();
        if inner.poison.reason().is_none() && inner.wants_log() {
            match later("the log could not be prepared", block_on(inner.prepare_log(0))) {
                Some(true) => continue,
                Some(false) | None => wait = RETRY_AFTER,
            }
        }
        if inner.poison.reason().is_none() && inner.wants_growth() {
            match later("the data file could not grow", block_on(inner.grow_unless_freed())) {
                Some(true) => continue,
                // There may be room later.
                Some(false) | None => wait = RETRY_AFTER * 10,
            }
        }
        drop(inner);
        worker.grow.wait(wait);
    }
}

fn reaper(store: &Weak<Inner>, worker: &Worker) {
    let _ = worker.reap.thread.set(thread::current());
    // What the trees hold from before this opening is found by one slow walk.
    let mut walk = Some(Vec::new());
    let mut rounds = 0;
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        if inner.poison.reason().is_some() {
            return;
        }
        later("where the clocks stand could not be written down", block_on(inner.keep_time()));
        let reaped = block_on(inner.reap_due());
        let wait = match later("objects whose time is over could not be deleted", reaped) {
            Some(true) => Duration::ZERO,
            Some(false) => REAPER_PERIOD,
            None => RETRY_AFTER,
        };
        rounds += 1;
        if let Some(from) = walk.take() {
            // The damage is reported to whoever reads it; the next walk may get further.
            let walked = block_on(inner.walk_for_expiring(from));
            walk = later("the search for objects whose time ends stopped", walked).flatten();
            rounds = 0;
        } else if rounds >= REAPER_ROUNDS && inner.expiring.take_forgot() {
            walk = Some(Vec::new());
        }
        drop(inner);
        worker.reap.wait(wait);
    }
}

/// Looks whether the data file is where it was opened: what is written to one that was deleted would end with this process.
fn watcher(store: &Weak<Inner>, worker: &Worker) {
    let _ = worker.watch.thread.set(thread::current());
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        if inner.poison.reason().is_some() {
            return;
        }
        let period = Duration::from_nanos(inner.tuning.file_look_ns);
        if let Some(what) = inner.device.inner().displaced() {
            inner.poison.set_displaced(what);
            // What is queued is refused by whoever leads next.
            inner.committer.moved.notify();
            block_on(inner.committer.lead(inner.now_ns()));
            return;
        }
        drop(inner);
        worker.watch.wait(period);
    }
}

/// Reads everything from time to time, at a rate that leaves the device to others.
fn scrubber(store: &Weak<Inner>, worker: &Worker) {
    let _ = worker.scrub.thread.set(thread::current());
    let (mut place, mut due_ns) = (ScrubPlace::default(), None);
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        let (now_ns, rate) = (inner.now_ns(), inner.tuning.scrub_bytes_per_s);
        let due = *due_ns.get_or_insert(now_ns.saturating_add(SCRUB_FIRST_NS));
        let mut wait = SCRUBBER_PERIOD;
        if rate > 0 && now_ns >= due {
            let mut report = ScrubReport::default();
            let scrubbed = block_on(inner.scrub_some(&mut place, &mut report));
            match later("a scrub was interrupted and goes on later", scrubbed) {
                Some(true) => due_ns = Some(now_ns.saturating_add(SCRUB_AGAIN_NS)),
                Some(false) => wait = Duration::from_secs_f64(report.bytes as f64 / rate as f64),
                None => wait = RETRY_AFTER,
            }
        }
        drop(inner);
        worker.scrub.wait(wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn what_failed_is_tried_later() {
        assert_eq!(later("a test", Ok(7)), Some(7));
        assert_eq!(later::<u8>("a test", Err(Error::Closed)), None);
    }
}
