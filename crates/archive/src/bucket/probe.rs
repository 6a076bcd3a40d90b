//! The probe: a store that breaks a promise of the protocol is refused before anything is archived in it.
//!
//! Many stores that speak S3 ignore a precondition, or race on it. Two servers would then own one archive, and neither would notice. The whole
//! probe runs when an archive is created, the short form at each start. It uses the folder `probe/` below the prefix, and removes its
//! objects.

use bytes::Bytes;
use futures_util::future::join_all;

use super::attempts::{WRITE_TIME, limited};
use super::requests::{RequestFailure, VersionTag};
use super::{ArchiveBucket, BucketError, CasOutcome, CreateOutcome, FetchedObject, IDENTITY_BYTES, count};

/// Parallel creates of one key.
const CREATES: usize = 32;
/// Parallel compare-and-swaps of one version.
const SWAPS: usize = 16;
/// Times that a parallel step is tried: an attempt without an answer shows nothing about the store.
const TRIES: usize = 4;
/// Bytes of an object of the probe.
const OBJECT_BYTES: usize = 1024;

/// How much is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeDepth {
    /// Everything: some 60 requests.
    Full,
    /// The promises that the fence needs, without parallel requests: some 15 requests.
    Short,
}

/// A promise of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BucketPromise {
    /// Of several creates of a key exactly one succeeds.
    OneCreateWins,
    /// The object has the bytes of the create that succeeded.
    WinnerIsStored,
    /// A create of a key that exists fails and changes nothing.
    CreateKeepsObject,
    /// A compare-and-swap of the present version succeeds.
    SwapWorks,
    /// One of an older version fails and changes nothing.
    StaleSwapFails,
    /// Of several of one version exactly one succeeds.
    OneSwapWins,
    /// One of a key that does not exist fails and creates nothing.
    SwapNeedsObject,
    /// A read returns the newest completed write.
    ReadsSeeWrites,
    /// A listing has every completed write.
    ListsSeeWrites,
    /// A read of a range returns these bytes and the length of the object.
    RangesAreExact,
    /// A deleted object is gone, and its key can be created again.
    DeletesWork,
}

impl BucketPromise {
    /// Returns true if the protocol uses it to keep two servers apart; the others are needed to read anything back.
    #[must_use]
    pub fn is_fence(self) -> bool {
        use BucketPromise::{
            CreateKeepsObject, OneCreateWins, OneSwapWins, StaleSwapFails, SwapNeedsObject, SwapWorks,
            WinnerIsStored,
        };
        let fence = [
            OneCreateWins,
            WinnerIsStored,
            CreateKeepsObject,
            SwapWorks,
            StaleSwapFails,
            OneSwapWins,
            SwapNeedsObject,
        ];
        fence.contains(&self)
    }

    fn words(self) -> &'static str {
        match self {
            Self::OneCreateWins => "of several creates of one key exactly one succeeds (If-None-Match: *)",
            Self::WinnerIsStored => "the object has the bytes of the create that succeeded",
            Self::CreateKeepsObject => "a create of a key that exists fails and changes nothing",
            Self::SwapWorks => "a put over the present version succeeds (If-Match)",
            Self::StaleSwapFails => "a put over an older version fails and changes nothing (If-Match)",
            Self::OneSwapWins => "of several puts over one version exactly one succeeds",
            Self::SwapNeedsObject => "a put over a version of a missing key fails and creates nothing",
            Self::ReadsSeeWrites => "a read returns the newest completed write",
            Self::ListsSeeWrites => "a listing has every completed write",
            Self::RangesAreExact => "a read of a range returns these bytes, and the length of the object",
            Self::DeletesWork => "a deleted object is gone, and its key can be created again",
        }
    }

    fn advice(self) -> &'static str {
        match self.is_fence() {
            true => {
                "Without it two servers may own one archive. Use a store that keeps it, and all of it through one endpoint: S3, GCS, \
                 Azure, R2, versitygw from 1.8.0 on, or a folder"
            }
            false => "Without it an archive may not be readable. Use another store, or a newer version of it",
        }
    }
}

/// A bucket that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeRefusal {
    /// The store breaks a promise.
    #[error("this store cannot hold an archive: it does not promise that {}. {found}. {}", .promise.words(), .promise.advice())]
    Broken {
        /// The promise.
        promise: BucketPromise,
        /// The observation.
        found: String,
    },
    /// A request has no outcome.
    #[error("the bucket cannot be probed: {0}")]
    Request(BucketError),
}

