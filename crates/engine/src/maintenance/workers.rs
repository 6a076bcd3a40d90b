//! The store's threads: the committer, and four threads that share ten jobs.
//!
//! | thread | jobs, the most urgent first |
//! |---|---|
//! | `shoal-commit` | commits |
//! | `shoal-apply` | applies |
//! | `shoal-merge` | compacts layers |
//! | `shoal-room` | grows the file ahead of need; drops applied memtables; checks that the data file is still there |
//! | `shoal-tidy` | deletes expired objects; moves values and tidies packed runs; saves the groups of buckets; scrubs |
//!
//! The threads hold the store weakly and exit with it. A caller can also do all of that work. All except the committer have a lower priority
//! than the threads that serve clients: on a shared core, commits get more of the time, and an apply takes longer. The committer has short
//! time slices: the end of a flush wakes it, and then all writers of the batch wait for it. A thread that panics poisons the store: other
//! threads wait for its work, and must learn that it will never come.
//!
//! Applies and compactions take seconds, so they have separate threads. Nothing on `shoal-room` waits for room, because writers wait for
//! its growth; the jobs of `shoal-tidy` write objects and may wait (`docs/adr/2026-11-29-idle-threads.md`).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use shoal_base::priority::{give_way, shorten_slice};
use shoal_base::sync::atomic::Ordering;
use shoal_base::task::block_on;
use shoal_common::error::Result;
use shoal_tablets::gc::relocate::Progress;

use crate::maintenance::apply_timer::ApplyTimer;
use crate::maintenance::expire::REAPER_PERIOD;
use crate::maintenance::own_space::SAVE_PERIOD;
use crate::maintenance::schedule::{self, Job, Next, SLEEP_MAX};
use crate::maintenance::scrub::{ScrubPlace, ScrubReport};
use crate::store::threads::{Duty, Worker};
use crate::store::{Inner, Store};

/// The applier checks for work this often without a wake-up while something happens.
const APPLIER_PERIOD: Duration = Duration::from_millis(100);
/// How often the compactor checks for work without being woken.
const COMPACTOR_PERIOD: Duration = Duration::from_millis(500);
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
/// The patience of jobs beside a more urgent one of the same thread.
const PATIENT: Duration = Duration::from_millis(50);
const VERY_PATIENT: Duration = Duration::from_millis(200);

/// Starts the threads.
///
/// # Errors
/// As the system.
pub(crate) fn start(worker: &Arc<Worker>, inner: &Arc<Inner>) -> std::io::Result<()> {
    let store = Arc::downgrade(inner);
    worker.spawn("shoal-commit", vec![Duty::Commit], move |worker| {
        guarded("shoal-commit", &store, || committer(&store, worker));
    })?;
    let mut tidy = vec![
        Job::new(Duty::Reap, Duration::ZERO, reap),
        Job::new(Duty::Move, PATIENT, relocate),
        Job::new(Duty::Scrub, VERY_PATIENT, scrubber()),
    ];
    if inner.own.count() > 0 {
        tidy.push(Job::new(Duty::Own, PATIENT, save_own_space));
    }
    let room = vec![
        Job::new(Duty::Grow, Duration::ZERO, grow),
        Job::new(Duty::Free, PATIENT, drop_applied),
        Job::new(Duty::Watch, VERY_PATIENT, watcher()),
    ];
    let threads = [
        ("shoal-apply", vec![Job::new(Duty::Apply, Duration::ZERO, applier())]),
        ("shoal-merge", vec![Job::new(Duty::Compaction, Duration::ZERO, compact)]),
        ("shoal-room", room),
        ("shoal-tidy", tidy),
    ];
    for (name, jobs) in threads {
        let store = Arc::downgrade(inner);
        let duties = jobs.iter().map(Job::duty).collect();
        worker.spawn(name, duties, move |worker| {
            give_way();
            guarded(name, &store, || schedule::run(jobs, &store, worker));
        })?;
    }
    Ok(())
}

/// The result of a thread's work; `None` if it failed, which is logged; the work is retried later.
fn later<T>(what: &str, result: Result<T>) -> Option<T> {
    result.inspect_err(|error| tracing::warn!("{what}: {error}")).ok()
}

