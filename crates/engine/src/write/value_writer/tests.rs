//! Streams of every length; devices that hold their writes or fail them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use shoal_base::BLOCK_BYTES;
use shoal_device::{BlockDevice, Op, Submission};
use shoal_device_sim::{Fault, FaultOp, Image, SimDevice};
use shoal_space_manager::RUNS_MAX;
use shoal_testkit::bytes::patterned;
use shoal_testkit::device::{Intercept, Intercepted, quiet};
use shoal_testkit::task::poll_once;

use super::*;
use crate::store::shared_steps::{SHARED_STEPS_MAX, SHARED_STEPS_OF_ONE_MAX, SharedStep};
use crate::testing::fixtures::{Fixture, environment, get, key, open_in, options};
use crate::{ByteRange, FormatOptions, OpenOptions, block_on};

/// The value of an object of any length.
fn read(store: &Store, key: &ObjectKey) -> Vec<u8> {
    block_on(async {
        let mut reader = store.get_stream(key, ByteRange::ALL).await.unwrap().unwrap();
        let mut value = Vec::new();
        while let Some(piece) = reader.next().await.unwrap() {
            piece.chunks().for_each(|chunk| value.extend_from_slice(chunk));
        }
        value
    })
}

/// A device that holds its writes while a test wants it.
struct HeldWrites {
    sim: Arc<SimDevice>,
    holds: AtomicBool,
    held: Mutex<Vec<Submission>>,
}

impl Intercept for HeldWrites {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.sim
    }

    fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        if !self.holds.load(Ordering::Relaxed) {
            return submissions;
        }
        let (writes, others): (Vec<_>, Vec<_>) =
            submissions.into_iter().partition(|submission| submission.op() == Op::Write);
        self.held.lock().extend(writes);
        others
    }

    fn execute(&self, submissions: Vec<Submission>) {
        self.sim.execute(submissions);
    }
}

/// A store on a device that holds its writes, whose streams share all steps.
fn with_held_writes() -> (Arc<Intercepted<HeldWrites>>, Store) {
    with_cache(256 << 20)
}

fn with_cache(cache_bytes: usize) -> (Arc<Intercepted<HeldWrites>>, Store) {
    const BLOCKS: u64 = 16_384;
    let sim = quiet(Image::new(BLOCKS));
    let held = HeldWrites { sim, holds: AtomicBool::new(false), held: Mutex::default() };
    let (held, device) = Intercepted::new(held);
    block_on(Store::format(&device, &FormatOptions::for_blocks(BLOCKS), &environment())).unwrap();
    let store = open_in(&device, OpenOptions { cache_bytes, ..options() }, environment());
    (held, store)
}

/// Takes steps that streams share.
fn take_steps(store: &Store, count: usize) -> Vec<SharedStep> {
    (0..count).map(|_| SharedStep::try_take(store).unwrap()).collect()
}

/// A stream that writes `value`, and the bytes that it has taken.
fn writing<'a>(
    mut stream: ValueWriter,
    value: &'a [u8],
    taken: &'a AtomicUsize,
) -> std::pin::Pin<Box<impl Future<Output = ()> + 'a>> {
    Box::pin(async move {
        for piece in value.chunks(10_000) {
            stream.write(piece).await.unwrap();
            taken.fetch_add(piece.len(), Ordering::Relaxed);
        }
        stream.finish().await.unwrap();
    })
}

/// If the others have all that streams share, a stream takes bytes of one step while the device writes another one.
#[test]
fn a_stream_has_two_steps_in_memory() {
    for length in [None, Some(3 << 20)] {
        let (held, store) = with_held_writes();
        let value = patterned(3 << 20, 5);
        let mut stream = store.put_stream(&key("long"), PutOptions::default()).unwrap();
        if let Some(bytes) = length {
            stream = stream.with_length(bytes);
        }
        let _others = take_steps(&store, SHARED_STEPS_MAX);
        assert!(SharedStep::try_take(&store).is_none());
        held.holds.store(true, Ordering::Relaxed);
        let taken = AtomicUsize::new(0);
        let mut writing = writing(stream, &value, &taken);
        let mut steps = 0;
        while poll_once(writing.as_mut()).is_pending() {
            let taken = taken.load(Ordering::Relaxed);
            assert!(taken <= (steps + 2) * STEP_BYTES, "{taken} bytes were taken, and {steps} steps written");
            let writes = std::mem::take(&mut *held.held.lock());
            let blocks: usize = writes.iter().map(|write| write.blocks() as usize).sum();
            assert!(blocks * BLOCK_BYTES <= STEP_BYTES, "one step is written at a time");
            steps += 1;
            held.sim.submit(writes);
        }
        assert!(steps >= value.len() / STEP_BYTES, "it waited for each step");
        drop(writing);
        held.holds.store(false, Ordering::Relaxed);
        assert!(read(&store, &key("long")) == value);
    }
}

