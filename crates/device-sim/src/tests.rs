//! The crash states against a second, naive reading of the device model, and the device's faults and times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use shoal_base::BLOCK_BYTES;
use shoal_base::task::block_on;

use super::choice::{SECTOR_BYTES, SECTORS};
use super::*;
use shoal_device::{BlockDevice, Device, DeviceError, IoBuf};

/// A block that differs from every other `tag` in all sectors.
fn full(tag: u8) -> Arc<Block> {
    Arc::new([tag; BLOCK_BYTES])
}

/// A block that differs from every other `tag` in its first sector only.
fn thin(tag: u8) -> Arc<Block> {
    let mut block = [0; BLOCK_BYTES];
    block[..SECTOR_BYTES].fill(tag);
    Arc::new(block)
}

/// The first byte of every block, for each state, with the number of marks before.
fn first_bytes(history: &DeviceHistory) -> BTreeSet<(usize, Vec<u8>)> {
    let mut states = BTreeSet::new();
    history.for_each_crash_state(4096, 1, |point, image| {
        let bytes = (0..image.blocks()).map(|block| image.block(block)[0]).collect();
        states.insert((point.marks.len(), bytes));
    });
    states
}

/// The first bytes that are possible once `marks` marks were set.
fn possible(history: &DeviceHistory, marks: usize) -> BTreeSet<Vec<u8>> {
    first_bytes(history).into_iter().filter(|(seen, _)| *seen == marks).map(|(_, bytes)| bytes).collect()
}

fn set<const N: usize, const M: usize>(states: [[u8; N]; M]) -> BTreeSet<Vec<u8>> {
    states.into_iter().map(|state| state.to_vec()).collect()
}

fn write(history: &mut DeviceHistory, kind: WriteKind, block: u64, data: Arc<Block>) {
    let number = history.begin_write(kind, block, vec![data]);
    history.end_write(number, true);
}

fn flush(history: &mut DeviceHistory) {
    let number = history.begin_flush();
    history.end_flush(number, true);
}

#[test]
fn write_tears_in_every_way() {
    let mut history = DeviceHistory::new(Image::new(1));
    write(&mut history, WriteKind::Plain, 0, full(1));
    let (mut whole, mut torn_inside) = (BTreeSet::new(), 0);
    history.for_each_crash_state(256, 7, |_, image| {
        let sectors: Vec<&[u8]> = image.block(0).chunks(SECTOR_BYTES).collect();
        if sectors.iter().any(|sector| sector.iter().any(|&byte| byte != sector[0])) {
            torn_inside += 1;
        } else {
            whole.insert(sectors.iter().map(|sector| sector[0]).collect::<Vec<u8>>());
        }
    });
    assert_eq!(whole.len(), 1 << SECTORS);
    assert!(torn_inside > 0);
}

#[test]
fn a_flushed_write_is_never_missing_and_an_unflushed_one_may_be() {
    let mut history = DeviceHistory::new(Image::new(2));
    write(&mut history, WriteKind::Plain, 0, thin(1));
    history.mark(1);
    flush(&mut history);
    write(&mut history, WriteKind::Plain, 1, thin(2));
    history.mark(2);
    assert_eq!(possible(&history, 0), set([[0, 0], [1, 0]]));
    assert_eq!(possible(&history, 1), set([[0, 0], [1, 0], [1, 2]]));
    assert_eq!(possible(&history, 2), set([[1, 0], [1, 2]]));
}

#[test]
fn durable_write_covers_only_itself() {
    let mut history = DeviceHistory::new(Image::new(2));
    write(&mut history, WriteKind::Plain, 0, thin(1));
    write(&mut history, WriteKind::Durable, 1, thin(2));
    history.mark(1);
    assert_eq!(possible(&history, 1), set([[0, 2], [1, 2]]));
}

