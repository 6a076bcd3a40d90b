//! A slow device (T17): one write of a hundred takes a hundred times the usual time, and then nothing is done at all for a while.
//! Cached objects are read meanwhile; excess requests are refused as busy, nothing hangs, and all that was acknowledged is there.
//!
//! The server is in this process, over a device in memory that this test controls.

use std::backtrace::Backtrace;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use shoal_bench::histogram::Histogram;
use shoal_client::{ByteRange, Client};
use shoal_device::{BlockDevice, Device, MemDevice, Op, Submission};
use shoal_engine::{FormatOptions, Store, block_on};
use shoal_server::{Server, ServerLimits, ServerOptions};
use shoal_storekit::{StoreKit, in_time};
use shoal_testkit::device::{Intercept, Intercepted};
use shoal_testkit::lab;
use shoal_testkit::wait::HANGS_AFTER;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::p99_ms;
use crate::load::{Ended, Kind, World, client, figure};
use crate::machine::runtime;

/// 1 GiB.
const BLOCKS: u64 = 256 << 10;
/// The time of a write; one of this many is slow while slowness is on; the factor by which it is slower.
const WRITE: Duration = Duration::from_micros(100);
const SLOW_EVERY: u64 = 100;
const SLOW_TIMES: u32 = 100;

/// Keys that are read from the cache, of values that are in extents from the first moment: shorter ones are in the log until an
/// apply moves them, and then none of them is in the cache before the next get.
const CACHED: usize = 64;
const CACHED_BYTES: usize = 40_000;
/// Keys that are written.
const WRITTEN: usize = 4_000;
const WRITERS: usize = 8;
/// Short values that are put before the device stalls, so that there is something to apply, a few seconds later.
const WRITTEN_LAST: usize = 200;
/// The device stalls at one of this many writes from then on, or after this time.
const STOP_WRITES: u64 = 60;
const STOPS_AFTER: Duration = Duration::from_secs(4);
/// Puts while the device stalls, of this many bytes: more than the server may hold.
const PUTS: usize = 400;
const PUT_BYTES: usize = 256 << 10;
const IN_FLIGHT_BYTES: usize = 32 << 20;
/// The maximum time for which a put waits for room. Puts that wait may hold an eighth and 8 MiB on top (docs/limits.md).
const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);
const HELD_BYTES_MAX: usize = IN_FLIGHT_BYTES + IN_FLIGHT_BYTES / 8 + (8 << 20);
/// Gets that must be answered while the device stalls.
const GETS_MIN: u64 = 2_000;

/// Tickets of one moment.
struct Due {
    at: Instant,
    number: u64,
    submissions: Vec<Submission>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

#[derive(Default)]
struct Waiting {
    due: BinaryHeap<Due>,
    stands_still: bool,
    /// The device stalls after this many more writes.
    writes_left: Option<u64>,
    ended: bool,
}

impl Waiting {
    /// Stalls if `op` is the write that was chosen for it.
    fn look_for_the_last(&mut self, op: Op) {
        if let Some(left) = &mut self.writes_left
            && matches!(op, Op::Write | Op::WriteDurable)
        {
            *left = left.saturating_sub(1);
            self.stands_still |= *left == 0;
        }
    }
}

/// The delays of requests, by kind.
#[derive(Default)]
struct Injected {
    writes: AtomicU64,
    slowed: AtomicU64,
    held_reads: AtomicU64,
    held_writes: AtomicU64,
    held_flushes: AtomicU64,
    /// The caller of the first read that was held.
    first_read: OnceLock<Backtrace>,
}

/// A device whose requests wait before they are done.
struct Slow {
    device: MemDevice,
    waiting: Mutex<Waiting>,
    changed: Condvar,
    injected: Injected,
    /// One write of [`SLOW_EVERY`] is slow.
    is_slow: AtomicBool,
    numbers: AtomicU64,
}

impl Slow {
    fn start() -> (Arc<Intercepted<Self>>, Device) {
        let (slow, device) = Intercepted::new(Self {
            device: MemDevice::new(BLOCKS),
            waiting: Mutex::default(),
            changed: Condvar::new(),
            injected: Injected::default(),
            is_slow: AtomicBool::new(false),
            numbers: AtomicU64::new(0),
        });
        std::thread::spawn({
            let slow = slow.clone();
            move || slow.work()
        });
        (slow, device)
    }

