//! Development only: stores for the tests of the crates above the engine, and waiting on a runtime.
//!
//! [`StoreKit`] makes and opens a store; [`put`] and [`names`] fill it and look into it without a frontend; [`seeded`] is an
//! environment that does the same each time. [`eventually`] and [`in_time`] wait as `shoal_testkit::wait` does, for futures.
//! `shoal-testkit` has the tools that know no store. The engine's own tests cannot use this crate: it links another build of the engine
//! than the tests do, and the types would not match.

// Clippy's exception for tests does not reach a crate that only tests use.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use shoal_base::{ManualClock, SeededEntropy};
use shoal_device::sim::{Image, Latency};
use shoal_device::{Device, MemDevice};
use shoal_engine::{
    Environment, FormatOptions, ListRequest, ObjectKey, OpenOptions, PutOptions, Store, block_on,
};
use shoal_testkit::device::slow;
use shoal_testkit::wait::HANGS_AFTER;

/// How a test makes and opens its stores.
#[derive(Clone)]
pub struct StoreKit {
    /// The layout of a new store.
    pub format: FormatOptions,
    /// The options for each opening.
    pub options: OpenOptions,
    /// The clocks and the dice of the store.
    pub environment: Environment,
}

impl StoreKit {
    /// Stores of `blocks` blocks with four tablets, a cache of 32 MiB, and background threads.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Self {
            format: FormatOptions { tablets: 4, ..FormatOptions::for_blocks(blocks) },
            options: OpenOptions { cache_bytes: 32 << 20, ..OpenOptions::default() },
            environment: Environment::default(),
        }
    }

    /// The same without threads, with two tablets and a small cache, in the environment [`seeded`]: each run does the same.
    #[must_use]
    pub fn steady(blocks: u64, clock: &Arc<ManualClock>) -> Self {
        Self {
            format: FormatOptions { tablets: 2, ..FormatOptions::for_blocks(blocks) },
            options: OpenOptions { cache_bytes: 4 << 20, background: false, ..OpenOptions::default() },
            environment: seeded(clock),
        }
    }

    /// The same with a cache of `bytes`.
    #[must_use]
    pub fn with_cache(mut self, bytes: usize) -> Self {
        self.options.cache_bytes = bytes;
        self
    }

    /// The same with these clocks and dice.
    #[must_use]
    pub fn with(self, environment: Environment) -> Self {
        Self { environment, ..self }
    }

    /// A new store in memory.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn in_memory(&self) -> Store {
        self.create(&Device::new(Arc::new(MemDevice::new(self.format.blocks_max))))
    }

    /// A new store on `device`, open.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn create(&self, device: &Device) -> Store {
        block_on(Store::format(device, &self.format, &self.environment)).unwrap();
        self.open(device)
    }

    /// Opens the store on `device`.
    ///
    /// # Panics
    /// If it does not open.
    #[must_use]
    pub fn open(&self, device: &Device) -> Store {
        block_on(Store::open(device.clone(), self.options.clone(), self.environment.clone())).unwrap()
    }
}

/// An environment with this clock, and dice that fall the same each time.
#[must_use]
pub fn seeded(clock: &Arc<ManualClock>) -> Environment {
    Environment { clock: clock.clone(), entropy: Arc::new(SeededEntropy::new(7)) }
}

/// A simulated device of `blocks` blocks with these latencies and without a history.
#[must_use]
pub fn slow_device(blocks: u64, latency: Latency) -> Device {
    Device::new(slow(Image::new(blocks), latency))
}

/// Puts an object.
///
/// # Panics
/// If the store refuses it.
pub fn put(store: &Store, bucket: &str, name: &[u8], value: impl Into<Vec<u8>>) {
    let key = ObjectKey::new(bucket, name).unwrap();
    block_on(store.put(&key, value.into().into(), PutOptions::default())).unwrap();
}

/// The names of all objects of a bucket. (The store's own figure omits the ones that its trees do not hold yet.)
///
/// # Panics
/// If the store cannot list them.
#[must_use]
pub fn names(store: &Store, bucket: &str) -> BTreeSet<Vec<u8>> {
    let mut request = ListRequest { bucket: bucket.into(), limit: 1_000, ..ListRequest::default() };
    let mut names = BTreeSet::new();
    loop {
        let page = block_on(store.list(&request)).unwrap();
        names.extend(page.entries.into_iter().map(|(name, _)| name));
        match page.next {
            Some(next) => request.start_after = next,
            None => return names,
        }
    }
}

/// Waits until `holds`.
///
/// # Panics
/// If it does not hold, or has no answer, within [`HANGS_AFTER`]; the message contains `what`.
pub async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let looks = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    in_time(what, looks).await;
}

/// The output of `future`.
///
/// # Panics
/// If it has none within [`HANGS_AFTER`]; the message contains `what`.
pub async fn in_time<F: Future>(what: &str, future: F) -> F::Output {
    let output = tokio::time::timeout(HANGS_AFTER, future).await;
    output.unwrap_or_else(|_| panic!("not after {} s: {what}", HANGS_AFTER.as_secs()))
}
