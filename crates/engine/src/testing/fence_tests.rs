//! A commit beside a flush whose failure is not known yet (R20), step by step on one thread.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use shoal_base::{Lsn, TabletId};
use shoal_device::{BlockDevice, Op, Submission};
use shoal_device_sim::{Fault, FaultOp, Image, SimDevice, SimOptions};
use shoal_log::format::{RecordKind, encode_record};
use shoal_log::{Item, QueuedBatch, Record};
use shoal_tablets::checkpoint::publish::Publication;
use shoal_testkit::device::{Intercept, Intercepted};
use shoal_testkit::task::{Wakes, poll_once};

use crate::testing::fixtures::{environment, open_in, options};
use crate::{Error, FormatOptions, Store, block_on};

const BLOCKS: u64 = 256;
const EIO: i32 = 5;

/// A device that holds its requests back until the test releases them.
struct HoldingDevice {
    sim: Arc<SimDevice>,
    holds: AtomicBool,
    waiting: Mutex<Vec<Submission>>,
}

impl HoldingDevice {
    /// Polls `work` and releases its requests, up to the first one of this kind.
    fn up_to<F: Future>(&self, mut work: Pin<&mut F>, wanted: Op) -> Submission {
        loop {
            assert!(poll_once(work.as_mut()).is_pending(), "it ended without a {}", wanted.name());
            for submission in std::mem::take(&mut *self.waiting.lock()) {
                if submission.op() == wanted {
                    return submission;
                }
                self.sim.submit(vec![submission]);
            }
        }
    }
}

impl Intercept for HoldingDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.sim
    }

    fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        if !self.holds.load(Ordering::Relaxed) {
            return submissions;
        }
        self.waiting.lock().extend(submissions);
        Vec::new()
    }

    fn execute(&self, submissions: Vec<Submission>) {
        self.sim.execute(submissions);
    }
}

fn opened(growable: bool) -> (Arc<Intercepted<HoldingDevice>>, Store) {
    let recording = SimOptions { record: false, growable, ..SimOptions::default() };
    let sim = SimDevice::with_options(Image::new(BLOCKS), recording);
    let (held, device) =
        Intercepted::new(HoldingDevice { sim, holds: AtomicBool::new(false), waiting: Mutex::default() });
    let mut format =
        FormatOptions { tablets: 1, log_blocks: Some(16), ..FormatOptions::for_blocks(BLOCKS * 2) };
    format.initial_blocks = Some(BLOCKS);
    if !growable {
        format = FormatOptions { tablets: 1, log_blocks: Some(16), ..FormatOptions::for_blocks(BLOCKS) };
    }
    block_on(Store::format(&device, &format, &environment())).unwrap();
    (held, open_in(&device, options(), environment()))
}

/// Queues a record as a write does.
fn queue(store: &Store) -> Arc<Record> {
    let encoded = encode_record(RecordKind::Delete, TabletId(0), b"default\0key", &[], false);
    let record = Arc::new(Record::new(encoded));
    assert!(store.0.log.committer.ring.reserve(1), "there is room");
    let batch =
        QueuedBatch { records: smallvec::SmallVec::from_iter([record.clone()]), ..QueuedBatch::default() };
    store.0.log.committer.submit(Item::Writes { batch, reserved: 1 });
    record
}

/// The flush of a publish failed in the device, and its thread has not reported that. A commit's durable write beside
/// it succeeds. The failed flush may have lost its data, so the record is not acknowledged.
#[test]
fn a_commit_waits_for_a_flush_beside_it_and_shares_its_failure() {
    let (held, store) = opened(false);
    held.holds.store(true, Ordering::Relaxed);
    let mut publish = pin!(store.0.checkpointer.publish(Publication::default()));
    let failing = held.up_to(publish.as_mut(), Op::Flush);
    let record = queue(&store);
    let mut commit = pin!(store.0.log.committer.commit_all());
    let durable = held.up_to(commit.as_mut(), Op::WriteDurable);
    held.sim.submit(vec![durable]);
    assert!(poll_once(commit.as_mut()).is_pending(), "it is answered before the flush beside it");
    assert!(!record.is_durable(store.0.log.committer.durable()));
    failing.fail(&std::io::Error::from_raw_os_error(EIO));
    assert!(matches!(poll_once(publish.as_mut()), Poll::Ready(Err(Error::Io(_)))));
    assert!(poll_once(commit.as_mut()).is_ready());
    let answer = block_on(store.0.log.committer.wait_durable(&record));
    assert!(matches!(answer, Err(Error::Unknown(_))), "{answer:?}");
}