    /// Passes on the requests that are due, until the end.
    fn work(&self) {
        let mut waiting = self.waiting.lock().unwrap();
        while !waiting.ended {
            let now = Instant::now();
            let first = waiting.due.peek().map(|due| due.at).filter(|_| !waiting.stands_still);
            waiting = match first {
                Some(at) if at <= now => {
                    let due = waiting.due.pop().unwrap();
                    drop(waiting);
                    self.device.submit(due.submissions);
                    self.waiting.lock().unwrap()
                }
                Some(at) => self.changed.wait_timeout(waiting, at - now).unwrap().0,
                None => self.changed.wait(waiting).unwrap(),
            };
        }
    }

    /// After `writes` more writes nothing is done.
    fn stand_still_at_write(&self, writes: u64) {
        self.waiting.lock().unwrap().writes_left = Some(writes);
    }

    fn stands_still(&self) -> bool {
        self.waiting.lock().unwrap().stands_still
    }

    /// From now on nothing is done, or everything that waited.
    fn set_stands_still(&self, stands_still: bool) {
        let mut waiting = self.waiting.lock().unwrap();
        (waiting.stands_still, waiting.writes_left) = (stands_still, None);
        drop(waiting);
        self.changed.notify_all();
    }

    fn end(&self) {
        self.waiting.lock().unwrap().ended = true;
        self.changed.notify_all();
    }

    /// The time of a request.
    fn cost(&self, op: Op) -> Duration {
        if !matches!(op, Op::Write | Op::WriteDurable) {
            return Duration::ZERO;
        }
        if !self.is_slow.load(Ordering::Relaxed) {
            return WRITE;
        }
        let number = self.injected.writes.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(SLOW_EVERY) {
            return WRITE;
        }
        self.injected.slowed.fetch_add(1, Ordering::Relaxed);
        WRITE * SLOW_TIMES
    }

