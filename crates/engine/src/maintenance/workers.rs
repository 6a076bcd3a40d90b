//! The store's threads: committer, applier, freer (drops applied memtables), compactor (compacts layers), grower (grows the file ahead of need),
//! mover (moves values and tidies packed runs), reaper, scrubber, keeper (saves the groups of buckets), and watcher (checks that the data
//! file is still there).
//!
//! The threads hold the store weakly and exit with it. Each does one kind of work; a caller can also do all of that work. All except the
//! committer have a lower priority than the threads that serve clients: on a shared core, commits get more of the time, and an apply takes
//! longer. The committer has short time slices: the end of a flush wakes it, and then all writers of the batch wait for it. A thread that
//! panics poisons the store: other threads wait for its work, and must learn that it will never come.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use shoal_base::priority::{give_way, shorten_slice};
use shoal_base::task::block_on;
use shoal_common::error::Result;

use crate::gc::relocate::Progress;
use crate::maintenance::own_space::SAVE_PERIOD;
use crate::maintenance::scrub::{ScrubPlace, ScrubReport};
use crate::store::threads::{Duty, Worker};
use crate::store::{Inner, Store};

/// The applier checks for work this often without a wake-up.
const APPLIER_PERIOD: Duration = Duration::from_millis(100);
/// The freer checks for work this often without a wake-up.
const FREER_PERIOD: Duration = Duration::from_secs(1);
/// How often the compactor checks for work without being woken.
const COMPACTOR_PERIOD: Duration = Duration::from_millis(500);
/// The memtables are applied after this time even if they are small: the space of deleted objects becomes free.
const APPLY_AFTER_NS: u64 = 3_000_000_000;
/// The mover checks for work this often.
const MOVER_PERIOD: Duration = Duration::from_millis(100);
/// The grower checks for work this often.
const GROWER_PERIOD: Duration = Duration::from_millis(50);
/// The first scrub starts at most this long after the opening: a store that is opened every day is also scrubbed.
const SCRUB_FIRST_NS: u64 = 600_000_000_000;
/// The scrubber checks for work this often.
const SCRUBBER_PERIOD: Duration = Duration::from_secs(1);
/// Wait after a failed apply: the device may recover.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The work of one thread of a store until it is stopped.
type Work = fn(&Weak<Inner>, &Worker);

/// Starts the threads.
///
/// # Errors
/// As the system.
pub(crate) fn start(worker: &Arc<Worker>, inner: &Arc<Inner>) -> std::io::Result<()> {
    let works: [(&str, Duty, Work); 10] = [
        ("shoal-commit", Duty::Commit, committer),
        ("shoal-apply", Duty::Apply, applier),
        ("shoal-free", Duty::Free, freer),
        ("shoal-merge", Duty::Compaction, compactor),
        ("shoal-grow", Duty::Grow, grower),
        ("shoal-move", Duty::Move, mover),
        ("shoal-reap", Duty::Reap, reaper),
        ("shoal-scrub", Duty::Scrub, scrubber),
        ("shoal-watch", Duty::Watch, watcher),
        ("shoal-own", Duty::Own, keeper),
    ];
    for (name, duty, work) in works {
        if duty != Duty::Own || inner.own.count() > 0 {
            let store = Arc::downgrade(inner);
            worker.spawn(name, duty, move |worker| guarded(name, work, &store, worker))?;
        }
    }
    Ok(())
}

/// Runs rounds, each after the wait that the previous one returned, until the threads are stopped or a round returns `None`. A store that
/// became read-only needs scrubs only.
fn rounds(
    duty: Duty,
    store: &Weak<Inner>,
    worker: &Worker,
    mut round: impl FnMut(&Arc<Inner>) -> Option<Duration>,
) {
    give_way();
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        if duty != Duty::Scrub && inner.log.poison.reason().is_some() {
            return;
        }
        let Some(wait) = round(&inner) else { return };
        drop(inner);
        if !wait.is_zero() {
            worker.wait(duty, wait);
        }
    }
}

