//! Burdensome clients and devices beside a healthy client: more connections than the server has files for
//! ([`descriptors`], T18), clients of a byte a second ([`loris`], T19), HTTP/2 to wear the server out ([`http2`],
//! T20), log lines that clients cause ([`log`]), and a device that is slow or stalls ([`slow_disk`], T17).

mod descriptors;
mod http2;
mod log;
mod loris;
mod slow_disk;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shoal_bench::histogram::Histogram;
use shoal_client::{Client, RejectRules};
use shoal_storekit::{eventually, in_time};
use shoal_testkit::Value;
use tokio::task::JoinHandle;

use crate::both::Objects;
use crate::harness::Frontends;
use crate::load::{client, figure};
use crate::process::sockets;

/// Between two calls of a client that is no burden.
const PAUSE: Duration = Duration::from_millis(2);

/// Clients that put and get all the time, on both frontends, and compare the results.
struct Healthy {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Histogram>>,
    client: Client,
}

impl Healthy {
    async fn start(server: &Frontends) -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("healthy-{}", CLIENTS.fetch_add(1, Ordering::Relaxed));
        let stop = Arc::new(AtomicBool::new(false));
        let client = client(&server.grpc, 2).await;
        let grpc = Objects::Grpc(client.clone(), "healthy".into());
        let tasks = vec![
            tokio::spawn(work(grpc, prefix.clone(), stop.clone())),
            tokio::spawn(work(Objects::redis(&server.resp).await, prefix, stop.clone())),
        ];
        Self { stop, tasks, client }
    }

    /// Stops them; returns their latencies. Every call was served.
    async fn end(self) -> Histogram {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Histogram::default();
        for task in self.tasks {
            let served = in_time("the healthy client", task).await.unwrap();
            assert!(served.count() > 0, "a client that is no burden was not served");
            all.merge(&served);
        }
        all
    }
}

async fn work(objects: Objects, prefix: String, stop: Arc<AtomicBool>) -> Histogram {
    let mut latency = Histogram::default();
    for number in 0_u64.. {
        let (key, bytes) = (number % 50, [20, 700, 5_000, 40_000][(number % 4) as usize]);
        let (value, name) = (Value { key, seed: number, bytes }, format!("{prefix}/{key}").into_bytes());
        let began = Instant::now();
        objects.put(&name, value.to_vec().into(), RejectRules::default()).await.unwrap();
        latency.record(began.elapsed());
        let began = Instant::now();
        let found = objects.get(&name).await.unwrap().expect("what was put");
        latency.record(began.elapsed());
        value.check(&found).unwrap_or_else(|wrong| panic!("{wrong}"));
        if stop.load(Ordering::Relaxed) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    latency
}

fn p99_ms(latency: &Histogram) -> f64 {
    latency.quantile_us(990) / 1000.0
}

/// Waits until nothing is left of the burdensome clients: `before` sockets, and the connections of the healthy client.
async fn await_nothing_left(server: &Frontends, client: &Client, before: usize) {
    eventually("nothing is left", || async {
        figure(client, "server.bytes_in_flight").await < 4096
            && figure(client, "server.connections").await <= 2
            && sockets(server.pid()) <= before
    })
    .await;
}