/// Runs `work`. A panic is an error of the program: the store is read-only from then on, and all waiting writers get an answer.
fn guarded(name: &str, store: &Weak<Inner>, work: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(work)) else { return };
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

/// Wakes the committer if the log needs a seal: after a publish, or after a batch that a caller committed.
fn wake_for_seal(inner: &Inner, worker: &Worker) {
    if inner.log.committer.wants_seal() {
        worker.wake(Duty::Commit);
    }
}

fn applier() -> impl FnMut(&Arc<Inner>, &Worker) -> Next + Send {
    let mut timer = ApplyTimer::default();
    move |inner, worker| {
        let checkpointer = &inner.checkpointer;
        let result = match timer.next(inner, inner.now_ns()) {
            Some(tablet) => {
                if let Some(helpers) = &checkpointer.helpers {
                    helpers.apply_time_ns.store(timer.time_ns(inner), Ordering::Relaxed);
                }
                block_on(checkpointer.apply_tablet(tablet))
            }
            None => block_on(checkpointer.let_log_go()),
        };
        inner.tablets.held_streams.expire(inner.now_ns());
        inner.checkpointer.limit_snapshots();
        if inner.space.reclaim(inner.log.committer.named_superblock()) > 0 {
            inner.log.committer.sleepers.happened();
        }
        wake_for_seal(inner, worker);
        inner.checkpointer.pause(|| worker.is_stopped());
        match later("an apply failed and will be tried again", result) {
            Some(()) if inner.wants_apply() => Next::After(Duration::ZERO),
            Some(()) if inner.awaits_applier() => Next::After(APPLIER_PERIOD),
            Some(()) => Next::idle(APPLIER_PERIOD),
            None => Next::After(RETRY_AFTER),
        }
    }
}

impl Inner {
    /// Returns true if the applier has something to do soon, without anything that happens before: records to apply, freed blocks that
    /// readers hold, readers with a time limit, or a seal.
    fn awaits_applier(&self) -> bool {
        self.tablets.all().iter().any(|tablet| tablet.first_unapplied().is_some())
            || self.space.pending_blocks() > self.space.unread_blocks()
            || self.tablets.snapshots.count() > 0
            || self.tablets.held_streams.is_any_held()
            || self.log.committer.wants_seal()
    }
}

/// Drops applied memtables. The apply that leaves one rings.
fn drop_applied(inner: &Arc<Inner>, _: &Worker) -> Next {
    if let Some(helpers) = &inner.checkpointer.helpers {
        helpers.drop_applied();
    }
    Next::idle(SLEEP_MAX)
}

/// Compacts layers, step by step.
fn compact(inner: &Arc<Inner>, worker: &Worker) -> Next {
    let compacted = block_on(inner.checkpointer.compact_idle());
    wake_for_seal(inner, worker);
    match later("layers could not be compacted, which will be tried again", compacted) {
        Some(true) => Next::After(Duration::ZERO),
        Some(false) => Next::idle(COMPACTOR_PERIOD),
        None => Next::After(RETRY_AFTER),
    }
}

/// Saves the assignment of groups to buckets.
fn save_own_space(inner: &Arc<Inner>, _: &Worker) -> Next {
    let saved = block_on(Store(inner.clone()).save_own_space());
    match later("which groups belong to which bucket could not be saved", saved) {
        Some(false) => Next::idle(SAVE_PERIOD),
        Some(true) | None => Next::After(SAVE_PERIOD),
    }
}

/// Moves values and tidies packed runs.
fn relocate(inner: &Arc<Inner>, worker: &Worker) -> Next {
    let debt = Duration::from_nanos(inner.relocator.wait_ns());
    if !debt.is_zero() {
        // The load may stop meanwhile.
        return Next::After(debt.min(MOVER_PERIOD));
    }
    match later("relocation failed and will be tried again", block_on(inner.relocator.step())) {
        Some(Progress::Worked) => {
            wake_for_seal(inner, worker);
            Next::After(Duration::ZERO)
        }
        Some(Progress::Idle) if inner.relocator.awaits_readers() => Next::After(MOVER_PERIOD),
        Some(Progress::Idle) => {
            let due = [inner.relocator.next_round_in(), inner.relocator.next_discard_in()];
            let latest = due.into_iter().flatten().fold(SLEEP_MAX, Duration::min);
            Next::Idle { look: MOVER_PERIOD, latest }
        }
        None => Next::After(RETRY_AFTER),
    }
}

