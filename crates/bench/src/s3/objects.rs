//! The objects that are put and got.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use shoal_s3::body::checksum::{ChecksumAlgorithm, ChecksumHasher};
use shoal_s3::sign::key::sha256;
use shoal_s3::text::hex;

use super::load::{MeasuredServer, S3Client, S3Row, crowd};
use super::sign::{S3Request, UNSIGNED};
use crate::payload::{RandomBytes, Sizes};
use crate::scale::SEED;

/// Different values of a size.
const VALUES: u64 = 16;

/// The headers by which a client lets the server check the body of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutVariant {
    /// None.
    Unsigned,
    /// The signed SHA-256.
    Signed,
    /// A CRC-32, as the SDKs send it.
    Crc32,
}

impl PutVariant {
    pub(super) const ALL: [Self; 3] = [Self::Unsigned, Self::Signed, Self::Crc32];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Unsigned => "unsigned",
            Self::Signed => "signed",
            Self::Crc32 => "crc32",
        }
    }
}

/// A value with its checksums, computed before the measurement.
struct Value {
    bytes: Bytes,
    sha256: String,
    crc32: String,
}

/// The objects of a size.
pub(super) struct Objects<'a> {
    server: &'a MeasuredServer,
    bucket: &'a str,
    size: String,
    count: u64,
    values: Vec<Value>,
    /// Objects that were put, in the order of their numbers; then they are put again.
    put: AtomicU64,
}

impl<'a> Objects<'a> {
    /// `count` objects of `bytes` bytes, the size with this name.
    pub(super) fn new(
        server: &'a MeasuredServer,
        bucket: &'a str,
        (size, bytes): (&str, u32),
        count: u64,
    ) -> Self {
        let set = RandomBytes::new(SEED).set(size, Sizes::Fixed(bytes));
        let value = |number| {
            let (bytes, mut crc32) = (set.value(number), ChecksumHasher::new(ChecksumAlgorithm::Crc32));
            crc32.update(&bytes);
            Value { sha256: hex(&sha256(&bytes)), crc32: crc32.finish().text(), bytes }
        };
        let values = (0..VALUES).map(value).collect();
        Self { server, bucket, size: size.to_owned(), count, values, put: AtomicU64::new(0) }
    }

    fn path(&self, number: u64) -> String {
        let folder = number % 256;
        format!("/{}/values/{}/{folder:02x}/{number:010}", self.bucket, self.size)
    }

    fn value(&self, number: u64) -> Result<&Value> {
        self.values.get((number % VALUES) as usize).context("each object has a value")
    }

    fn put(&self, client: &mut S3Client, number: u64, variant: PutVariant) -> Result<()> {
        let (path, value) = (self.path(number), self.value(number)?);
        let checksum = [(ChecksumAlgorithm::Crc32.header(), value.crc32.as_str())];
        let request = S3Request {
            method: "PUT",
            path: &path,
            query: "",
            headers: if variant == PutVariant::Crc32 { &checksum } else { &[] },
            payload: if variant == PutVariant::Signed { &value.sha256 } else { UNSIGNED },
        };
        client.expect(&request, &value.bytes, 200)?;
        client.row.bytes += value.bytes.len() as u64;
        Ok(())
    }

    fn get(&self, client: &mut S3Client, number: u64) -> Result<()> {
        let path = self.path(number);
        let request = S3Request { method: "GET", path: &path, query: "", headers: &[], payload: UNSIGNED };
        client.expect(&request, b"", 200)?;
        ensure!(client.body == self.value(number)?.bytes, "{path} came back with other bytes");
        client.row.bytes += client.body.len() as u64;
        Ok(())
    }

    /// Puts the next objects for `time`.
    pub(super) fn measure_puts(&self, clients: usize, time: Duration, variant: PutVariant) -> Result<S3Row> {
        crowd(self.server, clients, Some(time), |client| {
            let number = self.put.fetch_add(1, Ordering::Relaxed) % self.count;
            self.put(client, number, variant).map(|()| true)
        })
    }

    /// Gets random objects for `time`.
    pub(super) fn measure_gets(&self, clients: usize, time: Duration) -> Result<S3Row> {
        crowd(self.server, clients, Some(time), |client| {
            let number = client.random.below(self.count);
            self.get(client, number).map(|()| true)
        })
    }

    /// Notes that all objects exist.
    pub(super) fn set_filled(&self) {
        self.put.store(self.count, Ordering::Relaxed);
    }

    /// Deletes the objects that were put.
    pub(super) fn delete(&self, clients: usize) -> Result<()> {
        let put = self.put.load(Ordering::Relaxed).min(self.count);
        each(self.server, clients, 0..put, |client, number| delete(client, &self.path(number)))
    }

    /// Puts the objects that were not put yet.
    pub(super) fn fill(&self, clients: usize) -> Result<()> {
        let from = self.put.fetch_max(self.count, Ordering::Relaxed).min(self.count);
        each(self.server, clients, from..self.count, |client, number| {
            self.put(client, number, PutVariant::Unsigned)
        })
    }
}

/// Does `work` with each number, by several clients.
pub(super) fn each(
    server: &MeasuredServer,
    clients: usize,
    numbers: Range<u64>,
    work: impl Fn(&mut S3Client, u64) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicU64::new(numbers.start);
    let done = crowd(server, clients, None, |client| {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= numbers.end {
            return Ok(false);
        }
        work(client, number).map(|()| true)
    });
    done.map(|_| ())
}

/// Deletes an object.
pub(super) fn delete(client: &mut S3Client, path: &str) -> Result<()> {
    let request = S3Request { method: "DELETE", path, query: "", headers: &[], payload: UNSIGNED };
    client.expect(&request, b"", 204)
}