/// The result of a thread's work; `None` if it failed, which is logged; the work is retried later.
fn later<T>(what: &str, result: Result<T>) -> Option<T> {
    result.inspect_err(|error| tracing::warn!("{what}: {error}")).ok()
}

/// Runs `work`. A panic is an error of the program: the store is read-only from then on, and all waiting writers get an answer.
fn guarded(name: &str, work: Work, store: &Weak<Inner>, worker: &Worker) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(store, worker))) else { return };
    let Some(inner) = store.upgrade() else { return };
    let words = words(&*panic);
    tracing::error!("the thread {name} of the store ended by an error of the program: {words}");
    inner.log.fail(format!("an error of the program in its thread {name}: {words}"));
    // The next driver refuses the queued records.
    let _ = catch_unwind(AssertUnwindSafe(|| block_on(inner.log.committer.commit_all())));
}

/// The message of a panic.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

fn committer(store: &Weak<Inner>, worker: &Worker) {
    shorten_slice();
    let mut last_queued = 0;
    while !worker.is_stopped() {
        let Some(inner) = store.upgrade() else { return };
        let sleep = inner.log.committer.thread_turn(inner.tuning.seal_after_ns, &mut last_queued);
        drop(inner);
        if let Some(timeout) = sleep {
            worker.wait(Duty::Commit, timeout);
        }
    }
    // Writers that saw this thread at work left their records to it; from now on they commit them themselves.
    if let Some(inner) = store.upgrade() {
        block_on(inner.log.committer.commit_all());
    }
}

fn applier(store: &Weak<Inner>, worker: &Worker) {
    let mut last_full_ns = 0;
    rounds(Duty::Apply, store, worker, |inner| {
        let now_ns = inner.now_ns();
        let result = if inner.wants_apply() {
            block_on(inner.checkpointer.apply_fullest())
        } else if now_ns.saturating_sub(last_full_ns) >= APPLY_AFTER_NS {
            last_full_ns = now_ns;
            block_on(inner.checkpointer.apply_all())
        } else {
            Ok(())
        };
        inner.tablets.held_streams.expire(inner.now_ns());
        inner.checkpointer.limit_snapshots();
        inner.space.reclaim(inner.log.committer.named_superblock());
        // The superblock of an apply may need a seal.
        worker.wake(Duty::Commit);
        inner.checkpointer.pause(|| worker.is_stopped());
        Some(match later("an apply failed and will be tried again", result) {
            Some(()) if inner.wants_apply() => Duration::ZERO,
            Some(()) => APPLIER_PERIOD,
            None => RETRY_AFTER,
        })
    });
}

/// Drops applied memtables.
fn freer(store: &Weak<Inner>, worker: &Worker) {
    rounds(Duty::Free, store, worker, |inner| {
        if let Some(helpers) = &inner.checkpointer.helpers {
            helpers.drop_applied();
        }
        Some(FREER_PERIOD)
    });
}

/// Compacts layers, step by step.
fn compactor(store: &Weak<Inner>, worker: &Worker) {
    rounds(Duty::Compaction, store, worker, |inner| {
        let compacted = block_on(inner.checkpointer.compact_idle());
        worker.wake(Duty::Commit);
        Some(match later("layers could not be compacted, which will be tried again", compacted) {
            Some(true) => Duration::ZERO,
            Some(false) => COMPACTOR_PERIOD,
            None => RETRY_AFTER,
        })
    });
}

/// Saves the assignment of groups to buckets.
fn keeper(store: &Weak<Inner>, worker: &Worker) {
    rounds(Duty::Own, store, worker, |inner| {
        let saved = block_on(Store(inner.clone()).save_own_space());
        later("which groups belong to which bucket could not be saved", saved);
        Some(SAVE_PERIOD)
    });
}

