//! One sampler for all pages, its end and its history.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use shoal_base::{Clock, SystemClock};
use shoal_metrics::{Health, Metrics, Operation, RequestResult};
use shoal_storekit::{StoreKit, eventually, in_time};

use super::*;
use crate::figures::limits::FigureLimits;

/// A clock that counts the readings: each takes the wall clock's time once.
#[derive(Default)]
struct Counting {
    system: SystemClock,
    readings: AtomicU64,
}

impl Clock for Counting {
    fn wall_ns(&self) -> u64 {
        self.readings.fetch_add(1, Ordering::Relaxed);
        self.system.wall_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.system.monotonic_ns()
    }

    fn boot_ns(&self) -> u64 {
        self.system.boot_ns()
    }

    fn boot_id(&self) -> [u8; 16] {
        self.system.boot_id()
    }
}

struct Server {
    sampler: Sampler,
    clock: Arc<Counting>,
    metrics: Arc<Metrics>,
}

const HISTORY_BYTES: usize = 8 << 20;

fn server(linger: u32) -> Server {
    server_with(linger, HISTORY_BYTES)
}

fn server_with(linger: u32, history_bytes: usize) -> Server {
    let (clock, metrics) = (Arc::new(Counting::default()), Arc::new(Metrics::default()));
    let store = StoreKit::new(32_768).in_memory();
    let health = Health::default();
    health.serves(store.clone());
    let sources = Sources { store, metrics: metrics.clone(), health, clock: clock.clone() };
    let maps = SpaceMaps::new(clock.clone(), FigureLimits::within(u64::MAX));
    let timing = Timing { period: Duration::from_millis(5), first: Duration::from_millis(1), linger };
    Server { sampler: Sampler::new(sources, maps, (timing, history_bytes)), clock, metrics }
}

async fn sample_of(page: &mut LivePage) -> Bytes {
    in_time("a sample", page.next()).await.unwrap()
}

fn parsed(event: &Bytes) -> Value {
    let text = std::str::from_utf8(event).unwrap();
    let json = text.strip_prefix("event: live\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
    assert!(!json.contains('\n'), "an event has one line of data");
    serde_json::from_str(json).unwrap()
}

#[tokio::test]
async fn pages_share_one_sampler_and_its_bytes() {
    let Server { sampler, clock, metrics } = server(1 << 30);
    assert_eq!(clock.readings.load(Ordering::Relaxed), 0, "no page, no reading");
    metrics.grpc().watch_connections(Default::default);
    let (mut first, mut second) = (sampler.join().unwrap(), sampler.join().unwrap());
    let mut shared = 0;
    for _ in 0..50 {
        let (one, other) = (sample_of(&mut first).await, sample_of(&mut second).await);
        shared += usize::from(one.as_ptr() == other.as_ptr());
    }
    assert!(shared > 0, "both pages send the same buffer");
    let samples = sampler.history();
    let readings = clock.readings.load(Ordering::Relaxed);
    // A reading before the first sample, and one that is on its way.
    assert!(readings as usize <= samples.len() + 2, "{readings} readings of {} samples", samples.len());
    let newest = parsed(&sample_of(&mut first).await);
    assert_eq!(
        (newest["health"]["ready"].as_bool(), newest["frontends"][0]["name"].as_str()),
        (Some(true), Some("grpc"))
    );
    let last = samples.last().unwrap();
    assert!(last.starts_with(b"{\"at_ms\":") && last.ends_with(b"}"));
}

#[tokio::test]
async fn sampler_ends_after_last_page_and_starts_anew() {
    let Server { sampler, clock, metrics } = server(3);
    metrics.redis().watch_connections(Default::default);
    let mut page = sampler.join().unwrap();
    sample_of(&mut page).await;
    drop(page);
    // A page that comes back in time finds the same history.
    let mut page = sampler.join().unwrap();
    sample_of(&mut page).await;
    drop(page);
    eventually("the thread ends", || async { !sampler.0.state.lock().is_running }).await;
    assert_eq!(sampler.history(), Vec::<Bytes>::new());
    let readings = clock.readings.load(Ordering::Relaxed);
    // Requests while nobody looked are in no rate afterwards.
    assert!(!metrics.redis().add(Operation::Put, RequestResult::Ok, 1_000, 1_000_000));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(clock.readings.load(Ordering::Relaxed), readings, "nothing is read");
    let mut page = sampler.join().unwrap();
    let sample = parsed(&sample_of(&mut page).await);
    assert_eq!(sample["frontends"][0]["per_s"]["put"].as_f64(), Some(0.0), "{sample}");
    assert_eq!(sample["latency"]["put"]["count"].as_u64(), Some(0));
}

#[tokio::test]
async fn history_is_bounded() {
    let Server { sampler, .. } = server(1 << 30);
    let _page = sampler.join().unwrap();
    for _ in 0..SAMPLES_MAX {
        sampler.0.state.lock().samples.push_back(Bytes::from_static(b"{}"));
    }
    eventually("the oldest sample goes", || async {
        let samples = sampler.history();
        samples.len() <= SAMPLES_MAX && samples.last().is_some_and(|last| last.len() > 2)
    })
    .await;
}

#[tokio::test]
async fn history_keeps_to_its_bytes() {
    let Server { sampler, .. } = server_with(1 << 30, 20_000);
    let mut page = sampler.join().unwrap();
    let first = sample_of(&mut page).await;
    let first_ms = parsed(&first)["at_ms"].clone();
    assert!(first.len() < 10_000, "the history has room for two samples");
    let oldest = || serde_json::from_slice::<Value>(&sampler.history()[0]).unwrap()["at_ms"].clone();
    eventually("the first sample goes", || async { oldest() != first_ms }).await;
    for _ in 0..20 {
        sample_of(&mut page).await;
        let bytes: usize = sampler.history().iter().map(Bytes::len).sum();
        assert!(bytes <= 20_000 && bytes > 0, "{bytes}");
    }
}

#[tokio::test]
async fn stop_ends_streams_and_releases_the_store() {
    let Server { sampler, .. } = server(1 << 30);
    let mut page = sampler.join().unwrap();
    sample_of(&mut page).await;
    sampler.stop();
    let ended = async { while page.next().await.is_some() {} };
    in_time("the stream ends", ended).await;
    let mut late = sampler.join().unwrap();
    assert_eq!(in_time("a page that comes too late", late.next()).await, None);
    eventually("the thread ends", || async { !sampler.0.state.lock().is_running }).await;
    assert!(sampler.0.sources.lock().is_none());
}