/// While the device holds everything, a stream takes its part of the shared steps, gives them back once they are written, and a dropped
/// one gives back all.
#[test]
fn streams_share_steps() {
    let (held, store) = with_held_writes();
    let value = patterned(6 << 20, 5);
    held.holds.store(true, Ordering::Relaxed);
    let taken: [AtomicUsize; 5] = std::array::from_fn(|_| AtomicUsize::new(0));
    let mut streams: Vec<_> = taken
        .iter()
        .enumerate()
        .map(|(number, taken)| {
            let stream = store.put_stream(&key(number.to_string()), PutOptions::default()).unwrap();
            writing(stream, &value, taken)
        })
        .collect();
    let steps_of = |stream: usize| taken[stream].load(Ordering::Relaxed).div_ceil(STEP_BYTES);
    for (number, stream) in streams.iter_mut().enumerate() {
        assert!(poll_once(stream.as_mut()).is_pending());
        let shared = SHARED_STEPS_OF_ONE_MAX.min(SHARED_STEPS_MAX - number * SHARED_STEPS_OF_ONE_MAX);
        assert_eq!(steps_of(number), 2 + shared, "stream {number}");
    }
    let mut count = 0;
    while poll_once(streams[0].as_mut()).is_pending() {
        held.sim.submit(std::mem::take(&mut *held.held.lock()));
        count += 1;
        assert!(count < 100, "it comes to its end");
    }
    assert_eq!(take_steps(&store, SHARED_STEPS_OF_ONE_MAX).len(), SHARED_STEPS_OF_ONE_MAX, "given back");
    drop(streams);
    take_steps(&store, SHARED_STEPS_MAX);
    held.holds.store(false, Ordering::Relaxed);
    held.sim.submit(std::mem::take(&mut *held.held.lock()));
    assert!(read(&store, &key("0")) == value);
}

/// A store with a small cache has less memory for streams.
#[test]
fn a_small_store_shares_a_32nd_of_its_cache() {
    for (cache_mib, steps) in [(1, 0), (16, 2), (64, 8), (512, SHARED_STEPS_MAX)] {
        let (_, store) = with_cache(cache_mib << 20);
        let _all = take_steps(&store, steps);
        assert!(SharedStep::try_take(&store).is_none(), "{cache_mib} MiB");
    }
}

/// A stream that has become slow has no more than its two steps.
#[test]
fn a_slow_stream_returns_shared_steps() {
    let (held, store) = with_held_writes();
    let value = patterned(3 << 20, 5);
    let mut stream = store.put_stream(&key("slow"), PutOptions::default()).unwrap();
    let (fast, slow) = value.split_at(6 * STEP_BYTES);
    held.holds.store(true, Ordering::Relaxed);
    block_on(stream.write(fast)).unwrap();
    assert!(SharedStep::try_take(&store).is_some());
    let others = take_steps(&store, SHARED_STEPS_MAX - 4);
    assert!(SharedStep::try_take(&store).is_none(), "the stream has four: two of its six steps are its own");
    held.holds.store(false, Ordering::Relaxed);
    held.sim.submit(std::mem::take(&mut *held.held.lock()));
    block_on(stream.write(&slow[..STEP_BYTES])).unwrap();
    let returned = take_steps(&store, 4);
    drop((others, returned));
    block_on(async {
        stream.write(&slow[STEP_BYTES..]).await.unwrap();
        stream.finish().await.unwrap();
    });
    assert!(read(&store, &key("slow")) == value);
}

/// Values whose length is around that of steps, units, blocks and claims, in pieces of any size, with short and long metadata.
#[test]
fn values_of_all_lengths_come_back_and_no_block_stays_taken() {
    let mut made = Fixture::with_blocks(32_768);
    made.publish();
    let store = made.open().unwrap();
    let free = || store.0.space.allocator().free_blocks();
    let long = Metadata { user: vec![("name".to_owned(), vec![1; 2_000].into())], ..Metadata::default() };
    let lengths = [0, 1, 2, 5, 16, 17, 33].map(|steps| steps * STEP_BYTES);
    for (seed, length) in lengths
        .iter()
        .flat_map(|length| [length.saturating_sub(1), *length, length + 1, length + 70_000])
        .enumerate()
    {
        let value = patterned(length, seed);
        for (is_known, metadata) in
            [(false, Metadata::default()), (true, Metadata::default()), (true, long.clone())]
        {
            let before = free();
            let put = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
            let mut stream = store.put_stream(&key("k"), put).unwrap();
            if is_known {
                stream = stream.with_length(length as u64);
            }
            for piece in value.chunks(1 + (seed * 99_991 + 70_000) % 600_000) {
                block_on(stream.write(piece)).unwrap();
            }
            block_on(stream.finish()).unwrap();
            assert!(read(&store, &key("k")) == value, "{length} {is_known}");
            assert_eq!(block_on(store.head(&key("k"))).unwrap().unwrap().metadata, metadata);
            // The manifest has a block, and the metadata at most one.
            let taken = before - free();
            assert!(taken <= length.div_ceil(BLOCK_BYTES) as u64 + 2, "{taken} blocks for {length} bytes");
            block_on(store.delete(&key("k"), RejectRules::default())).unwrap();
            block_on(store.0.checkpointer.apply_all()).unwrap();
        }
    }
    block_on(store.close()).unwrap();
    assert!(made.check(false).is_clean());
}