#[test]
fn flush_covers_only_writes_completed_before() {
    let mut history = DeviceHistory::new(Image::new(2));
    let early = history.begin_write(WriteKind::Plain, 0, vec![thin(1)]);
    let late = history.begin_write(WriteKind::Plain, 1, vec![thin(2)]);
    history.end_write(early, true);
    let number = history.begin_flush();
    history.end_write(late, true);
    history.end_flush(number, true);
    history.mark(1);
    assert_eq!(possible(&history, 1), set([[1, 0], [1, 2]]));
}

#[test]
fn unfinished_flush_promises_nothing() {
    let mut history = DeviceHistory::new(Image::new(1));
    write(&mut history, WriteKind::Plain, 0, thin(1));
    history.begin_flush();
    history.mark(1);
    assert_eq!(possible(&history, 1), set([[0], [1]]));
}

#[test]
fn flush_after_failed_flush_does_not_save_its_writes() {
    let mut history = DeviceHistory::new(Image::new(2));
    write(&mut history, WriteKind::Plain, 0, thin(1));
    let number = history.begin_flush();
    history.end_flush(number, false);
    write(&mut history, WriteKind::Plain, 1, thin(2));
    flush(&mut history);
    history.mark(1);
    assert_eq!(possible(&history, 1), set([[0, 2], [1, 2]]));
    // Written again and flushed, it is durable.
    write(&mut history, WriteKind::Plain, 0, thin(3));
    flush(&mut history);
    history.mark(2);
    assert_eq!(possible(&history, 2), set([[3, 2]]));
}

/// Two flushes at a time: a failure of the younger one does not affect the older one.
#[test]
fn concurrent_successful_flush_still_counts() {
    let mut history = DeviceHistory::new(Image::new(1));
    write(&mut history, WriteKind::Plain, 0, thin(1));
    let (older, younger) = (history.begin_flush(), history.begin_flush());
    history.end_flush(younger, false);
    history.end_flush(older, true);
    history.mark(1);
    assert_eq!(possible(&history, 1), set([[1]]));
    // In the other order it does not help.
    write(&mut history, WriteKind::Plain, 0, thin(2));
    let (older, younger) = (history.begin_flush(), history.begin_flush());
    history.end_flush(older, false);
    history.end_flush(younger, true);
    history.mark(2);
    assert_eq!(possible(&history, 2), set([[1], [2]]));
}

#[test]
fn a_failed_write_may_land_until_it_is_overwritten() {
    let mut history = DeviceHistory::new(Image::new(1));
    let failed = history.begin_write(WriteKind::Plain, 0, vec![thin(1)]);
    history.end_write(failed, false);
    flush(&mut history);
    history.mark(1);
    assert_eq!(possible(&history, 1), set([[0], [1]]));
    write(&mut history, WriteKind::Durable, 0, thin(2));
    history.mark(2);
    assert_eq!(possible(&history, 2), set([[2]]));
}

#[test]
fn of_overlapping_writes_either_may_win() {
    let mut history = DeviceHistory::new(Image::new(1));
    let first = history.begin_write(WriteKind::Plain, 0, vec![thin(1)]);
    let second = history.begin_write(WriteKind::Plain, 0, vec![thin(2)]);
    history.end_write(first, true);
    history.end_write(second, true);
    flush(&mut history);
    history.mark(1);
    assert_eq!(possible(&history, 1), set([[1], [2]]));
}

#[test]
fn any_unflushed_version_may_survive() {
    let mut history = DeviceHistory::new(Image::new(1));
    for tag in 1..=3 {
        write(&mut history, WriteKind::Plain, 0, thin(tag));
    }
    history.mark(1);
    assert_eq!(possible(&history, 1), set([[0], [1], [2], [3]]));
}

#[test]
fn no_flush_settles_a_discard() {
    let mut history = DeviceHistory::new(Image::from_bytes(&full(9)[..]));
    write(&mut history, WriteKind::Discard, 0, thin(1));
    flush(&mut history);
    history.mark(1);
    assert_eq!(possible(&history, 1), set([[9], [1]]));
}

