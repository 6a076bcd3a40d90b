//! The census of a server: one walk over all trees at a time, which a page starts and keeps alive by its questions.
//!
//! It has a separate thread, which rests nine times as long as it works: a tenth of a core at most, however many entries the store has.
//! Without a page that asks nothing runs. The result is forgotten with the samples of the pages.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use shoal_base::Clock;
use shoal_engine::{BucketSize, Census, Store, block_on};

use super::survey::part_blocks_of;

/// The rests of the walk, as a multiple of the time of its work before.
const REST_FACTOR: u32 = 9;
/// A walk stops if no page has asked about it for this long.
const ASKED_WITHIN_NS: u64 = 10_000_000_000;

/// A complete census.
#[derive(Debug)]
pub(crate) struct TakenCensus {
    pub(crate) census: Census,
    pub(crate) started_ms: u64,
    pub(crate) ended_ms: u64,
}

#[derive(Default)]
struct State {
    /// Pages and objects so far of the walk that is under way.
    running: Option<(u64, u64)>,
    /// The walk is to end.
    is_cancelled: bool,
    is_stopped: bool,
    /// The last question of a page, on the monotonic clock.
    asked_ns: u64,
    taken: Option<Arc<TakenCensus>>,
}

struct Shared {
    /// Parts of the device, and buckets, that are counted apart at most.
    limits: (u64, usize),
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// The walk is to end.
    woken: Condvar,
}

/// The census of a server. Clones are the same one.
#[derive(Clone)]
pub(crate) struct CensusTaker(Arc<Shared>);

/// The state of the census, as pages get it.
#[derive(Debug, Serialize)]
pub(crate) struct CensusDocument {
    running: bool,
    /// Pages of the trees and objects so far.
    pages: u64,
    objects: u64,
    /// The last complete census.
    taken: Option<TakenDocument>,
}

#[derive(Debug, Serialize)]
struct TakenDocument {
    started_ms: u64,
    ended_ms: u64,
    objects: u64,
    /// Only if they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    buckets: Option<Vec<BucketDocument>>,
    /// The objects of buckets above the limit.
    others: SizeDocument,
}

#[derive(Debug, Serialize)]
struct BucketDocument {
    name: String,
    #[serde(flatten)]
    size: SizeDocument,
}

#[derive(Debug, Serialize)]
struct SizeDocument {
    objects: u64,
    bytes: u64,
}

impl From<BucketSize> for SizeDocument {
    fn from(BucketSize { objects, bytes }: BucketSize) -> Self {
        Self { objects, bytes }
    }
}

impl TakenDocument {
    fn new(taken: &TakenCensus, with_buckets: bool) -> Self {
        let TakenCensus { census, started_ms, ended_ms } = taken;
        let buckets = || {
            let sizes = census.buckets.iter();
            sizes.map(|(name, &size)| BucketDocument { name: name.clone(), size: size.into() }).collect()
        };
        Self {
            started_ms: *started_ms,
            ended_ms: *ended_ms,
            objects: census.objects,
            buckets: with_buckets.then(buckets),
            others: census.others.into(),
        }
    }
}

impl CensusTaker {
    /// `limits`: the parts of the device and the buckets that are counted apart at most.
    pub(crate) fn new(clock: Arc<dyn Clock>, limits: (u64, usize)) -> Self {
        Self(Arc::new(Shared { limits, clock, state: Mutex::default(), woken: Condvar::new() }))
    }

    /// Starts a walk, unless one is under way.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(&self, store: &Store) -> io::Result<()> {
        let mut state = self.0.state.lock();
        state.asked_ns = self.0.clock.monotonic_ns();
        if state.running.is_some() {
            state.is_cancelled = false;
            return Ok(());
        }
        if state.is_stopped {
            return Ok(());
        }
        let (shared, store) = (Arc::clone(&self.0), store.clone());
        std::thread::Builder::new().name("console-census".into()).spawn(move || shared.run(store))?;
        (state.running, state.is_cancelled) = (Some((0, 0)), false);
        Ok(())
    }

    /// Stops the walk that is under way.
    pub(crate) fn cancel(&self) {
        self.0.state.lock().is_cancelled = true;
        self.0.woken.notify_all();
    }

    /// The state for a page, which keeps a walk alive.
    pub(crate) fn document(&self, with_buckets: bool) -> CensusDocument {
        let mut state = self.0.state.lock();
        state.asked_ns = self.0.clock.monotonic_ns();
        let (running, taken) = (state.running, state.taken.clone());
        drop(state);
        let (pages, objects) = running.unwrap_or_default();
        let taken = taken.as_deref().map(|taken| TakenDocument::new(taken, with_buckets));
        CensusDocument { running: running.is_some(), pages, objects, taken }
    }

    /// The last complete census.
    pub(crate) fn taken(&self) -> Option<Arc<TakenCensus>> {
        self.0.state.lock().taken.clone()
    }

    /// Forgets the last census.
    pub(crate) fn forget(&self) {
        let taken = self.0.state.lock().taken.take();
        drop(taken);
    }

    /// Stops the walk, and starts no other one: the server stops.
    pub(crate) fn stop(&self) {
        self.0.state.lock().is_stopped = true;
        self.0.woken.notify_all();
    }
}