/// Both flushes succeed. The commit does not wait for a flush that started after its own flush completed.
#[test]
fn a_commit_goes_on_when_the_flushes_before_its_end_ended_well() {
    let (held, store) = opened(false);
    held.holds.store(true, Ordering::Relaxed);
    let mut publish = pin!(store.0.checkpointer.publish(Publication::default()));
    let flush = held.up_to(publish.as_mut(), Op::Flush);
    let record = queue(&store);
    let mut commit = pin!(store.0.log.committer.commit_all());
    let durable = held.up_to(commit.as_mut(), Op::WriteDurable);
    held.sim.submit(vec![durable]);
    assert!(poll_once(commit.as_mut()).is_pending());
    held.sim.submit(vec![flush]);
    // The superblock's own flush starts now.
    let last = held.up_to(publish.as_mut(), Op::Flush);
    assert!(poll_once(commit.as_mut()).is_ready(), "it began later");
    assert_eq!(block_on(store.0.log.committer.wait_durable(&record)).unwrap(), Lsn(1));
    held.sim.submit(vec![last]);
    assert!(matches!(poll_once(publish.as_mut()), Poll::Ready(Ok(_))));
}

/// A failed flush during a growth of the file poisons the store like any other: it may have lost a commit's data.
#[test]
fn a_flush_that_fails_while_the_file_grows_poisons() {
    let (held, store) = opened(true);
    held.sim.inject(Fault::fail(FaultOp::Flush, EIO));
    let grown = block_on(store.0.checkpointer.grow(0));
    assert!(matches!(grown, Err(Error::Io(_))), "{grown:?}");
    assert!(matches!(store.0.check_writable(), Err(Error::Poisoned(_))));
    let record = queue(&store);
    block_on(store.0.log.committer.commit_all());
    let answer = block_on(store.0.log.committer.wait_durable(&record));
    assert!(matches!(answer, Err(Error::Unknown(_))), "{answer:?}");
}

/// A thread that commits panics in the middle of a batch. A writer that waits for room gets an error: no thread
/// makes room in a read-only store, so it would wait for ever.
#[test]
fn a_driver_that_panics_leaves_no_writer_waiting_for_room() {
    let (held, store) = opened(false);
    held.holds.store(true, Ordering::Relaxed);
    let committer = &store.0.log.committer;
    let (wakes, waker) = Wakes::new();
    let mut waiting = pin!(committer.moved.wait_until(|| store.0.check_writable().err()));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let record = queue(&store);
    let mut commit = Box::pin(committer.commit_all());
    let _write = held.up_to(commit.as_mut(), Op::WriteDurable);
    assert_eq!(wakes.count(), 0);
    // As a panic does.
    drop(commit);
    assert!(wakes.count() > 0);
    assert!(matches!(poll_once(waiting), Poll::Ready(Error::Poisoned(_))));
    assert!(matches!(block_on(committer.wait_durable(&record)), Err(Error::Unknown(_))));
}

/// A caller drives, waits for a flush beside its batch, and is dropped there, as a part of a transaction is if another
/// one failed. The batch is completed, and every writer with a record in it gets its answer.
#[test]
fn a_caller_that_is_dropped_while_it_leads_leaves_nobody_waiting() {
    let (_held, store) = opened(false);
    let [(ended, ending), (began, begun)] = [(); 2].map(|()| std::sync::mpsc::channel::<()>());
    let beside = store.clone();
    let flush = std::thread::spawn(move || {
        let flush = async {
            began.send(()).unwrap();
            // Waits until the test has had time to drop the caller.
            let _ = ending.recv_timeout(Duration::from_millis(200));
            Ok(())
        };
        block_on(beside.0.log.poison.flushed(flush))
    });
    begun.recv().unwrap();
    let record = queue(&store);
    let key = crate::ObjectKey::new("default", b"another").unwrap();
    block_on(poll_fn(|context| {
        let put = store.put(&key, vec![1; 100].into(), crate::PutOptions::default());
        let _ = pin!(put).poll(context);
        Poll::Ready(())
    }));
    drop(ended);
    flush.join().unwrap().unwrap();
    let (sender, answer) = std::sync::mpsc::channel();
    let waiting = store.clone();
    std::thread::spawn(move || sender.send(block_on(waiting.0.log.committer.wait_durable(&record))));
    let answer = answer.recv_timeout(Duration::from_secs(60)).expect("a record is left in no batch");
    assert_eq!(answer.unwrap(), Lsn(1));
    assert!(store.0.check_writable().is_ok());
}

/// The driver itself is dropped, which no code does: no record is written after its batch, and no writer waits for
/// ever.
#[test]
fn a_leader_that_is_dropped_poisons() {
    let (held, store) = opened(false);
    held.holds.store(true, Ordering::Relaxed);
    let record = queue(&store);
    {
        let mut commit = pin!(store.0.log.committer.commit_all());
        held.up_to(commit.as_mut(), Op::WriteDurable);
    }
    let answer = block_on(store.0.log.committer.wait_durable(&record));
    assert!(matches!(answer, Err(Error::Unknown(_))), "{answer:?}");
    assert!(matches!(store.0.check_writable(), Err(Error::Poisoned(_))));
}