#[test]
fn new_length_needs_flush_or_durable_write_beyond_old_end() {
    let mut history = DeviceHistory::new(Image::new(1));
    history.grew(2);
    history.mark(1);
    write(&mut history, WriteKind::Plain, 1, thin(1));
    history.mark(2);
    flush(&mut history);
    history.mark(3);
    history.grew(4);
    write(&mut history, WriteKind::Durable, 2, thin(2));
    history.mark(4);
    let both = |short: &[u8], long: &[u8]| BTreeSet::from([short.to_vec(), long.to_vec()]);
    assert_eq!(possible(&history, 1), [vec![0], vec![0, 0], vec![0, 1]].into());
    assert_eq!(possible(&history, 2), [vec![0], vec![0, 0], vec![0, 1]].into());
    assert!(possible(&history, 3).contains(&vec![0, 1]));
    assert!(!possible(&history, 3).contains(&vec![0, 0]));
    assert_eq!(possible(&history, 4), both(&[0, 1, 2], &[0, 1, 2, 0]));
}

#[test]
fn every_state_can_be_shown_again() {
    let mut history = DeviceHistory::new(Image::new(40));
    for block in 0..30 {
        write(&mut history, WriteKind::Plain, block, full(block as u8 + 1));
    }
    history.mark(1);
    let mut states = Vec::new();
    history.for_each_crash_state(20, 0xABC, |point, image| states.push((point.id, point.marks.len(), image)));
    assert!(states.len() > 500, "{} states", states.len());
    for (id, marks, image) in states.iter().step_by(29) {
        let id: StateId = id.to_string().parse().unwrap();
        let (point, again) = history.crash_state(id).unwrap();
        assert_eq!((point.marks.len(), &again), (*marks, image));
    }
    assert!("1:2:3".parse::<StateId>().is_err());
    assert!(history.crash_state("9999:0:20:abc".parse().unwrap()).is_none());
}

#[test]
fn a_sample_has_the_extremes_and_never_more_than_its_limit() {
    let mut history = DeviceHistory::new(Image::new(100));
    for block in 0..100 {
        write(&mut history, WriteKind::Plain, block, full(1));
    }
    history.mark(1);
    let (mut landed, mut per_point) = (BTreeSet::new(), BTreeMap::<usize, usize>::new());
    history.for_each_crash_state(64, 3, |point, image| {
        *per_point.entry(point.index).or_default() += 1;
        if point.marks.len() == 1 {
            landed.insert((0..100).filter(|&block| image.block(block) == &*full(1)).collect::<Vec<u64>>());
        }
    });
    assert!(per_point.values().all(|&count| count <= 64));
    assert_eq!(per_point[&201], 64);
    let all: Vec<u64> = (0..100).collect();
    for extreme in [&all[..0], &all[..], &all[1..], &all[..99], &all[99..]] {
        assert!(landed.contains(extreme), "{extreme:?} is missing");
    }
}

/// The model again, from the other side: for every write the time when it became durable, for every moment the possible contents.
struct Naive<'a>(&'a DeviceHistory);

