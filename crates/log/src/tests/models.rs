//! Models of the threads on the way to an acknowledgement (T10): loom runs every schedule of a few threads, within a bound of preemptions,
//! and every value that a load may legally see.
//!
//! [`Notifier`], [`Token`], [`Sleepers`] and [`Fence`] are the real ones. The committer around them is a model: the steps of
//! `commit/mod.rs` (push under the
//! memtable's lock, drive, number, flush, check for poison, store `durable`, wake) in the same order, without bytes. A lost wake-up is a
//! deadlock, which loom reports.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc as StdArc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar};
use loom::thread;

use self::event::{Bell, Notifier, Sleepers, Token};
use self::fence::Fence;
use self::sync::Mutex;

mod sync {
    pub(crate) use loom::sync::atomic;

    pub(crate) mod thread {
        pub(crate) use loom::thread::{Thread, current};

        /// There is no time: a thread that relies on it sleeps for ever.
        pub(crate) fn park_timeout(_: std::time::Duration) {
            loom::thread::park();
        }
    }

    /// The interface of parking_lot's mutex, over loom's.
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }
}

#[path = "../../../common/src/event.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::duplicate_mod,
    reason = "with other locks, and only a part of it"
)]
mod event;

#[path = "../failure/fence.rs"]
#[allow(clippy::duplicate_mod, reason = "with other locks")]
mod fence;

const UNNUMBERED: u64 = u64::MAX;
/// Preemptions in one schedule: more make the runs long, and no bug of this kind has needed more.
const PREEMPTIONS: usize = 2;

/// A thread that sleeps until it is woken.
struct Sleeper {
    woken: loom::sync::Mutex<bool>,
    changed: Condvar,
}

