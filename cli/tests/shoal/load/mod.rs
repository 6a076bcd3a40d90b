//! Load that comes independent of the server's progress: each operation has its moment, and its latency counts from there. A
//! client that waits for answers before its next request would leave out just the moments that were slow.
//!
//! [`sustained`] (T15) stays below the server's maximum, [`overload`] (T16) asks for twice of it.

mod overload;
mod sustained;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use shoal_base::{Entropy, SeededEntropy};
use shoal_bench::histogram::Histogram;
use shoal_client::{ByteRange, Client, ConnectOptions, Error, PutOptions, RejectRules};
use shoal_storekit::in_time;
use shoal_testkit::wait::HANGS_AFTER;
use shoal_testkit::{Value, lab};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant as Moment, sleep_until};

const BUCKET: &str = "load";

/// A client that sends each call once, over `connections` connections, and waits for its answer up to the limit of a test.
pub(crate) async fn client(url: &str, connections: usize) -> Client {
    let options = ConnectOptions {
        attempts: 1,
        connections,
        answer_timeout: HANGS_AFTER,
        connect_timeout: HANGS_AFTER,
        ..ConnectOptions::new(url)
    };
    Client::connect(options).await.unwrap()
}

/// A figure of the server.
pub(crate) async fn figure(client: &Client, name: &str) -> u64 {
    let figures = client.stat().await.unwrap().figures;
    figures.iter().find(|figure| figure.name == name).unwrap().value
}

/// The value of a key, while no operation uses it.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    in_use: bool,
    value: Option<Value>,
}

/// The keys, and the acknowledged state of each: one operation at a time uses a key, so that the answer of a get is known.
pub(crate) struct World {
    prefix: &'static str,
    slots: Vec<Mutex<Slot>>,
    seeds: AtomicU64,
}

/// How an operation ended; everything else fails the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    /// The server had too much to do, and did nothing.
    Busy,
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put(usize),
    Get,
    Delete,
}

impl World {
    pub(crate) fn new(prefix: &'static str, keys: usize) -> Self {
        let slots = (0..keys).map(|_| Mutex::default()).collect();
        Self { prefix, slots, seeds: AtomicU64::new(1) }
    }

    fn slot(&self, key: usize) -> MutexGuard<'_, Slot> {
        self.slots[key].lock().unwrap()
    }

    fn name(&self, key: usize) -> Vec<u8> {
        format!("{}/{key}", self.prefix).into_bytes()
    }

    /// The first key from this one on that no operation uses.
    fn take(&self, from: usize) -> (usize, Option<Value>) {
        let keys = self.slots.len();
        for key in (0..keys).map(|step| (from + step) % keys) {
            let mut slot = self.slot(key);
            if !slot.in_use {
                slot.in_use = true;
                return (key, slot.value);
            }
        }
        panic!("more operations than keys");
    }

    fn give_back(&self, key: usize, value: Option<Value>) {
        *self.slot(key) = Slot { in_use: false, value };
    }

    /// One operation on a free key near this one.
    pub(crate) async fn run(&self, client: &Client, near: usize, kind: Kind) -> Ended {
        let (key, held) = self.take(near % self.slots.len());
        let name = self.name(key);
        let (result, value) = match kind {
            Kind::Get => (self.get(client, key, held).await, held),
            Kind::Put(bytes) => {
                let value =
                    Value { key: key as u64, seed: self.seeds.fetch_add(1, Ordering::Relaxed), bytes };
                let put = client.put(BUCKET, &name, value.to_vec().into(), PutOptions::default());
                (put.await.map(drop), Some(value))
            }
            Kind::Delete => (client.delete(BUCKET, &name, RejectRules::default()).await.map(drop), None),
        };
        let ended = match result {
            Ok(()) => Ended::Done,
            Err(Error::Busy(_)) => Ended::Busy,
            Err(error) => panic!("{kind:?} of key {key}: {error:?}"),
        };
        self.give_back(key, if ended == Ended::Done { value } else { held });
        ended
    }

    async fn get(&self, client: &Client, key: usize, held: Option<Value>) -> shoal_client::Result<()> {
        let found = client.get(BUCKET, &self.name(key), ByteRange::ALL).await?;
        match (held, found) {
            (None, None) => {}
            (Some(value), Some(found)) => {
                value.check(&found.value).unwrap_or_else(|wrong| panic!("key {key}: {wrong}"));
            }
            (held, found) => {
                panic!("key {key} holds {held:?}, {} was found", found.map_or("nothing", |_| "something"))
            }
        }
        Ok(())
    }

    /// Reads every key; returns the number that hold something.
    pub(crate) async fn verify(&self, client: &Client) -> usize {
        let mut held_all = 0;
        for key in 0..self.slots.len() {
            let Slot { in_use, value } = *self.slot(key);
            assert!(!in_use, "somebody is at key {key}");
            self.get(client, key, value).await.unwrap_or_else(|error| panic!("key {key}: {error:?}"));
            held_all += usize::from(value.is_some());
        }
        held_all
    }
}

