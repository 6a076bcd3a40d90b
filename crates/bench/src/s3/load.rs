//! Clients of S3: a thread and a connection each, and their measurements.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::link::{Answer, Link};
use super::sign::{S3Endpoint, S3Request, S3Signer};
use crate::enough::Enough;
use crate::histogram::Histogram;
use crate::machine;
use crate::redis::Random;

/// The measurements of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct S3Row {
    /// Times of the requests.
    pub(super) times: Histogram,
    /// Times to the first byte of their answers.
    pub(super) first_bytes: Histogram,
    /// Bytes of values, of all requests.
    pub(super) bytes: u64,
    /// Keys, and common prefixes, of lists.
    pub(super) keys: u64,
    pub(super) took: Duration,
    /// Processor time of the server, if its process is known.
    pub(super) server_cpu: Option<Duration>,
    pub(super) client_cpu: Duration,
}

impl S3Row {
    fn merge(&mut self, other: &Self) {
        self.times.merge(&other.times);
        self.first_bytes.merge(&other.first_bytes);
        self.bytes += other.bytes;
        self.keys += other.keys;
    }
}

/// A client.
pub(super) struct S3Client {
    link: Link,
    signer: S3Signer,
    request: Vec<u8>,
    /// The body of the last answer.
    pub(super) body: Vec<u8>,
    pub(super) random: Random,
    pub(super) row: S3Row,
}

impl S3Client {
    pub(super) fn new(server: &MeasuredServer, number: u64) -> Self {
        Self {
            link: Link::new(server.address),
            signer: S3Signer::new(&server.endpoint),
            request: Vec::new(),
            body: Vec::new(),
            random: Random::new(number * 1_000 + 11),
            row: S3Row::default(),
        }
    }

    /// Sends a request and takes its answer, which is measured.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn send(&mut self, request: &S3Request<'_>, body: &[u8]) -> Result<Answer> {
        self.signer.write(request, body, &mut self.request)?;
        let sent = Instant::now();
        let answer = self.link.call(&self.request, &mut self.body)?;
        self.row.times.record(sent.elapsed());
        self.row.first_bytes.record(answer.first_byte);
        Ok(answer)
    }

    /// The same; an answer with another status than `expected` is an error.
    ///
    /// # Errors
    /// The connection failed, or the status is another one.
    pub(super) fn expect(&mut self, request: &S3Request<'_>, body: &[u8], expected: u16) -> Result<()> {
        let answer = self.send(request, body)?;
        if answer.status == expected { Ok(()) } else { self.refused(request, answer.status) }
    }

    /// The error of an answer.
    ///
    /// # Errors
    /// Always.
    pub(super) fn refused<T>(&self, request: &S3Request<'_>, status: u16) -> Result<T> {
        let why = String::from_utf8_lossy(self.body.get(..self.body.len().min(500)).unwrap_or_default());
        bail!("{} {} is answered with {status}: {why}", request.method, request.path)
    }
}

/// The server that is measured.
#[derive(Clone, Debug)]
pub(super) struct MeasuredServer {
    pub(super) address: std::net::SocketAddr,
    pub(super) endpoint: S3Endpoint,
    /// Its process on this machine.
    pub(super) process: Option<u32>,
}

/// `clients` threads, each with a connection and one request in flight, until all have `enough`, or their `work` returns false.
///
/// # Errors
/// That of the first client that failed.
pub(super) fn crowd(
    server: &MeasuredServer,
    clients: usize,
    time: Option<Duration>,
    work: impl Fn(&mut S3Client) -> Result<bool> + Sync,
) -> Result<S3Row> {
    let cpu_of_server = || server.process.and_then(machine::cpu_time_of);
    let before = (cpu_of_server(), machine::cpu_time());
    let enough = time.map(Enough::after);
    let began = Instant::now();
    let client = |number: u64| -> Result<S3Row> {
        let mut client = S3Client::new(server, number);
        while work(&mut client)? && !enough.is_some_and(|enough| enough.is_reached(client.row.times.count()))
        {
        }
        Ok(client.row)
    };
    let rows: Vec<Result<S3Row>> = thread::scope(|scope| {
        let client = &client;
        let threads: Vec<_> = (0..clients as u64).map(|number| scope.spawn(move || client(number))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<S3Row>>| {
            thread.join().unwrap_or_else(|_| bail!("a client panicked"))
        };
        threads.into_iter().map(join).collect()
    });
    let mut all = S3Row { took: began.elapsed(), ..S3Row::default() };
    let spent = |(now, before): (Duration, Duration)| now.saturating_sub(before);
    all.server_cpu = cpu_of_server().zip(before.0).map(spent);
    all.client_cpu = spent((machine::cpu_time(), before.1));
    for row in rows {
        all.merge(&row?);
    }
    Ok(all)
}