impl Shared {
    fn run(&self, store: Store) {
        let (parts_max, buckets_max) = self.limits;
        let part_blocks = part_blocks_of(store.space_plan().device_blocks, parts_max);
        let started_ms = self.clock.wall_ns() / 1_000_000;
        let Some(census) = self.walk(store.new_census(part_blocks, buckets_max), store) else { return };
        let ended_ms = self.clock.wall_ns() / 1_000_000;
        let mut state = self.state.lock();
        state.running = None;
        let before = state.taken.replace(Arc::new(TakenCensus { census, started_ms, ended_ms }));
        drop(state);
        drop(before);
    }

    /// Walks to the end. Returns `None` if the walk was cancelled or the store closed; then another one may be running already.
    fn walk(&self, mut census: Census, store: Store) -> Option<Census> {
        loop {
            let started_ns = self.clock.monotonic_ns();
            let Ok(is_over) = block_on(store.census_some(&mut census)) else {
                self.state.lock().running = None;
                return None;
            };
            if is_over {
                return Some(census);
            }
            let took_ns = self.clock.monotonic_ns().saturating_sub(started_ns);
            if !self.rest(Duration::from_nanos(took_ns) * REST_FACTOR, &census) {
                return None;
            }
        }
    }

    /// Waits; returns false if the walk is to end.
    fn rest(&self, wait: Duration, census: &Census) -> bool {
        let mut state = self.state.lock();
        state.running = Some((census.pages, census.objects));
        if !state.is_cancelled && !state.is_stopped {
            self.woken.wait_for(&mut state, wait);
        }
        let is_asked = self.clock.monotonic_ns().saturating_sub(state.asked_ns) <= ASKED_WITHIN_NS;
        let goes_on = is_asked && !state.is_cancelled && !state.is_stopped;
        if !goes_on {
            // Under the lock: a page that starts a walk from now on gets another one.
            state.running = None;
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use shoal_base::{ManualClock, SystemClock};

    use super::*;
    use crate::figures::space::survey::PARTS_MAX;
    use crate::figures::space::testing::fragmented;

    fn taker() -> (CensusTaker, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(5_000_000_000));
        (CensusTaker::new(clock.clone(), (PARTS_MAX, 10)), clock)
    }

    fn document(taker: &CensusTaker) -> Value {
        serde_json::to_value(taker.document(true)).unwrap()
    }

    /// The state after the walk.
    fn ended(taker: &CensusTaker) -> Value {
        let ended = (0..6_000).map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            document(taker)
        });
        ended.into_iter().find(|found| found["running"] == false).expect("the walk ends")
    }

    #[test]
    fn a_census_is_kept_with_its_times_until_it_is_forgotten() {
        // Half of 400 objects are deleted, and a quarter of the others is in the bucket photos.
        let (store, (taker, clock)) = (fragmented(400, 20_000), taker());
        assert_eq!(document(&taker), json!({ "running": false, "pages": 0, "objects": 0, "taken": null }));
        taker.start(&store).unwrap();
        let found = ended(&taker);
        let size = |objects: u64| json!({ "objects": objects, "bytes": objects * 20_000 });
        let mut buckets = vec![size(150), size(50)];
        buckets[0]["name"] = "b".into();
        buckets[1]["name"] = "photos".into();
        let at_ms = clock.wall_ns() / 1_000_000;
        let taken = json!({
            "started_ms": at_ms, "ended_ms": at_ms, "objects": 200, "buckets": buckets, "others": size(0),
        });
        assert_eq!(found, json!({ "running": false, "pages": 0, "objects": 0, "taken": taken }));
        let brief = serde_json::to_value(taker.document(false)).unwrap();
        assert_eq!(brief["taken"]["buckets"], Value::Null);
        assert_eq!(brief["taken"]["objects"], 200);
        taker.forget();
        assert!(taker.taken().is_none() && document(&taker)["taken"].is_null());
    }

    /// The time of a store whose pieces take some time, so that a walk rests between them.
    #[derive(Default)]
    struct Slow {
        system: SystemClock,
        asked: std::sync::atomic::AtomicU64,
    }

    impl Clock for Slow {
        fn wall_ns(&self) -> u64 {
            self.system.wall_ns()
        }

        fn monotonic_ns(&self) -> u64 {
            // A second passes with each question.
            self.asked.fetch_add(1_000_000_000, std::sync::atomic::Ordering::Relaxed)
        }

        fn boot_ns(&self) -> u64 {
            self.system.boot_ns()
        }

        fn boot_id(&self) -> [u8; 16] {
            self.system.boot_id()
        }
    }

    #[test]
    fn a_walk_rests_and_is_cancelled() {
        let store = fragmented(400, 20_000);
        for end in [CensusTaker::cancel, CensusTaker::stop] {
            let taker = CensusTaker::new(Arc::new(Slow::default()), (PARTS_MAX, 10));
            taker.start(&store).unwrap();
            // Its first rest takes nine seconds.
            assert_eq!(document(&taker)["running"], true);
            end(&taker);
            assert!(ended(&taker)["taken"].is_null(), "it did not end by itself");
        }
    }

    #[test]
    fn a_walk_ends_if_no_page_asks() {
        let (store, (taker, clock)) = (fragmented(8, 100), taker());
        let census = store.new_census(64, 10);
        document(&taker);
        let goes_on = || taker.0.rest(Duration::ZERO, &census);
        clock.advance(ASKED_WITHIN_NS);
        assert!(goes_on());
        clock.advance(1);
        assert!(!goes_on());
        document(&taker);
        assert!(goes_on());
    }

    #[test]
    fn a_server_that_stops_starts_no_walk() {
        let (taker, _) = taker();
        taker.stop();
        taker.start(&fragmented(8, 100)).unwrap();
        assert_eq!(document(&taker)["running"], false);
    }
}