/// The result of a load.
#[derive(Default)]
pub(crate) struct Tally {
    /// From the moment that an operation was meant to be sent.
    pub(crate) latency: Histogram,
    pub(crate) longest: Duration,
    /// Of the operations that got a busy answer, from the time when they were sent.
    pub(crate) to_busy: Histogram,
    pub(crate) done: u64,
    pub(crate) busy: u64,
    /// Not sent: the client had too many under way, or no time left.
    pub(crate) left_out: u64,
    /// By kind: put, get, delete.
    pub(crate) kinds: [u64; 3],
}

impl Tally {
    fn add(&mut self, meant: Instant, sent: Instant, kind: Kind, ended: Ended) {
        let latency = meant.elapsed();
        match ended {
            Ended::Done => {
                self.latency.record(latency);
                self.longest = self.longest.max(latency);
                self.done += 1;
                let kind = match kind {
                    Kind::Put(_) => 0,
                    Kind::Get => 1,
                    Kind::Delete => 2,
                };
                self.kinds[kind] += 1;
            }
            Ended::Busy => {
                self.to_busy.record(sent.elapsed());
                self.busy += 1;
            }
        }
    }

    /// In milliseconds, from the moment that each was meant to be sent.
    pub(crate) fn latencies(&self) -> String {
        let [p50, p99, p999] = [500, 990, 999].map(|permille| self.latency.quantile_us(permille) / 1000.0);
        let longest = self.longest.as_secs_f64() * 1000.0;
        format!("p50 {p50:.2} ms, p99 {p99:.2}, p99.9 {p999:.2}, max {longest:.1}")
    }
}

/// Draws the next operation.
pub(crate) type Draw = fn(&SeededEntropy) -> Kind;

/// Operations of this many tasks, each of which waits for its answers, for `time`: returns the number done a second.
pub(crate) async fn closed(
    world: &Arc<World>,
    client: &Client,
    draw: Draw,
    tasks: u64,
    time: Duration,
) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut all = JoinSet::new();
    for id in 0..tasks {
        let (world, client, done) = (world.clone(), client.clone(), done.clone());
        all.spawn(async move {
            let dice = SeededEntropy::new(lab::number("SEED", 1) * 1_000 + id);
            while began.elapsed() < time {
                let ended = world.run(&client, dice.next_u64() as usize, draw(&dice)).await;
                done.fetch_add(u64::from(ended == Ended::Done), Ordering::Relaxed);
            }
        });
    }
    in_time("the closed loop", async { while all.join_next().await.transpose().unwrap().is_some() {} }).await;
    done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

/// The choice of a client that has as many operations under way as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The next one waits, and its latency grows.
    Waits,
    /// The next one is left out.
    LeavesOut,
}

/// A load that comes on its own.
pub(crate) struct Open {
    pub(crate) draw: Draw,
    /// Operations a second.
    pub(crate) rate: f64,
    pub(crate) time: Duration,
    pub(crate) under_way_max: usize,
    pub(crate) full: Full,
}

/// Operations each at its moment, independent of the results of earlier ones. Returns their results and the time of the last
/// answers.
pub(crate) async fn open(world: &Arc<World>, client: &Client, load: &Open) -> (Tally, Duration) {
    let tally = Arc::new(Mutex::new(Tally::default()));
    let room = Arc::new(Semaphore::new(load.under_way_max));
    let dice = SeededEntropy::new(lab::number("SEED", 1));
    let began = Moment::now();
    let end = began + load.time;
    let mut all = JoinSet::new();
    for number in 0.. {
        let meant = began + Duration::from_secs_f64(f64::from(number) / load.rate);
        if meant >= end {
            break;
        }
        // Several that are due go together.
        if Moment::now() < meant {
            sleep_until(meant).await;
        }
        let (kind, near) = ((load.draw)(&dice), dice.next_u64() as usize);
        while let Some(ended) = all.try_join_next() {
            ended.unwrap();
        }
        let place = match load.full {
            Full::Waits if Moment::now() < end => Some(room.clone().acquire_owned().await.unwrap()),
            Full::Waits => None,
            Full::LeavesOut => room.clone().try_acquire_owned().ok(),
        };
        let Some(place) = place else {
            tally.lock().unwrap().left_out += 1;
            continue;
        };
        let (world, client, tally) = (world.clone(), client.clone(), tally.clone());
        all.spawn(async move {
            let sent = Instant::now();
            let ended = world.run(&client, near, kind).await;
            tally.lock().unwrap().add(meant.into_std(), sent, kind, ended);
            drop(place);
        });
    }
    let sent_all = Instant::now();
    in_time("what was sent", async { while all.join_next().await.transpose().unwrap().is_some() {} }).await;
    let tally = std::mem::take(&mut *tally.lock().unwrap());
    (tally, sent_all.elapsed())
}
