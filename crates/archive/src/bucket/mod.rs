//! The bucket of an archive: requests whose outcome is known.
//!
//! A store may lose an answer, apply a request late, or refuse to decide. Requests here are repeated with the same bytes under the same name
//! until the outcome is known, so an ambiguous answer is decided by the object itself: all objects differ in their first 128 bytes.
//!
//! Reading order: `address.rs`; `requests.rs` (one attempt, for any store); `remote.rs` with `transport.rs` (S3, GCS, Azure),
//! `folder.rs`; `pace.rs` (pauses, the budget of PUTs); `attempts.rs` (retries and the table of outcomes); `probe.rs` (a store that breaks
//! a promise is refused).
//!
//! The requests are futures of tokio, as the frontends': a segment has time limits, second attempts beside slow ones and seven others in
//! flight, and the protocol libraries need that runtime. The engine sees none of it.

mod address;
mod attempts;
#[cfg(test)]
pub(crate) mod fault;
mod folder;
mod pace;
mod probe;
mod remote;
pub(crate) mod requests;
#[cfg(test)]
mod tests;
mod transport;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use shoal_base::Entropy;

pub use address::{BucketAddress, WrongAddress};
pub use probe::{BucketPromise, ProbeDepth, ProbeRefusal, ProbeReport};
pub use requests::{BucketEntry, FetchedObject, VersionTag};

use address::Place;
use folder::FolderBucket;
use pace::{PutBudget, PutTimes};
use remote::{RemoteAddress, RemoteBucket};
use requests::{BucketRequests, RequestFailure};

/// First bytes of an object that differ from those of any other object.
pub const IDENTITY_BYTES: u64 = 128;

/// Options of a bucket.
#[derive(Clone, Copy, Debug)]
pub struct BucketOptions {
    /// PUTs of small objects a second at most; those of 256 KiB and more do not wait.
    pub puts_per_second: u32,
    /// A request without an outcome is repeated for this time.
    pub patience: Duration,
}

impl Default for BucketOptions {
    fn default() -> Self {
        Self { puts_per_second: 10, patience: Duration::from_secs(60) }
    }
}

/// A create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// The object has the bytes of this request.
    Created,
    /// The object has other bytes.
    Exists {
        /// Its first [`IDENTITY_BYTES`], or all if it has fewer.
        head: Bytes,
        /// Its bytes.
        object_bytes: u64,
    },
}

/// A compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CasOutcome {
    /// The object has the bytes of this request, in this version.
    Done(VersionTag),
    /// It has another version; `None`: it does not exist.
    Changed(Option<FetchedObject>),
}

/// A request without an outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// Nothing decisive in the time of [`BucketOptions::patience`]. A write may have taken effect, or may take effect later: only the same
    /// bytes may be sent under this name.
    #[error("{object}: no outcome after {attempts} attempts in {seconds} s; the last one: {last}")]
    Undecided {
        /// The object.
        object: String,
        /// Attempts.
        attempts: u32,
        /// Seconds since the first one.
        seconds: u64,
        /// The last result.
        last: String,
    },
    /// The store refuses the request. It is not repeated at once, because somebody must change something.
    #[error(
        "{object}: {why}. Check the credentials, their rights (get, put, delete, list) and the name of the bucket"
    )]
    Refused {
        /// The object.
        object: String,
        /// The answer.
        why: String,
    },
    /// The bodies of an object have another length than their answers announce, each time. The object or the store is damaged.
    #[error(
        "{object}: {bytes} bytes came where {announced} were announced, {times} times. The object or the store is damaged"
    )]
    WrongLength {
        /// The object.
        object: String,
        /// Bytes that came last.
        bytes: u64,
        /// Bytes that were announced.
        announced: u64,
        /// Times.
        times: u32,
    },
    /// The store does not have this request.
    #[error("{object}: {why}. Use a store with conditional writes")]
    Unsupported {
        /// The object.
        object: String,
        /// The answer.
        why: String,
    },
}

/// Counts of a bucket's requests.
#[derive(Debug, Default)]
pub struct BucketCounters {
    /// Attempts at creates and compare-and-swaps.
    pub puts: AtomicU64,
    /// Attempts at gets.
    pub gets: AtomicU64,
    /// Attempts at deletes.
    pub deletes: AtomicU64,
    /// Attempts at listings.
    pub lists: AtomicU64,
    /// Attempts that failed.
    pub failures: AtomicU64,
    /// Second attempts beside slow ones.
    pub second_attempts: AtomicU64,
    /// Ambiguous answers that were decided: the object is ours.
    pub ambiguous_ours: AtomicU64,
    /// Ambiguous answers that were decided: the object is not ours.
    pub ambiguous_foreign: AtomicU64,
    /// Bodies of a wrong length, which were fetched again.
    pub wrong_lengths: AtomicU64,
}

fn count(counter: &AtomicU64) {
    // A statistic: nothing is ordered by it.
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A prefix of a bucket.
pub struct ArchiveBucket {
    requests: Box<dyn BucketRequests>,
    options: BucketOptions,
    budget: PutBudget,
    times: PutTimes,
    dice: Arc<dyn Entropy>,
    counters: BucketCounters,
}

impl ArchiveBucket {
    /// The bucket at `address`. Credentials come from the environment, from the files or from the machine, as the provider's tools find them.
    ///
    /// # Errors
    /// [`BucketError::Refused`] if the configuration is not complete.
    pub fn open(
        address: &BucketAddress,
        options: BucketOptions,
        dice: Arc<dyn Entropy>,
    ) -> Result<Self, BucketError> {
        let requests: Result<Box<dyn BucketRequests>, RequestFailure> = match &address.0 {
            Place::Folder(root) => Ok(Box::new(FolderBucket::new(root, Arc::clone(&dice)))),
            Place::Remote { kind, bucket, prefix, endpoint, region } => RemoteBucket::open(&RemoteAddress {
                kind: *kind,
                bucket,
                prefix,
                endpoint: endpoint.as_deref(),
                region: region.as_deref(),
            })
            .map(|it| Box::new(it) as _),
        };
        let refused = |why| BucketError::Refused { object: "the archive".to_owned(), why };
        let requests = requests.map_err(|failure| refused(failure.to_string()))?;
        Ok(Self::over(requests, options, dice))
    }

    pub(crate) fn over(
        requests: Box<dyn BucketRequests>,
        options: BucketOptions,
        dice: Arc<dyn Entropy>,
    ) -> Self {
        let (budget, times) = (PutBudget::new(options.puts_per_second), PutTimes::default());
        Self { requests, options, budget, times, dice, counters: BucketCounters::default() }
    }

    /// The counts of its requests.
    #[must_use]
    pub fn counters(&self) -> &BucketCounters {
        &self.counters
    }
}