#[test]
fn a_value_has_the_length_that_was_announced() {
    let mut made = Fixture::with_blocks(8_192);
    made.publish();
    let store = made.open().unwrap();
    for length in [10_u64, STEP_BYTES as u64 + 10] {
        let value = vec![7; length as usize];
        let begin = || store.put_stream(&key("k"), PutOptions::default()).unwrap().with_length(length);
        let mut longer = begin();
        block_on(longer.write(&value)).unwrap();
        assert!(matches!(block_on(longer.write(&[1])), Err(Error::Invalid(_))));
        let mut shorter = begin();
        block_on(shorter.write(&value[1..])).unwrap();
        assert!(matches!(block_on(shorter.finish()), Err(Error::Invalid(_))));
    }
    assert!(get(&store, &key("k")).unwrap().is_none());
}

/// A caller that does not look at the error of a write must not store the rest as the value.
#[test]
fn a_stream_whose_write_failed_stores_nothing() {
    let mut made = Fixture::with_blocks(8_192);
    made.publish();
    let store = made.open().unwrap();
    let mut stream = store.put_stream(&key("k"), PutOptions::default()).unwrap();
    block_on(stream.write(&vec![1; 2 * STEP_BYTES])).unwrap();
    made.sim.inject(Fault::fail(FaultOp::Write, 5));
    let failed = (0..4).filter(|_| block_on(stream.write(&vec![1; STEP_BYTES])).is_err()).count();
    assert_eq!(failed, 1);
    assert!(block_on(stream.finish()).is_err());
    assert!(get(&store, &key("k")).unwrap().is_none());
}

/// Limits that no test reaches with real bytes.
#[test]
fn a_value_that_is_too_long_or_in_too_many_runs_is_refused() {
    let mut made = Fixture::with_blocks(8_192);
    made.publish();
    let store = made.open().unwrap();
    let free = store.0.space.allocator().free_blocks();
    let key = ObjectKey::new("default", b"1").unwrap();
    let begin = || store.put_stream(&key, PutOptions::default()).unwrap();
    let mut stream = begin();
    stream.taken = VALUE_BYTES_MAX - 10;
    block_on(stream.write(&[1; 10])).unwrap();
    let refused = block_on(stream.write(&[1]));
    assert!(
        matches!(&refused, Err(Error::Invalid(why)) if why.contains("the value has at most")),
        "{refused:?}"
    );
    drop(stream);

    let mut stream = begin();
    block_on(stream.write(&[1; STEP_BYTES])).unwrap();
    stream.placing.get_or_insert_default().pretend_runs(RUNS_MAX as u64);
    let refused = block_on(stream.write(&[1]));
    assert!(matches!(refused, Err(Error::Full { needed: 64, .. })), "{refused:?}");
    drop(stream);
    assert_eq!(store.0.space.allocator().free_blocks(), free, "all blocks that it took are free again");
    assert!(block_on(store.get(&key, ByteRange::ALL)).unwrap().is_none());
}

/// The ETag of S3 follows from the bytes.
#[test]
fn metadata_and_rules_may_be_set_after_the_bytes() {
    let mut made = Fixture::with_blocks(16_384);
    made.publish();
    let store = made.open().unwrap();
    let of_type = |content_type: &str| Metadata { content_type: content_type.into(), ..Metadata::default() };
    for (number, bytes) in [100, STEP_BYTES, STEP_BYTES + 100_000].into_iter().enumerate() {
        let key = ObjectKey::new("default", &[number as u8]).unwrap();
        let before = PutOptions { metadata: of_type("before"), ..PutOptions::default() };
        let mut stream = store.put_stream(&key, before).unwrap();
        block_on(stream.write(&vec![7; bytes])).unwrap();
        assert!(stream.set_metadata(of_type(&"x".repeat(256))).is_err());
        stream.set_metadata(of_type("after")).unwrap();
        stream.set_rules(RejectRules { if_exists: true, ..RejectRules::default() });
        block_on(stream.finish()).unwrap();
        let info = block_on(store.head(&key)).unwrap().unwrap();
        assert_eq!((info.metadata, info.bytes), (of_type("after"), bytes as u64));
        let mut stream = store.put_stream(&key, PutOptions::default()).unwrap();
        stream.set_rules(RejectRules { if_exists: true, ..RejectRules::default() });
        assert!(matches!(block_on(stream.finish()), Err(Error::ConditionFailed { .. })));
    }
    let key = ObjectKey::new("default", b"long").unwrap();
    let user = vec![("name".to_owned(), vec![1; 2_000].into())];
    let long = Metadata { user, ..Metadata::default() };
    let mut stream =
        store.put_stream(&key, PutOptions { metadata: long.clone(), ..PutOptions::default() }).unwrap();
    block_on(stream.write(&vec![7; STEP_BYTES])).unwrap();
    assert!(stream.set_metadata(of_type("after")).is_err(), "it is on the device");
    block_on(stream.finish()).unwrap();
    assert_eq!(block_on(store.head(&key)).unwrap().unwrap().metadata, long);
}