fn mover(store: &Weak<Inner>, worker: &Worker) {
    rounds(Duty::Move, store, worker, |inner| {
        let debt = Duration::from_nanos(inner.relocator.wait_ns());
        if !debt.is_zero() {
            // The load may stop meanwhile.
            return Some(debt.min(MOVER_PERIOD));
        }
        Some(match later("relocation failed and will be tried again", block_on(inner.relocator.step())) {
            Some(Progress::Worked) => {
                worker.wake(Duty::Commit);
                Duration::ZERO
            }
            Some(Progress::Idle) => MOVER_PERIOD,
            None => RETRY_AFTER,
        })
    });
}

fn grower(store: &Weak<Inner>, worker: &Worker) {
    rounds(Duty::Grow, store, worker, |inner| {
        let mut wait = GROWER_PERIOD;
        inner.checkpointer.note_rate();
        if inner.log.committer.room.awaits_opening() {
            return Some(match block_on(inner.look_for_room()) {
                Ok(()) => Duration::ZERO,
                Err(_) => RETRY_AFTER,
            });
        }
        if inner.checkpointer.wants_log() {
            match later("the log could not be prepared", block_on(inner.checkpointer.prepare_log(0))) {
                Some(true) => return Some(Duration::ZERO),
                Some(false) | None => wait = RETRY_AFTER,
            }
        }
        if inner.log.poison.reason().is_none() && inner.checkpointer.wants_growth() {
            match later("the data file could not grow", block_on(inner.checkpointer.grow_unless_freed())) {
                Some(true) => return Some(Duration::ZERO),
                // There may be room later.
                Some(false) | None => wait = RETRY_AFTER * 10,
            }
        }
        Some(wait)
    });
}

fn reaper(store: &Weak<Inner>, worker: &Worker) {
    rounds(Duty::Reap, store, worker, |inner| {
        later("cannot store the times of the clocks", block_on(inner.keep_time()));
        let reaped = block_on(inner.reap_round());
        Some(later("expired objects could not be found or deleted", reaped).unwrap_or(RETRY_AFTER))
    });
}

/// Checks that the data file is still at its place, has its length, and belongs to this store only: writes to another file would be lost.
/// Also checks the room of its file system and the progress of writes. An idle machine wakes up for all of that once per period.
fn watcher(store: &Weak<Inner>, worker: &Worker) {
    let mut is_first = true;
    rounds(Duty::Watch, store, worker, |inner| {
        // The opening itself wrote the superblock that the first check would find.
        let lost = if is_first { None } else { block_on(inner.checkpointer.lost_file()) };
        is_first = false;
        let Some(what) = lost else {
            block_on(inner.try_room_of_values());
            inner.look_at_writes();
            return Some(Duration::from_nanos(inner.tuning.file_look_ns));
        };
        // The next driver refuses the queued records.
        inner.log.lose_file(what);
        block_on(inner.log.committer.commit_all());
        None
    });
}

/// Reads everything from time to time, at a rate that leaves the device to requests.
fn scrubber(store: &Weak<Inner>, worker: &Worker) {
    let (mut place, mut due_ns) = (ScrubPlace::default(), None);
    rounds(Duty::Scrub, store, worker, |inner| {
        let (now_ns, rate, every_ns) =
            (inner.now_ns(), inner.tuning.scrub_bytes_per_s, inner.tuning.scrub_every_ns);
        let due = *due_ns.get_or_insert(now_ns.saturating_add(SCRUB_FIRST_NS.min(every_ns)));
        if rate == 0 || now_ns < due {
            return Some(SCRUBBER_PERIOD);
        }
        let mut report = ScrubReport::default();
        assert!(rate > 0, "the wait after a piece is its bytes by the rate");
        let scrubbed = block_on(inner.scrub_some(&mut place, &mut report));
        Some(match later("a scrub was interrupted and continues later", scrubbed) {
            Some(true) => {
                due_ns = Some(now_ns.saturating_add(every_ns));
                SCRUBBER_PERIOD
            }
            Some(false) => Duration::from_secs_f64(report.bytes as f64 / rate as f64),
            None => RETRY_AFTER,
        })
    });
}