impl Naive<'_> {
    fn time(&self, event: DeviceEvent) -> Option<usize> {
        self.0.events().iter().position(|&other| other == event)
    }

    fn ended(&self, write: usize) -> usize {
        self.time(DeviceEvent::WriteEnded(write))
            .or(self.time(DeviceEvent::WriteFailed(write)))
            .unwrap_or(usize::MAX)
    }

    fn durable_at(&self, write: usize) -> usize {
        let Some(ended) = self.time(DeviceEvent::WriteEnded(write)) else { return usize::MAX };
        match self.0.writes()[write].kind {
            WriteKind::Durable => return ended,
            WriteKind::Discard => return usize::MAX,
            WriteKind::Plain => {}
        }
        let began = |flush| self.time(DeviceEvent::FlushBegan(flush)).unwrap();
        let failed = |event: (usize, &DeviceEvent)| match event.1 {
            DeviceEvent::FlushFailed(flush) => Some((event.0, began(*flush))),
            _ => None,
        };
        let failures: Vec<(usize, usize)> = self.0.events().iter().enumerate().filter_map(failed).collect();
        let helps = |&flush: &usize| {
            let Some(end) = self.time(DeviceEvent::FlushEnded(flush)) else { return false };
            let spoils = |&(at, other): &(usize, usize)| at > ended && at < end && other <= began(flush);
            began(flush) > ended && !failures.iter().any(spoils)
        };
        let ends = |flush| self.time(DeviceEvent::FlushEnded(flush)).unwrap_or(usize::MAX);
        (0..self.0.flushes()).filter(helps).map(ends).min().unwrap_or(usize::MAX)
    }

    /// First bytes that block `block` may have after `events` events.
    fn legal(&self, block: u64, events: usize) -> BTreeSet<u8> {
        let here: Vec<usize> = (0..self.0.writes().len())
            .filter(|&write| {
                let recorded = &self.0.writes()[write];
                (recorded.block..recorded.block + recorded.data.len() as u64).contains(&block)
            })
            .collect();
        let began = |write: usize| self.time(DeviceEvent::WriteBegan(write)).unwrap();
        let durable: Vec<usize> =
            here.iter().copied().filter(|&write| self.durable_at(write) < events).collect();
        let replaced = |write: usize| durable.iter().any(|&by| self.ended(write) < began(by));
        let byte = |write: usize| {
            let recorded = &self.0.writes()[write];
            recorded.data[(block - recorded.block) as usize][0]
        };
        let mut legal: BTreeSet<u8> = here
            .iter()
            .copied()
            .filter(|&write| began(write) < events && !replaced(write))
            .map(byte)
            .collect();
        if durable.is_empty() {
            legal.insert(self.0.base().block(block)[0]);
        }
        legal
    }
}

#[derive(Clone, Debug)]
enum Step {
    Begin { kind: WriteKind, block: u64, blocks: usize },
    EndWrite { which: usize, succeeded: bool },
    BeginFlush,
    EndFlush { which: usize, succeeded: bool },
    Mark,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![4 => Just(WriteKind::Plain), 1 => Just(WriteKind::Durable), 1 => Just(WriteKind::Discard)];
    let which = 0..8_usize;
    prop_oneof![
        4 => (kind, 0..2_u64, 1..3_usize).prop_map(|(kind, block, blocks)| Step::Begin { kind, block, blocks }),
        4 => (which.clone(), prop::bool::weighted(0.9)).prop_map(|(which, succeeded)| Step::EndWrite { which, succeeded }),
        2 => Just(Step::BeginFlush),
        2 => (which, prop::bool::weighted(0.8)).prop_map(|(which, succeeded)| Step::EndFlush { which, succeeded }),
        2 => Just(Step::Mark),
    ]
}