impl From<BucketError> for ProbeRefusal {
    fn from(error: BucketError) -> Self {
        match error {
            BucketError::WrongLength { bytes, announced, .. } => {
                let found = format!("A read returned {bytes} bytes where {announced} were announced");
                Self::Broken { promise: BucketPromise::RangesAreExact, found }
            }
            other => Self::Request(other),
        }
    }
}

/// A bucket that keeps all promises that were probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// Checks that succeeded.
    pub checks: u32,
}

/// A probe that runs.
struct Probe<'a> {
    bucket: &'a ArchiveBucket,
    /// Names of its objects start with it.
    folder: String,
    /// Objects so far.
    keys: u32,
    checks: u32,
}

impl ArchiveBucket {
    /// Checks the promises of the store.
    ///
    /// # Errors
    /// [`ProbeRefusal`], with the promise that the store breaks and the remedy.
    pub async fn probe(&self, depth: ProbeDepth) -> Result<ProbeReport, ProbeRefusal> {
        let folder = format!("probe/{:016x}", self.dice.next_u64());
        let mut probe = Probe { bucket: self, folder, keys: 0, checks: 0 };
        let result = match depth {
            ProbeDepth::Full => probe.full().await,
            ProbeDepth::Short => probe.short().await,
        };
        let removed = probe.remove_all().await;
        result?;
        removed?;
        Ok(ProbeReport { checks: probe.checks })
    }
}

