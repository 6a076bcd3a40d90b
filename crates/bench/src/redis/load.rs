//! Clients of the Redis protocol: a thread and a connection each, and their measurements.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use super::link::Link;
use crate::enough::Enough;
use crate::histogram::Histogram;

/// The measurements of a row.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Times of the operations.
    pub times: Histogram,
    /// Time of the row.
    pub took: Duration,
    /// Objects of an operation.
    pub objects: usize,
    /// Bytes of values, of all operations.
    pub bytes: u64,
}

/// Pseudo-random numbers; the same in each run.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Another order for each `seed` above 0.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number below `count`.
    pub fn below(&mut self, count: u64) -> u64 {
        // Xorshift: good enough to defeat caches.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % count.max(1)
    }
}

/// `clients` threads, each with a connection and one operation in flight, until they have `enough`. `operation` makes the commands of
/// one, `objects` of them, with random numbers.
///
/// # Errors
/// A connection failed, or a reply is an error.
pub fn crowd(
    address: SocketAddr,
    enough: Enough,
    clients: usize,
    objects: usize,
    operation: impl Fn(&mut Random) -> Vec<u8> + Sync,
) -> Result<Row> {
    let client = |number: u64| -> Result<Row> {
        let (mut link, mut random) = (Link::connect(address)?, Random::new(number * 1_000 + 11));
        let mut row = Row { objects, ..Row::default() };
        while !enough.is_reached(row.times.count()) {
            let commands = operation(&mut random);
            let before = std::time::Instant::now();
            row.bytes += link.call(&commands, objects)? as u64;
            row.times.record(before.elapsed());
        }
        Ok(row)
    };
    let mut all = Row { objects, ..Row::default() };
    let rows: Vec<Result<Row>> = thread::scope(|scope| {
        let client = &client;
        let threads: Vec<_> = (0..clients as u64).map(|number| scope.spawn(move || client(number))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Row>>| {
            thread.join().unwrap_or_else(|_| bail!("a client panicked"))
        };
        threads.into_iter().map(join).collect()
    });
    all.took = enough.elapsed();
    for row in rows {
        let row = row?;
        all.times.merge(&row.times);
        all.bytes += row.bytes;
    }
    Ok(all)
}