/// Grows the file and prepares the log ahead of need.
fn grow(inner: &Arc<Inner>, _: &Worker) -> Next {
    let mut next = Next::idle(GROWER_PERIOD);
    inner.checkpointer.note_rate();
    if inner.log.committer.room.awaits_opening() {
        return Next::After(match block_on(inner.look_for_room()) {
            Ok(()) => Duration::ZERO,
            Err(_) => RETRY_AFTER,
        });
    }
    if inner.checkpointer.wants_log() {
        match later("the log could not be prepared", block_on(inner.checkpointer.prepare_log(0))) {
            Some(true) => return Next::After(Duration::ZERO),
            Some(false) | None => next = Next::After(RETRY_AFTER),
        }
    }
    if inner.log.poison.reason().is_none() && inner.checkpointer.wants_growth() {
        match later("the data file could not grow", block_on(inner.checkpointer.grow_unless_freed())) {
            Some(true) => return Next::After(Duration::ZERO),
            // There may be room later.
            Some(false) | None => next = Next::After(RETRY_AFTER * 10),
        }
    }
    next
}

fn reap(inner: &Arc<Inner>, worker: &Worker) -> Next {
    later("cannot store the times of the clocks", block_on(inner.keep_time()));
    wake_for_seal(inner, worker);
    let reaped = block_on(inner.reap_round());
    match later("expired objects could not be found or deleted", reaped) {
        Some(Some(wait)) => Next::After(wait),
        Some(None) => Next::Idle { look: REAPER_PERIOD, latest: inner.next_reap_in().min(SLEEP_MAX) },
        None => Next::After(RETRY_AFTER),
    }
}

/// Checks that the data file is still at its place, has its length, and belongs to this store only: writes to another file would be lost.
/// Also checks the room of its file system and the progress of writes. An idle machine wakes up for all of that once per period.
fn watcher() -> impl FnMut(&Arc<Inner>, &Worker) -> Next + Send {
    let mut is_first = true;
    move |inner, _| {
        // The opening itself wrote the superblock that the first check would find.
        let lost = if is_first { None } else { block_on(inner.checkpointer.lost_file()) };
        is_first = false;
        let Some(what) = lost else {
            block_on(inner.try_room_of_values());
            inner.look_at_writes();
            return Next::After(Duration::from_nanos(inner.tuning.file_look_ns));
        };
        // The next driver refuses the queued records.
        inner.log.lose_file(what);
        block_on(inner.log.committer.commit_all());
        Next::Ended
    }
}

/// Reads everything from time to time, at a rate that leaves the device to requests.
fn scrubber() -> impl FnMut(&Arc<Inner>, &Worker) -> Next + Send {
    let (mut place, mut due_ns) = (ScrubPlace::default(), None);
    move |inner, _| {
        let (now_ns, rate, every_ns) =
            (inner.now_ns(), inner.tuning.scrub_bytes_per_s, inner.tuning.scrub_every_ns);
        if rate == 0 {
            return Next::Ended;
        }
        let due = *due_ns.get_or_insert(now_ns.saturating_add(SCRUB_FIRST_NS.min(every_ns)));
        let runs = &inner.maintenance.scrub_runs;
        if now_ns >= due {
            runs.store(true, Ordering::Relaxed);
        } else if !runs.load(Ordering::Relaxed) {
            let latest = Duration::from_nanos(due - now_ns).min(SLEEP_MAX);
            return Next::Idle { look: SCRUBBER_PERIOD, latest };
        }
        let mut report = ScrubReport::default();
        let scrubbed = block_on(inner.scrub_some(&mut place, &mut report));
        match later("a scrub was interrupted and continues later", scrubbed) {
            Some(true) => {
                due_ns = Some(now_ns.saturating_add(every_ns));
                runs.store(false, Ordering::Relaxed);
                Next::After(SCRUBBER_PERIOD)
            }
            Some(false) => Next::After(Duration::from_secs_f64(report.bytes as f64 / rate as f64)),
            None => Next::After(RETRY_AFTER),
        }
    }
}