impl Probe<'_> {
    async fn full(&mut self) -> Result<(), ProbeRefusal> {
        let (key, bytes) = self.one_create_wins().await?;
        self.lists(&key, true).await?;
        // Ambiguous creates are decided by a range.
        self.ranges(&key, &bytes).await?;
        self.create_keeps_object(&key, &bytes).await?;
        let (bytes, tag) = self.swaps(&key).await?;
        self.one_swap_wins(&key, &tag, bytes).await?;
        self.swap_needs_object(&tag).await?;
        self.deletes(&key).await?;
        self.lists(&key, false).await
    }

    async fn short(&mut self) -> Result<(), ProbeRefusal> {
        let (key, bytes) = (self.key(), self.bytes());
        match self.create(&key, &bytes).await? {
            CreateOutcome::Created => self.checks += 1,
            CreateOutcome::Exists { .. } => {
                return self.broken(BucketPromise::OneCreateWins, "A create of a new key failed");
            }
        }
        self.create_keeps_object(&key, &bytes).await?;
        let (_, tag) = self.swaps(&key).await?;
        self.swap_needs_object(&tag).await
    }

    fn key(&mut self) -> String {
        self.keys += 1;
        format!("{}/{:08x}", self.folder, self.keys - 1)
    }

    /// Bytes that no other object has.
    fn bytes(&self) -> Bytes {
        let words = (0..OBJECT_BYTES / 8).map(|_| self.bucket.dice.next_u64().to_le_bytes());
        words.flatten().collect::<Vec<u8>>().into()
    }

    fn broken<T>(&self, promise: BucketPromise, found: impl Into<String>) -> Result<T, ProbeRefusal> {
        Err(ProbeRefusal::Broken { promise, found: found.into() })
    }

    fn check(
        &mut self,
        promise: BucketPromise,
        holds: bool,
        found: impl FnOnce() -> String,
    ) -> Result<(), ProbeRefusal> {
        self.checks += 1;
        if holds { Ok(()) } else { self.broken(promise, found()) }
    }

    /// As the bucket's; a store without the request breaks the promise.
    async fn create(&self, key: &str, bytes: &Bytes) -> Result<CreateOutcome, ProbeRefusal> {
        match self.bucket.create(key, bytes.clone()).await {
            Err(BucketError::Unsupported { why, .. }) => self.broken(BucketPromise::OneCreateWins, why),
            other => Ok(other?),
        }
    }

    async fn swap(&self, key: &str, bytes: &Bytes, tag: &VersionTag) -> Result<CasOutcome, ProbeRefusal> {
        match self.bucket.cas(key, bytes.clone(), tag).await {
            Err(BucketError::Unsupported { why, .. }) => self.broken(BucketPromise::SwapWorks, why),
            Err(BucketError::Undecided { last, .. }) if last == RequestFailure::Conflict.to_string() => {
                self.broken(BucketPromise::SwapWorks, "A put over the present version always fails")
            }
            other => Ok(other?),
        }
    }

    /// The object, whose bytes are `bytes`.
    async fn read(
        &mut self,
        key: &str,
        bytes: &Bytes,
        promise: BucketPromise,
    ) -> Result<FetchedObject, ProbeRefusal> {
        self.checks += 1;
        match self.bucket.get(key).await? {
            None => self.broken(BucketPromise::ReadsSeeWrites, "An object that was just written is missing"),
            Some(found) if found.bytes != *bytes => self.broken(promise, "The object has other bytes"),
            Some(found) => Ok(found),
        }
    }

    /// Results of the parallel attempts that `start` makes, all of them decisive, and their key.
    fn winners(results: &[Result<(), RequestFailure>]) -> Option<Vec<usize>> {
        let is_decisive = |result: &Result<(), RequestFailure>| {
            matches!(result, Ok(()) | Err(RequestFailure::Conflict | RequestFailure::NotFound))
        };
        let won = results.iter().enumerate().filter(|(_, result)| result.is_ok());
        results.iter().all(is_decisive).then(|| won.map(|(at, _)| at).collect())
    }

    /// The first failure that decides nothing about a promise, as an error.
    fn undecided(&self, key: &str, results: &[Result<(), RequestFailure>]) -> ProbeRefusal {
        let object = key.to_owned();
        for result in results {
            match result {
                Err(RequestFailure::Refused(why)) => {
                    return BucketError::Refused { object, why: why.clone() }.into();
                }
                Err(RequestFailure::Unsupported(why)) => {
                    let (promise, found) = (BucketPromise::OneCreateWins, why.clone());
                    return ProbeRefusal::Broken { promise, found };
                }
                _ => {}
            }
        }
        let last = results.iter().find_map(|result| result.as_ref().err().map(ToString::to_string));
        let (attempts, last) = (TRIES as u32, last.unwrap_or_default());
        BucketError::Undecided { object, attempts, seconds: 0, last }.into()
    }

    /// The key of parallel creates, and the bytes of the one that succeeded.
    async fn one_create_wins(&mut self) -> Result<(String, Bytes), ProbeRefusal> {
        let mut error = None;
        for _ in 0..TRIES {
            let key = self.key();
            let all: Vec<Bytes> = (0..CREATES).map(|_| self.bytes()).collect();
            let attempts = all.iter().map(|bytes| {
                count(&self.bucket.counters.puts);
                limited(WRITE_TIME, self.bucket.requests.create(&key, bytes.clone()))
            });
            let results = join_all(attempts).await;
            let Some(winners) = Self::winners(&results) else {
                error = Some(self.undecided(&key, &results));
                continue;
            };
            let number = winners.len();
            let found = || format!("{number} of {CREATES} parallel creates succeeded");
            self.check(BucketPromise::OneCreateWins, number == 1, found)?;
            let bytes = all[winners[0]].clone();
            self.read(&key, &bytes, BucketPromise::WinnerIsStored).await?;
            return Ok((key, bytes));
        }
        Err(error.unwrap_or_else(|| self.undecided("probe", &[])))
    }

    async fn create_keeps_object(&mut self, key: &str, bytes: &Bytes) -> Result<(), ProbeRefusal> {
        let promise = BucketPromise::CreateKeepsObject;
        let other = self.bytes();
        let outcome = self.create(key, &other).await?;
        let head = bytes.slice(..IDENTITY_BYTES as usize);
        let expected = CreateOutcome::Exists { head, object_bytes: bytes.len() as u64 };
        let found = || "A second create of the key succeeded, or shows other bytes".to_owned();
        self.check(promise, outcome == expected, found)?;
        self.read(key, bytes, promise).await?;
        // As after a lost answer: the same bytes again.
        let again = self.create(key, bytes).await?;
        self.check(promise, again == CreateOutcome::Created, || "The object is not recognised".to_owned())
    }

    async fn lists(&mut self, key: &str, is_there: bool) -> Result<(), ProbeRefusal> {
        let mut bytes = None;
        let take = |object: super::BucketEntry| {
            if object.name == key {
                bytes = Some(object.bytes);
            }
        };
        self.bucket.list(&self.folder, take).await?;
        let expected = is_there.then_some(OBJECT_BYTES as u64);
        let state = if is_there { "a new object" } else { "a deleted object" };
        let found = || format!("A listing shows {bytes:?} bytes of {state}");
        self.check(BucketPromise::ListsSeeWrites, bytes == expected, found)
    }

    async fn ranges(&mut self, key: &str, bytes: &Bytes) -> Result<(), ProbeRefusal> {
        for (start, end) in [(0, 128), (500, 700), (1_000, 2_000)] {
            let promise = BucketPromise::RangesAreExact;
            let found = match self.bucket.get_range(key, start..end).await {
                Err(BucketError::Unsupported { why, .. }) => return self.broken(promise, why),
                other => other?,
            };
            let Some(found) = found else {
                return self.broken(BucketPromise::ReadsSeeWrites, "An object is missing");
            };
            let expected = bytes.slice(start as usize..bytes.len().min(end as usize));
            let is_exact = found.bytes == expected && found.object_bytes == bytes.len() as u64;
            self.check(promise, is_exact, || format!("Bytes {start} to {end} are wrong"))?;
        }
        Ok(())
    }

    /// One swap of the present version, one of the version before; the present bytes and version.
    async fn swaps(&mut self, key: &str) -> Result<(Bytes, VersionTag), ProbeRefusal> {
        let Some(before) = self.bucket.get(key).await? else {
            return self.broken(BucketPromise::ReadsSeeWrites, "An object is missing");
        };
        let (bytes, stale) = (self.bytes(), self.bytes());
        let done = self.swap(key, &bytes, &before.tag).await?;
        let found = || "A put over the version that was just read failed".to_owned();
        self.check(BucketPromise::SwapWorks, matches!(done, CasOutcome::Done(_)), found)?;
        let after = self.read(key, &bytes, BucketPromise::ReadsSeeWrites).await?;
        let refused = self.swap(key, &stale, &before.tag).await?;
        let found = || "A put over an older version succeeded".to_owned();
        self.check(BucketPromise::StaleSwapFails, matches!(refused, CasOutcome::Changed(Some(_))), found)?;
        self.read(key, &bytes, BucketPromise::StaleSwapFails).await?;
        Ok((bytes, after.tag))
    }

    async fn one_swap_wins(&mut self, key: &str, tag: &VersionTag, bytes: Bytes) -> Result<(), ProbeRefusal> {
        let (mut tag, mut present, mut error) = (tag.clone(), bytes, None);
        for _ in 0..TRIES {
            let all: Vec<Bytes> = (0..SWAPS).map(|_| self.bytes()).collect();
            let attempts = all.iter().map(|bytes| {
                count(&self.bucket.counters.puts);
                limited(WRITE_TIME, self.bucket.requests.replace(key, bytes.clone(), &tag))
            });
            let results: Vec<_> = join_all(attempts).await.into_iter().map(|it| it.map(drop)).collect();
            let winners = Self::winners(&results);
            // S3 may answer 409 to all of them: then none was decided, and the version is the same.
            if let Some(winners) = winners.filter(|winners| !winners.is_empty()) {
                let number = winners.len();
                let found = || format!("{number} of {SWAPS} parallel puts over one version succeeded");
                self.check(BucketPromise::OneSwapWins, number == 1, found)?;
                self.read(key, &all[winners[0]], BucketPromise::OneSwapWins).await?;
                return Ok(());
            }
            error = Some(self.undecided(key, &results));
            let Some(found) = self.bucket.get(key).await? else { break };
            if found.bytes != present && !all.contains(&found.bytes) {
                return self.broken(BucketPromise::ReadsSeeWrites, "The object has bytes that nobody wrote");
            }
            (tag, present) = (found.tag, found.bytes);
        }
        Err(error.unwrap_or_else(|| self.undecided(key, &[])))
    }

    async fn swap_needs_object(&mut self, tag: &VersionTag) -> Result<(), ProbeRefusal> {
        let (key, bytes) = (self.key(), self.bytes());
        let outcome = self.swap(&key, &bytes, tag).await?;
        let found = || "A put over a version of a missing key succeeded".to_owned();
        self.check(BucketPromise::SwapNeedsObject, outcome == CasOutcome::Changed(None), found)?;
        let object = self.bucket.get(&key).await?;
        let found = || "A put over a version of a missing key created it".to_owned();
        self.check(BucketPromise::SwapNeedsObject, object.is_none(), found)
    }

    async fn deletes(&mut self, key: &str) -> Result<(), ProbeRefusal> {
        let promise = BucketPromise::DeletesWork;
        self.bucket.delete(key).await?;
        let object = self.bucket.get(key).await?;
        self.check(promise, object.is_none(), || "A deleted object can be read".to_owned())?;
        let bytes = self.bytes();
        let outcome = match self.bucket.create(key, bytes.clone()).await {
            Err(BucketError::Undecided { .. }) => {
                return self.broken(promise, "A create of a deleted key never succeeds");
            }
            other => other?,
        };
        let found = || "A create of a deleted key failed".to_owned();
        self.check(promise, outcome == CreateOutcome::Created, found)?;
        self.read(key, &bytes, promise).await?;
        self.bucket.delete(key).await?;
        Ok(())
    }

    async fn remove_all(&self) -> Result<(), BucketError> {
        for number in 0..self.keys {
            self.bucket.delete(&format!("{}/{number:08x}", self.folder)).await?;
        }
        Ok(())
    }
}