    fn note_held(&self, op: Op) {
        let count = match op {
            Op::Read => {
                self.injected.first_read.get_or_init(Backtrace::force_capture);
                &self.injected.held_reads
            }
            Op::Flush => &self.injected.held_flushes,
            Op::Write | Op::WriteDurable | Op::Discard { .. } => &self.injected.held_writes,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Intercept for Slow {
    fn inner(&self) -> &dyn BlockDevice {
        &self.device
    }

    fn submit(&self, submissions: Vec<Submission>) {
        let now = Instant::now();
        let mut waiting = self.waiting.lock().unwrap();
        for submission in submissions {
            let at = now + self.cost(submission.op());
            waiting.look_for_the_last(submission.op());
            if waiting.stands_still {
                self.note_held(submission.op());
            }
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            waiting.due.push(Due { at, number, submissions: vec![submission] });
        }
        drop(waiting);
        self.changed.notify_all();
    }

    fn execute(&self, submissions: Vec<Submission>) {
        let cost = submissions.iter().map(|submission| self.cost(submission.op())).max().unwrap_or_default();
        std::thread::sleep(cost);
        let mut waiting = self.waiting.lock().unwrap();
        submissions.iter().for_each(|submission| waiting.look_for_the_last(submission.op()));
        if waiting.stands_still {
            submissions.iter().for_each(|submission| self.note_held(submission.op()));
        }
        while waiting.stands_still {
            waiting = self.changed.wait(waiting).unwrap();
        }
        drop(waiting);
        self.device.execute(submissions);
    }
}

fn kit() -> StoreKit {
    StoreKit { format: FormatOptions::for_blocks(BLOCKS), ..StoreKit::new(BLOCKS).with_cache(64 << 20) }
}

/// Gets of cached objects, one after the other, until `is_over`.
async fn read_cached(world: &World, client: &Client, is_over: impl Fn(u64) -> bool) -> Histogram {
    let mut latency = Histogram::default();
    for number in 0.. {
        let began = Instant::now();
        assert_eq!(world.run(client, number, Kind::Get).await, Ended::Done, "a get of what is in the cache");
        latency.record(began.elapsed());
        if is_over(latency.count()) {
            break;
        }
    }
    latency
}

struct Served {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<Result<(), shoal_server::ServeError>>,
}

impl Served {
    async fn end(self) {
        let _ = self.stop.send(());
        in_time("the server", self.ended).await.unwrap().unwrap();
    }
}

async fn serve(store: &Store) -> Served {
    let limits = ServerLimits {
        bytes_in_flight_max: IN_FLIGHT_BYTES,
        room_wait_max: ROOM_WAIT_MAX,
        ..ServerLimits::default()
    };
    let listen = (std::net::Ipv4Addr::LOCALHOST, 0).into();
    let server = Server::bind(ServerOptions { listen, limits, ..ServerOptions::default() }).await.unwrap();
    let address = server.address();
    let (stop, stopped) = oneshot::channel();
    let ended = tokio::spawn(server.run(store.clone(), async { drop(stopped.await) }));
    Served { address, stop, ended }
}

#[test]
fn slow_device_does_not_slow_cached_reads() {
    let time = Duration::from_millis(lab::number("SLOW_MS", 600));
    let stall = Duration::from_millis(lab::number("STALL_MS", 1_500));
    let (slow, device) = Slow::start();
    let (cached, written) =
        (Arc::new(World::new("cached", CACHED)), Arc::new(World::new("written", WRITTEN)));
    // A value that is read from the cache came there by a get, not by its put.
    let store = kit().create(&device);
    runtime().block_on(async {
        let served = serve(&store).await;
        let client = client(&served.address.to_string(), 1).await;
        for key in 0..CACHED {
            assert_eq!(cached.run(&client, key, Kind::Put(CACHED_BYTES)).await, Ended::Done);
        }
        served.end().await;
    });
    block_on(store.close()).unwrap();
    drop(store);
    let store = kit().open(&device);
    runtime().block_on(async {
        let served = serve(&store).await;
        let url = served.address.to_string();
        let (reader, writer) = (client(&url, 1).await, client(&url, 4).await);
        cached.verify(&reader).await;

        // Writers, and then slow writes.
        let began = Instant::now();
        let mut writers = JoinSet::new();
        for id in 0..WRITERS {
            let (written, writer, slow, store) =
                (written.clone(), writer.clone(), slow.clone(), store.clone());
            writers.spawn(async move {
                let mut done = 0;
                // Until some were slow and the cache is full, however long that takes.
                while began.elapsed() < time
                    || slow.injected.slowed.load(Ordering::Relaxed) < 3
                    || store.stat().pool.evictions == 0
                {
                    let bytes = [600, 9_000, 100_000][done % 3];
                    let ended = written.run(&writer, done * WRITERS + id, Kind::Put(bytes)).await;
                    assert_eq!(ended, Ended::Done, "a few writers are not too many");
                    done += 1;
                }
                done
            });
        }
        let before = read_cached(&cached, &reader, |_| began.elapsed() >= time / 3).await;
        slow.is_slow.store(true, Ordering::Relaxed);
        let beside_slow = read_cached(&cached, &reader, |_| began.elapsed() >= time).await;
        let mut puts = 0;
        while let Some(done) = in_time("a writer", writers.join_next()).await {
            puts += done.unwrap();
        }

        // Values that the writers drove out of the cache come back, and are read again.
        cached.verify(&reader).await;
        cached.verify(&reader).await;

        // The device stalls from some write of an apply on: objects that were applied before it are read as they were. The
        // device continues only after enough reads, and a busy answer to a writer.
        for key in 0..WRITTEN_LAST {
            assert_eq!(written.run(&writer, key, Kind::Put(600)).await, Ended::Done, "nobody else writes");
        }
        let stop_at = lab::number("STOP_AT", 1 + u64::from(began.elapsed().subsec_nanos()) % STOP_WRITES);
        let (applies, armed) = (store.stat().applies, Instant::now());
        slow.stand_still_at_write(stop_at);
        let mut more = 0..;
        while !slow.stands_still() && armed.elapsed() < STOPS_AFTER {
            let number = more.next().unwrap_or_default();
            assert_eq!(cached.run(&reader, number, Kind::Get).await, Ended::Done, "a get before it stands still");
        }
        let applies = store.stat().applies - applies;
        println!("slow disk: stands still after {} ms, {applies} applies and {stop_at} writes", armed.elapsed().as_millis());
        slow.set_stands_still(true);
        let began = Instant::now();
        let (done, busy) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (gets, last_get_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        let pool_before = store.stat().pool;
        for number in 0..PUTS {
            let (written, writer) = (written.clone(), writer.clone());
            let (done, busy) = (done.clone(), busy.clone());
            writers.spawn(async move {
                let ended = written.run(&writer, number, Kind::Put(PUT_BYTES)).await;
                if ended == Ended::Done { &done } else { &busy }.fetch_add(1, Ordering::Relaxed);
                0
            });
        }
        let is_over = |got| {
            gets.store(got, Ordering::Relaxed);
            last_get_ms.store(began.elapsed().as_millis() as u64, Ordering::Relaxed);
            let was_told = busy.load(Ordering::Relaxed) > 0;
            got >= GETS_MIN && was_told && began.elapsed() >= stall
        };
        // If it hangs, the message names the missing event: a get, or the busy answer.
        let how_it_stands = || {
            let pool = store.stat().pool;
            format!(
                "{} gets of what is in the cache answered, the last one after {} ms; of {PUTS} puts {} told that it is busy, {} done; {} reads held, \
                 {} units evicted and {} missed since",
                gets.load(Ordering::Relaxed),
                last_get_ms.load(Ordering::Relaxed),
                busy.load(Ordering::Relaxed),
                done.load(Ordering::Relaxed),
                slow.injected.held_reads.load(Ordering::Relaxed),
                pool.evictions - pool_before.evictions,
                pool.misses - pool_before.misses,
            )
        };
        // Before the client itself gives up, whose error would not describe the rest.
        let hangs_after = HANGS_AFTER - Duration::from_secs(60);
        let beside_stall = timeout(hangs_after, read_cached(&cached, &reader, is_over)).await;
        let beside_stall = beside_stall.unwrap_or_else(|_| {
            let from = slow.injected.first_read.get();
            panic!("it hangs while the device stands still: {}; the first read comes from {from:#?}", how_it_stands())
        });
        println!("slow disk: while it stood still: {}", how_it_stands());
        let evicted = store.stat().pool.evictions - pool_before.evictions;
        assert!(evicted > 0, "nothing had to go, so it says nothing that what is read stayed");
        let stood_s = began.elapsed().as_secs_f64();
        let held = figure(&reader, "server.bytes_in_flight").await;
        // Writes whose bytes were taken can only wait.
        let early = done.load(Ordering::Relaxed);
        slow.set_stands_still(false);
        let goes_on = Instant::now();
        while let Some(put) = in_time("a put after the device stood still", writers.join_next()).await {
            put.unwrap();
        }
        let drained_s = goes_on.elapsed().as_secs_f64();
        for key in 0..50 {
            assert_eq!(written.run(&writer, key, Kind::Put(PUT_BYTES)).await, Ended::Done, "afterwards");
        }
        slow.is_slow.store(false, Ordering::Relaxed);
        let objects = written.verify(&writer).await + cached.verify(&reader).await;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Injected { writes, slowed, held_reads, held_writes, held_flushes, .. } = &slow.injected;
        println!(
            "slow disk: {} of {} writes took {SLOW_TIMES} times {} us: {puts} puts, gets from the cache p99 {:.2} ms ({:.2} beside the same writers before); then \
             it stood still for {stood_s:.1} s ({} reads, {} writes, {} flushes held): {} gets from the cache, p99 {:.2} ms; of {PUTS} puts \
             {} done ({early} before it went on), {} told that it is busy, {:.1} MiB held of {}; all ended {drained_s:.2} s after it; {objects} \
             objects, none lost",
            count(slowed),
            count(writes),
            WRITE.as_micros(),
            p99_ms(&beside_slow),
            p99_ms(&before),
            count(held_reads),
            count(held_writes),
            count(held_flushes),
            beside_stall.count(),
            p99_ms(&beside_stall),
            count(&done),
            count(&busy),
            crate::process::mib(held),
            IN_FLIGHT_BYTES >> 20,
        );
        assert!(puts > 0 && count(held_writes) > 0, "nothing was held");
        assert_eq!(count(&done) + count(&busy), PUTS as u64);
        // Answers of writes are never refused, and are short.
        assert!(held <= (HELD_BYTES_MAX + (1 << 20)) as u64, "{held} bytes are held");
        assert!(figure(&reader, "server.bytes_in_flight").await < 4096, "something is left of it");
        served.end().await;
    });
    block_on(store.close()).unwrap();
    drop(store);
    // Acknowledged writes are on the device, too.
    let store = kit().open(&device);
    runtime().block_on(async {
        let served = serve(&store).await;
        let again = client(&served.address.to_string(), 1).await;
        written.verify(&again).await;
        cached.verify(&again).await;
        assert!(again.get("load", b"nothing", ByteRange::ALL).await.unwrap().is_none());
        served.end().await;
    });
    block_on(store.close()).unwrap();
    slow.end();
}
