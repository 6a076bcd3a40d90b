//! A bug in one of the store's threads, or in a caller that drives the commit: the store is read-only from then on, no caller waits
//! forever, and every acknowledged write exists, before and after a restart.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use shoal_device::{BlockDevice, Op, Submission};
use shoal_device_sim::SimDevice;
use shoal_engine::{Error, Store, block_on};
use shoal_testkit::Value;
use shoal_testkit::device::{Intercept, Intercepted};
use shoal_testkit::wait::within;

use crate::common::{self, ByName, assert_clean, blank, device, open_in_real_time, tiny, tiny_with_threads};

const BLOCKS: u64 = 4_000;
/// The log's ring, and all blocks after it.
const LOG: Range<u64> = 34..58;
const DATA: Range<u64> = 80..BLOCKS;
const WRITERS: u64 = 4;

/// A driver with a bug: a thread that asks it to write some blocks panics.
struct Faulty {
    sim: Arc<SimDevice>,
    armed: AtomicBool,
    blocks: Range<u64>,
    /// The thread that panics; any thread if none is named.
    thread: Option<&'static str>,
}

impl Faulty {
    fn look(&self, submissions: &[Submission]) {
        let is_meant = |name: &str| std::thread::current().name() == Some(name);
        let hits = |submission: &Submission| {
            submission.op() == Op::Write && self.blocks.contains(&submission.block())
        };
        if self.armed.load(Ordering::Relaxed)
            && self.thread.is_none_or(is_meant)
            && submissions.iter().any(hits)
        {
            panic!("the driver has an error");
        }
    }
}

impl Intercept for Faulty {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.sim
    }

    fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        self.look(&submissions);
        submissions
    }
}

fn put(store: &Store, which: u64, seed: u64) -> shoal_engine::Result<Value> {
    let value = Value { key: which, seed, bytes: [60, 1_500, 9_000][(seed % 3) as usize] };
    let name = format!("key/{which}");
    store.set(name, value.to_vec())?;
    Ok(value)
}

/// Checks that the key has its newest acknowledged value, or the next one, whose outcome is unknown.
fn check(store: &Store, which: u64, acknowledged: u64) {
    let name = format!("key/{which}");
    let object = store.find(&name).unwrap().unwrap();
    let bytes = object.value.to_vec();
    let is = |seed: u64| {
        Value { key: which, seed, bytes: [60, 1_500, 9_000][(seed % 3) as usize] }.check(&bytes).is_ok()
    };
    assert!(is(acknowledged) || is(acknowledged + 1), "key {which}: neither {acknowledged} nor the next");
}

/// Writers continue until each has an error (or panicked itself, in the driver).
fn breaks(blocks: Range<u64>, thread: Option<&'static str>) {
    let (sim, _) = blank(BLOCKS, 5);
    let armed = AtomicBool::new(false);
    let (faulty, faulty_device) = Intercepted::new(Faulty { sim: sim.clone(), armed, blocks, thread });
    let store = open_in_real_time(&faulty_device, tiny_with_threads());
    let begun = Barrier::new(WRITERS as usize);
    let newest: Vec<u64> = std::thread::scope(|scope| {
        let writer = |which: u64| {
            let (store, faulty, begun) = (&store, &faulty, &begun);
            move || {
                for seed in 0.. {
                    if seed == 40 {
                        // Each has written by then, even on a busy machine.
                        begun.wait();
                        faulty.armed.store(true, Ordering::Relaxed);
                    }
                    match catch_unwind(AssertUnwindSafe(|| put(store, which, seed))) {
                        Ok(Ok(_)) => {}
                        Ok(Err(Error::Poisoned(_) | Error::Unknown(_))) | Err(_) => return seed - 1,
                        Ok(Err(error)) => panic!("writer {which}: {error}"),
                    }
                }
                unreachable!("a writer ends with an error");
            }
        };
        let threads: Vec<_> = (0..WRITERS).map(|which| scope.spawn(writer(which))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let reason = store.stat().poisoned.expect("it is poisoned");
    assert!(reason.contains("error of the program"), "{reason}");
    if let Some(thread) = thread {
        assert!(reason.contains(thread), "{reason}");
        // The thread that writes a batch poisons the store before its panic message is known.
        let is_of_a_batch = reason.ends_with("while it wrote a batch");
        assert!(is_of_a_batch || reason.contains("the driver has an error"), "{reason}");
    }
    assert!(matches!(put(&store, 99, 1), Err(Error::Poisoned(_))));
    (0..WRITERS).for_each(|which| check(&store, which, newest[which as usize]));
    block_on(store.close()).unwrap();
    drop(store);
    let store = common::open(&device(&sim), tiny()).unwrap();
    (0..WRITERS).for_each(|which| check(&store, which, newest[which as usize]));
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device(&sim), "after a restart");
}

#[test]
fn the_apply_thread_panics() {
    within("writers behind an apply that panicked", || breaks(DATA, Some("shoal-apply")));
}

/// An apply queues the marker of the memtable that it freezes, and drives the commit itself if no other thread does: its thread then also
/// writes the values of the batch to the data blocks. The reason named no thread then, so the test above failed whenever the apply drove
/// the commit.
#[test]
fn the_apply_thread_panics_while_it_leads_a_commit() {
    within("writers of a batch whose driver is an apply", || breaks(LOG, Some("shoal-apply")));
}

#[test]
fn the_commit_thread_panics() {
    within("writers of a batch whose thread panicked", || breaks(LOG, Some("shoal-commit")));
}

#[test]
fn the_driver_of_a_batch_panics() {
    within("writers of a batch whose driver panicked", || breaks(LOG, None));
}