impl Wake for Sleeper {
    fn wake(self: StdArc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let sleeper = StdArc::new(Sleeper { woken: loom::sync::Mutex::new(false), changed: Condvar::new() });
    let waker = Waker::from(sleeper.clone());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        let mut woken = sleeper.woken.lock().unwrap();
        while !*woken {
            woken = sleeper.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}

struct Record {
    lsn: AtomicU64,
    wakers: Mutex<Vec<Waker>>,
}

impl Record {
    fn new() -> Arc<Self> {
        Arc::new(Self { lsn: AtomicU64::new(UNNUMBERED), wakers: Mutex::default() })
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

enum Item {
    Record(Arc<Record>),
    /// A freeze. Once everything before it is durable, it gets the number of the last record before it.
    Marker(Arc<AtomicU64>),
}

/// The records that the device keeps: all up to `kept`. A flush keeps at most the records that were written at its start, and nothing after
/// another flush failed: later flushes still report success, as with a kernel that forgot the failure. The thread of the failed flush may
/// report it at any later time.
struct Flushes {
    kept: AtomicU64,
    /// The number of the flush that fails, counted from 0.
    fails: u64,
    turn: AtomicU64,
    failed: Mutex<bool>,
}

impl Flushes {
    fn flush(&self, written: u64) -> bool {
        let mut failed = self.failed.lock();
        if self.turn.fetch_add(1, Ordering::AcqRel) == self.fails {
            *failed = true;
            return false;
        }
        if !*failed {
            self.kept.fetch_max(written, Ordering::AcqRel);
        }
        true
    }
}

struct Committer {
    queue: Mutex<VecDeque<Item>>,
    driver: Token<u64>,
    durable: AtomicU64,
    poisoned: AtomicBool,
    moved: Notifier,
    flushes: Flushes,
    /// `None`: the committer without a fence.
    fence: Option<Fence>,
}

impl Committer {
    fn new(fails: u64) -> Arc<Self> {
        Self::with(fails, Some(Fence::default()))
    }

    fn with(fails: u64, fence: Option<Fence>) -> Arc<Self> {
        let flushes =
            Flushes { kept: AtomicU64::new(0), fails, turn: AtomicU64::new(0), failed: Mutex::default() };
        Arc::new(Self {
            queue: Mutex::default(),
            driver: Token::new(0),
            durable: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            moved: Notifier::default(),
            flushes,
            fence,
        })
    }

    fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    fn has_work(&self) -> bool {
        !self.queue.lock().is_empty()
    }

    /// As `Committer::commit_all`.
    fn commit_all(&self) {
        while self.has_work() {
            let Some(mut driver) = self.driver.try_take() else { return };
            while self.has_work() {
                self.commit_batch(&mut driver);
            }
        }
    }

    fn commit_batch(&self, next: &mut u64) {
        if self.is_poisoned() {
            return self.fail();
        }
        let (mut records, mut markers) = (Vec::new(), Vec::new());
        for item in self.queue.lock().drain(..) {
            match item {
                Item::Record(record) => {
                    *next += 1;
                    record.lsn.store(*next, Ordering::Release);
                    records.push(record);
                }
                Item::Marker(marker) => markers.push((marker, *next)),
            }
        }
        let flushed = records.is_empty() || self.pass(|| self.flushes.flush(*next));
        if !flushed || self.is_poisoned() {
            self.fail();
        } else {
            self.durable.store(*next, Ordering::Release);
        }
        records.iter().for_each(|record| record.wake());
        if flushed && !self.is_poisoned() {
            markers.iter().for_each(|(marker, lsn)| marker.store(*lsn, Ordering::Release));
            self.moved.notify();
        }
    }

    fn fail(&self) {
        self.poisoned.store(true, Ordering::Release);
        for item in std::mem::take(&mut *self.queue.lock()) {
            if let Item::Record(record) = item {
                record.wake();
            }
        }
        self.moved.notify();
    }

    /// As `Poison::flushed`: returns true if `flush` succeeded.
    fn pass(&self, flush: impl FnOnce() -> bool) -> bool {
        let flush = || if flush() { Ok(()) } else { Err(()) };
        let failed = |(): &()| self.poisoned.store(true, Ordering::Release);
        match &self.fence {
            Some(fence) => block_on(fence.pass(async { flush() }, failed)).is_ok(),
            None => flush().inspect_err(failed).is_ok(),
        }
    }

    /// A failing flush of an apply: records that no earlier flush kept stay in doubt for good.
    fn fail_beside(&self) {
        let flushed = self.pass(|| {
            *self.flushes.failed.lock() = true;
            false
        });
        assert!(!flushed, "it failed");
        self.fail();
    }

    /// As `Committer::wait_durable`: returns the number, or `None` if the outcome is unknown.
    fn wait_durable(&self, record: &Record) -> Option<u64> {
        let number = block_on(poll_fn(|context| {
            for registered in [false, true] {
                let lsn = record.lsn.load(Ordering::Acquire);
                if lsn <= self.durable.load(Ordering::Acquire) {
                    return Poll::Ready(Some(lsn));
                }
                if self.is_poisoned() {
                    return Poll::Ready(None);
                }
                if !registered {
                    record.wakers.lock().push(context.waker().clone());
                }
            }
            Poll::Pending
        }));
        if let Some(lsn) = number {
            let kept = self.flushes.kept.load(Ordering::Acquire);
            assert!(lsn <= kept, "record {lsn} was acknowledged, the device keeps {kept}");
        }
        number
    }

    /// A write, from the queue to its answer.
    fn write(&self) -> Option<u64> {
        let record = Record::new();
        self.queue.lock().push_back(Item::Record(record.clone()));
        self.commit_all();
        self.wait_durable(&record)
    }
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

#[test]
fn group_commit_answers_all_after_flush() {
    explore(|| {
        let committer = Committer::new(u64::MAX);
        let other = committer.clone();
        let thread = thread::spawn(move || other.write());
        let numbers = [committer.write(), thread.join().unwrap()];
        assert!(numbers == [Some(1), Some(2)] || numbers == [Some(2), Some(1)], "{numbers:?}");
    });
}

#[test]
fn failed_flush_answers_all_writers_with_unknown() {
    for fails in [0, 1] {
        explore(move || {
            let committer = Committer::new(fails);
            let other = committer.clone();
            let thread = thread::spawn(move || other.write());
            let numbers = [committer.write(), thread.join().unwrap()];
            assert!(
                fails > 0 || numbers == [None, None],
                "nothing is acknowledged after a failure: {numbers:?}"
            );
            assert_eq!(committer.write().is_none(), committer.is_poisoned());
        });
    }
}

/// An apply flushes beside the committer. If its flush fails, it is unknown which of the committer's writes the device keeps.
fn a_write_beside_a_flush_that_fails(fence: fn() -> Option<Fence>) {
    explore(move || {
        let committer = Committer::with(u64::MAX, fence());
        let other = committer.clone();
        let thread = thread::spawn(move || other.fail_beside());
        let number = committer.write();
        thread.join().unwrap();
        assert!(committer.is_poisoned() && committer.write().is_none(), "{number:?}");
    });
}

#[test]
fn failed_concurrent_flush_poisons_commit() {
    a_write_beside_a_flush_that_fails(|| Some(Fence::default()));
}

/// The reason for the fence: the committer's flush succeeds after the other one failed, and it checks for poison before
/// the other thread has reported the failure.
#[test]
#[should_panic = "was acknowledged, the device keeps 0"]
fn without_fence_a_lost_write_is_acknowledged() {
    a_write_beside_a_flush_that_fails(|| None);
}

/// Two flushes succeed beside one that fails: none waits forever, and none counts too early.
#[test]
fn three_flushes_wait_for_each_other_and_end() {
    explore(|| {
        let committer = Committer::new(u64::MAX);
        let (first, second) = (committer.clone(), committer.clone());
        let failing = thread::spawn(move || first.fail_beside());
        let publish = thread::spawn(move || second.pass(|| true) && !second.is_poisoned());
        let _ = committer.write();
        failing.join().unwrap();
        let _ = publish.join().unwrap();
        assert!(committer.is_poisoned());
    });
}

/// R4: a writer that sees the new memtable comes after the marker, a writer into the old one comes before it.
#[test]
fn a_freeze_knows_every_record_of_the_memtable_that_it_froze() {
    explore(|| {
        let committer = Committer::new(u64::MAX);
        // The memtable that takes writes: 0 is frozen by the marker.
        let memtable = Arc::new(Mutex::new(0));
        let (other, others) = (committer.clone(), memtable.clone());
        let thread = thread::spawn(move || {
            let record = Record::new();
            let mine = others.lock();
            other.queue.lock().push_back(Item::Record(record.clone()));
            let written_to = *mine;
            drop(mine);
            other.commit_all();
            (written_to, other.wait_durable(&record).unwrap())
        });
        let marker = Arc::new(AtomicU64::new(UNNUMBERED));
        {
            let mut active = memtable.lock();
            committer.queue.lock().push_back(Item::Marker(marker.clone()));
            *active = 1;
        }
        committer.commit_all();
        let reached = || Some(marker.load(Ordering::Acquire)).filter(|&lsn| lsn != UNNUMBERED);
        let frozen_up_to = block_on(committer.moved.wait_until(reached));
        let (written_to, lsn) = thread.join().unwrap();
        assert_eq!(
            written_to == 0,
            lsn <= frozen_up_to,
            "memtable {written_to}, record {lsn}, marker {frozen_up_to}"
        );
    });
}

/// R17: a write that is sent twice at the same time takes effect once, and both answers follow its durability.
#[test]
fn a_repetition_joins_its_original_in_flight() {
    explore(|| {
        let committer = Committer::new(u64::MAX);
        let slot: Arc<Mutex<Option<Arc<Record>>>> = Arc::default();
        let send = |committer: &Committer, slot: &Mutex<Option<Arc<Record>>>| {
            let mut kept = slot.lock();
            let record = match &*kept {
                Some(original) => original.clone(),
                None => {
                    let record = Record::new();
                    committer.queue.lock().push_back(Item::Record(record.clone()));
                    kept.insert(record).clone()
                }
            };
            drop(kept);
            committer.commit_all();
            committer.wait_durable(&record)
        };
        let (other, others) = (committer.clone(), slot.clone());
        let thread = thread::spawn(move || send(&other, &others));
        let numbers = [send(&committer, &slot), thread.join().unwrap()];
        assert_eq!(numbers, [Some(1), Some(1)], "done once");
    });
}

/// One task at a time works with the value, and each waiting task gets it.
#[test]
fn a_token_is_handed_on() {
    explore(|| {
        let token = StdArc::new(Token::new(0));
        let other = token.clone();
        let thread = thread::spawn(move || *block_on(other.take()) += 1);
        *block_on(token.take()) += 1;
        thread.join().unwrap();
        assert_eq!(*block_on(token.take()), 2);
    });
}

/// Either the last look of a thread that falls asleep sees a change, or the change rings its bell.
#[test]
fn no_change_is_missed_by_a_thread_that_falls_asleep() {
    explore(|| {
        let sleepers = StdArc::new(Sleepers::default());
        let sleep = |sleepers: StdArc<Sleepers>| {
            let bell = StdArc::new(Bell::default());
            bell.attach();
            while sleepers.events() == 0 {
                sleepers.announce(&bell);
                if sleepers.events() == 0 {
                    bell.wait(Duration::MAX);
                }
            }
        };
        let threads = [sleepers.clone(), sleepers.clone()].map(|its| thread::spawn(move || sleep(its)));
        sleepers.happened();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Symptom: the second of two rings woke nobody, and the thread, which the first one woke, did not see the change before it.
#[test]
fn a_second_ring_is_heard_while_the_first_one_wakes() {
    explore(|| {
        let (bell, state) = (StdArc::new(Bell::default()), StdArc::new(AtomicU64::new(0)));
        let (its, seen) = (bell.clone(), state.clone());
        let thread = thread::spawn(move || {
            its.attach();
            while seen.load(Ordering::Relaxed) < 2 {
                its.wait(Duration::MAX);
            }
        });
        for change in 1..=2 {
            state.store(change, Ordering::Relaxed);
            bell.ring();
        }
        thread.join().unwrap();
    });
}