fn played(steps: &[Step]) -> DeviceHistory {
    let mut history = DeviceHistory::new(Image::new(3));
    let (mut writing, mut flushing, mut marks) = (Vec::new(), Vec::new(), 0);
    for step in steps {
        match *step {
            Step::Begin { kind, block, blocks } => {
                let tag = history.writes().len() as u8 + 1;
                writing.push(history.begin_write(kind, block, vec![thin(tag); blocks]));
            }
            Step::EndWrite { which, succeeded } if !writing.is_empty() => {
                history.end_write(writing.remove(which % writing.len()), succeeded);
            }
            Step::BeginFlush => flushing.push(history.begin_flush()),
            Step::EndFlush { which, succeeded } if !flushing.is_empty() => {
                history.end_flush(flushing.remove(which % flushing.len()), succeeded);
            }
            Step::EndWrite { .. } | Step::EndFlush { .. } => {}
            Step::Mark => {
                marks += 1;
                history.mark(marks);
            }
        }
    }
    history
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn explores_exactly_the_legal_states(steps in prop::collection::vec(step(), 0..14)) {
        let history = played(&steps);
        let naive = Naive(&history);
        let mut shown: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        history.for_each_crash_state(100_000, 5, |point, image| {
            let bytes: Vec<u8> = (0..3).map(|block| image.block(block)[0]).collect();
            for (block, byte) in (0..).zip(&bytes) {
                let legal = naive.legal(block, point.index);
                assert!(legal.contains(byte), "{}: block {block} holds {byte}, legal: {legal:?}", point.id);
            }
            let marks = shown.entry(bytes).or_default();
            *marks = point.marks.len().max(*marks);
        });
        for events in 0..=history.events().len() {
            let marks = history.events()[..events].iter().filter(|event| matches!(event, DeviceEvent::Mark(_))).count();
            let legal: Vec<BTreeSet<u8>> = (0..3).map(|block| naive.legal(block, events)).collect();
            for &a in &legal[0] {
                for &b in &legal[1] {
                    for &c in &legal[2] {
                        let seen = shown.get(&vec![a, b, c]);
                        prop_assert!(seen.is_some_and(|&seen| seen >= marks), "{events}: {a} {b} {c} was not shown");
                    }
                }
            }
        }
    }
}

fn wrapped(sim: &Arc<SimDevice>) -> Device {
    Device::new(sim.clone())
}

fn put(device: &Device, block: u64, tag: u8) -> Result<(), DeviceError> {
    block_on(device.write(block, IoBuf::copied_from(&full(tag)[..]))).result
}

fn get(device: &Device, block: u64) -> Result<u8, DeviceError> {
    block_on(device.read(block, IoBuf::new(1))).ok().map(|buf| buf[0])
}

#[test]
fn device_records_requests() {
    let sim = SimDevice::new(4);
    let device = wrapped(&sim);
    put(&device, 1, 7).unwrap();
    block_on(device.flush()).ok().unwrap();
    sim.mark(42);
    block_on(device.write_durable(2, IoBuf::copied_from(&full(8)[..]))).ok().unwrap();
    let history = sim.history();
    let expected = [
        DeviceEvent::WriteBegan(0),
        DeviceEvent::WriteEnded(0),
        DeviceEvent::FlushBegan(0),
        DeviceEvent::FlushEnded(0),
        DeviceEvent::Mark(42),
        DeviceEvent::WriteBegan(1),
        DeviceEvent::WriteEnded(1),
    ];
    assert_eq!(history.events(), expected);
    assert_eq!(history.writes()[1].kind, WriteKind::Durable);
    assert_eq!(history.writes()[0].data().next(), Some(&*full(7)));
    assert_eq!((sim.image().block(1)[0], sim.image().block(2)[0]), (7, 8));
    let counters = device.counters();
    assert_eq!((counters.writes, counters.blocks_written, counters.flushes), (2, 2, 2));
}

#[test]
fn a_crash_state_is_a_device_that_can_crash_again() {
    let sim = SimDevice::new(2);
    put(&wrapped(&sim), 0, 1).unwrap();
    let mut deep = 0;
    sim.history().for_each_crash_state(4, 1, |_, image| {
        let again = SimDevice::from_image(image.clone());
        put(&wrapped(&again), 1, 2).unwrap();
        again.history().for_each_crash_state(4, 1, |_, deeper| {
            assert_eq!(deeper.block(0), image.block(0), "what the first crash left is durable");
            deep += 1;
        });
    });
    assert!(deep >= 16, "{deep} states");
}

#[test]
fn faults_fail_lose_and_misdirect() {
    let sim = SimDevice::new(8);
    let device = wrapped(&sim);
    sim.inject(Fault::fail(FaultOp::Write, libc::ENOSPC).after(1));
    put(&device, 0, 1).unwrap();
    let error = put(&device, 0, 2).unwrap_err();
    assert!(matches!(error, DeviceError::Io { code: Some(libc::ENOSPC), op: "write", .. }), "{error}");
    assert_eq!(get(&device, 0).unwrap(), 1);
    sim.inject(Fault::lose());
    put(&device, 0, 3).unwrap();
    assert_eq!(get(&device, 0).unwrap(), 1);
    sim.inject(Fault::misdirect(5));
    put(&device, 0, 4).unwrap();
    assert_eq!((get(&device, 0).unwrap(), get(&device, 5).unwrap()), (1, 4));
    sim.inject(Fault::fail(FaultOp::Read, libc::EIO).for_good().at(5..6));
    assert!(get(&device, 5).is_err() && get(&device, 5).is_err() && get(&device, 4).is_ok());
    sim.clear_faults();
    assert_eq!(get(&device, 5).unwrap(), 4);
    sim.corrupt(5, 0, 0x10);
    assert_eq!(get(&device, 5).unwrap(), 0x14);
    sim.inject(Fault::fail(FaultOp::Flush, libc::EIO));
    assert!(block_on(device.flush()).result.is_err());
    assert_eq!((sim.injected(), device.counters().errors), (6, 4));
}

#[test]
fn growth_fails_on_demand_and_when_disallowed() {
    assert!(SimDevice::new(1).grow(2).is_err());
    let sim = SimDevice::with_options(Image::new(1), SimOptions { growable: true, ..SimOptions::default() });
    sim.inject(Fault::fail(FaultOp::Grow, libc::ENOSPC));
    assert_eq!(sim.grow(2).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    sim.grow(2).unwrap();
    put(&wrapped(&sim), 1, 5).unwrap();
    assert!(matches!(put(&wrapped(&sim), 2, 5), Err(DeviceError::OutOfRange { device_blocks: 2, .. })));
}

#[test]
fn requests_take_time_and_overlap_up_to_depth() {
    let latency = Latency { read_ns: 30_000_000, ..Latency::default() };
    let options = SimOptions { latency, parallel: 2, ..SimOptions::default() };
    let device = Device::new(SimDevice::with_options(Image::new(8), options));
    for in_background in [false, true] {
        let start = Instant::now();
        let mut batch = device.batch();
        let reads: Vec<_> = (0..4).map(|block| batch.add(device.read(block, IoBuf::new(1)))).collect();
        if in_background {
            batch.start_in_background();
        } else {
            block_on(async { batch.start() });
        }
        for read in reads {
            block_on(read).ok().unwrap();
        }
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(60), "{took:?}");
        // That two are served at once, and no later than that, is tested without a clock where their ends are computed (`line`).
    }
}

#[test]
fn dropping_the_device_waits_for_requests() {
    let latency = Latency { write_ns: 3_000_000, ..Latency::default() };
    let sim = SimDevice::with_options(Image::new(1), SimOptions { latency, ..SimOptions::default() });
    let write = Device::new(sim).write(0, IoBuf::new(1)).in_background();
    assert!(write.is_done());
    block_on(write).ok().unwrap();
}

#[test]
#[ignore = "prints a figure"]
fn crash_states_a_second() {
    let sim = SimDevice::new(256);
    let device = wrapped(&sim);
    for round in 0..64_u64 {
        for block in 0..8 {
            put(&device, (round * 29 + block * 31) % 256, (round % 250) as u8 + 1).unwrap();
        }
        block_on(device.flush()).ok().unwrap();
        sim.mark(round);
    }
    let history = sim.history();
    for reads in [0, 16, 256] {
        let (start, mut states, mut sum) = (Instant::now(), 0_u64, 0_u64);
        history.for_each_crash_state(256, 1, |_, image| {
            let sim = SimDevice::from_image(image);
            let device = wrapped(&sim);
            for block in 0..reads {
                sum += u64::from(get(&device, block).unwrap());
            }
            states += 1;
        });
        let rate = states as f64 / start.elapsed().as_secs_f64();
        println!("{states} states of 1 MiB, each opened and {reads} blocks read: {rate:.0} a second ({sum})");
    }
}
