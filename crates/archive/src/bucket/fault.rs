//! A bucket in memory that fails as real ones do, on the runtime's virtual clock, by a seed; and that breaks one promise on request.
//!
//! Each request rolls the dice for its kind of fault. Every fault counts, so a test can show that none was left out.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use shoal_base::SeededEntropy;
use tokio::time::{Instant, sleep};

use super::requests::{Attempt, BucketEntry, BucketRequests, FetchedObject, RequestFailure, VersionTag};
use super::{ArchiveBucket, BucketOptions};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The request takes effect, and its answer is lost.
    AnswerLost,
    /// The answer is lost, and the request takes effect a minute later.
    AppliedLate,
    /// The request is lost.
    NeverApplied,
    /// 409: the store did not decide.
    Undecided,
    /// 503 for everybody, for half a minute.
    Storm,
    /// The store asks for fewer requests.
    SlowDown,
    /// A request for this key takes 10 s, or longer.
    StuckKey,
    /// A listing misses the newest object, and shows one that was deleted.
    StaleList,
    /// The end of a body is missing.
    Truncated,
    /// A body is too long.
    Padded,
    /// A body is that of another object.
    Swapped,
    /// A body is that of an older version.
    OldBody,
    /// A bit of a body is wrong.
    FlippedBit,
    /// Somebody deletes an object.
    DeletedKey,
    /// Credentials are not valid for some time.
    ExpiredCredentials,
}

use Fault::{
    AnswerLost, AppliedLate, DeletedKey, ExpiredCredentials, FlippedBit, NeverApplied, OldBody, Padded,
    SlowDown, StaleList, Storm, StuckKey, Swapped, Truncated, Undecided,
};

pub(crate) const FAULTS: [Fault; 15] = [
    AnswerLost,
    AppliedLate,
    NeverApplied,
    Undecided,
    Storm,
    SlowDown,
    StuckKey,
    StaleList,
    Truncated,
    Padded,
    Swapped,
    OldBody,
    FlippedBit,
    DeletedKey,
    ExpiredCredentials,
];

/// A promise that the store breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// If-None-Match is ignored.
    CreateReplaces,
    /// The test and the write of a create are not one step.
    CreateRaces,
    /// A create that lost leaves its bytes.
    LoserIsStored,
    /// There is no conditional create.
    NoCreate,
    /// If-Match is ignored.
    SwapIgnoresTag,
    /// The test and the write of a swap are not one step.
    SwapRaces,
    /// A swap on a missing key creates it.
    SwapCreates,
    /// A swap fails always.
    SwapNeverWorks,
    /// There is no conditional replace.
    NoSwap,
    /// Reads return the version before.
    StaleReads,
    /// Listings miss new objects.
    ListMissesNew,
    /// Listings show deleted objects.
    ListShowsDeleted,
    /// A range is ignored: the whole object comes.
    RangeIgnored,
    /// The length of the object is that of the range.
    RangeHidesLength,
    /// A delete does nothing.
    DeleteIgnored,
    /// A deleted key cannot be created again.
    DeleteSticks,
}

/// The time that a request takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Latency {
    None,
    /// Percentiles 50, 99 and 99.9, milliseconds; 0 is half of the first one.
    Percentiles(u64, u64, u64),
}

impl Latency {
    /// S3 Standard.
    pub(crate) const S3: Self = Self::Percentiles(100, 195, 274);
    /// A store in the same rack.
    pub(crate) const NEAR: Self = Self::Percentiles(8, 16, 30);

    fn roll(self, dice: &SeededEntropy) -> Duration {
        let Self::Percentiles(p50, p99, p999) = self else { return Duration::ZERO };
        let points = [(0, p50 * 500), (5_000, p50 * 1_000), (9_900, p99 * 1_000), (9_990, p999 * 1_000)];
        let roll = dice.below(9_990);
        let at = points.iter().rposition(|(share, _)| *share <= roll).unwrap_or(0);
        let ((from, low), (to, high)) = (points[at], points[(at + 1).min(3)]);
        Duration::from_micros(low + (high - low) * (roll - from) / (to - from).max(1))
    }
}

#[derive(Clone)]
struct Stored {
    bytes: Bytes,
    version: u64,
    /// The version before, with its bytes.
    older: Option<(Bytes, u64)>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Stored>,
    /// Names and lengths of deleted objects.
    deleted: BTreeMap<String, u64>,
    newest: Option<String>,
    versions: u64,
    counts: BTreeMap<Fault, u64>,
    storm_until: Option<Instant>,
    expired_until: Option<Instant>,
    /// Names that somebody else deleted.
    vanished: Vec<String>,
    /// Faults that do not come any more.
    off: Vec<Fault>,
}

struct Shared {
    state: Mutex<State>,
    dice: SeededEntropy,
    /// How often a request has each fault, of 10,000; a tenth of that for faults that last.
    rate: u64,
    latency: Latency,
    lie: Option<Lie>,
}

/// The bucket. A clone is the same bucket.
#[derive(Clone)]
pub(crate) struct FaultStore(Arc<Shared>);

impl FaultStore {
    /// A bucket that has each fault in `rate` of 10,000 requests.
    pub(crate) fn new(seed: u64, rate: u64, latency: Latency) -> Self {
        let (state, dice) = (Mutex::default(), SeededEntropy::new(seed));
        Self(Arc::new(Shared { state, dice, rate, latency, lie: None }))
    }

    /// A bucket without a fault that breaks a promise.
    pub(crate) fn lying(lie: Lie) -> Self {
        let (state, dice) = (Mutex::default(), SeededEntropy::new(1));
        let latency = Latency::NEAR;
        Self(Arc::new(Shared { state, dice, rate: 0, latency, lie: Some(lie) }))
    }

    /// How often each fault came.
    pub(crate) fn counts(&self) -> BTreeMap<Fault, u64> {
        self.0.state.lock().counts.clone()
    }

    /// The bucket over this store, without a limit of PUTs.
    pub(crate) fn bucket(&self, seed: u64) -> ArchiveBucket {
        let options = BucketOptions { puts_per_second: 1_000_000, patience: Duration::from_secs(300) };
        ArchiveBucket::over(Box::new(self.clone()), options, Arc::new(SeededEntropy::new(seed)))
    }

    /// Puts an object there, whatever the bucket has.
    pub(crate) fn plant(&self, name: &str, bytes: Bytes) {
        self.0.state.lock().put(name, bytes);
    }

    /// Removes an object.
    pub(crate) fn remove(&self, name: &str) {
        self.0.state.lock().objects.remove(name);
    }

    /// All objects as they are.
    pub(crate) fn contents(&self) -> BTreeMap<String, Bytes> {
        let state = self.0.state.lock();
        state.objects.iter().map(|(name, stored)| (name.clone(), stored.bytes.clone())).collect()
    }

    /// Objects that somebody deleted.
    pub(crate) fn vanished(&self) -> Vec<String> {
        self.0.state.lock().vanished.clone()
    }

    /// Puts credentials out of order for this time.
    pub(crate) fn expire(&self, time: Duration) {
        self.0.state.lock().expired_until = Some(Instant::now() + time);
    }

    /// These faults, and no others, do not come from now on.
    pub(crate) fn turn_off(&self, faults: &[Fault]) {
        self.0.state.lock().off = faults.to_vec();
    }

    fn lies(&self, lie: Lie) -> bool {
        self.0.lie == Some(lie)
    }

    fn hit(&self, fault: Fault) -> bool {
        // Those that last hit many requests.
        let rate = if matches!(fault, Storm | ExpiredCredentials) { self.0.rate } else { self.0.rate * 10 };
        let hit = self.0.dice.below(100_000) < rate && !self.0.state.lock().off.contains(&fault);
        if hit {
            self.count(fault);
        }
        hit
    }

    fn count(&self, fault: Fault) {
        *self.0.state.lock().counts.entry(fault).or_default() += 1;
    }

    /// Everything that may happen before a request is looked at.
    async fn arrive(&self) -> Result<(), RequestFailure> {
        sleep(self.0.latency.roll(&self.0.dice)).await;
        if self.hit(Storm) {
            self.0.state.lock().storm_until = Some(Instant::now() + Duration::from_secs(30));
        }
        if self.hit(ExpiredCredentials) {
            self.expire(Duration::from_secs(20));
        }
        if self.hit(DeletedKey) {
            let mut state = self.0.state.lock();
            let which = self.0.dice.below(state.objects.len() as u64) as usize;
            if let Some(name) = state.objects.keys().nth(which).cloned() {
                state.objects.remove(&name);
                state.vanished.push(name);
            }
        }
        self.refuses()?;
        if self.hit(SlowDown) {
            return Err(RequestFailure::Throttled("429".to_owned()));
        }
        if self.hit(StuckKey) {
            sleep(Duration::from_secs(10 + self.0.dice.below(60))).await;
        }
        Ok(())
    }

    /// The state of the whole store.
    fn refuses(&self) -> Result<(), RequestFailure> {
        let (now, state) = (Instant::now(), self.0.state.lock());
        if state.storm_until.is_some_and(|until| now < until) {
            return Err(RequestFailure::Throttled("503 SlowDown, of a storm".to_owned()));
        }
        if state.expired_until.is_some_and(|until| now < until) {
            return Err(RequestFailure::Refused("403 ExpiredToken".to_owned()));
        }
        Ok(())
    }

    /// A write with its faults; `apply` is its effect.
    async fn write<T: Send + 'static>(
        &self,
        apply: impl FnOnce(&mut State) -> Result<T, RequestFailure> + Send + 'static,
    ) -> Result<T, RequestFailure> {
        let lost = || RequestFailure::Unknown("the connection was reset".to_owned());
        self.arrive().await?;
        if self.hit(NeverApplied) {
            return Err(lost());
        }
        if self.hit(AppliedLate) {
            let store = self.clone();
            tokio::spawn(async move {
                sleep(Duration::from_secs(60)).await;
                let _ = apply(&mut store.0.state.lock());
            });
            return Err(lost());
        }
        let done = apply(&mut self.0.state.lock());
        if self.hit(AnswerLost) { Err(lost()) } else { done }
    }

    /// A body with its faults.
    fn spoil(&self, name: &str, stored: &Stored) -> Bytes {
        let bytes = stored.bytes.clone();
        if bytes.is_empty() {
            return bytes;
        }
        if self.hit(Truncated) {
            let length = self.0.dice.below(bytes.len() as u64) as usize;
            return bytes.slice(..length);
        }
        if self.hit(Padded) {
            return [&bytes[..], &[0; 7]].concat().into();
        }
        if self.hit(FlippedBit) {
            let bit = self.0.dice.below(bytes.len() as u64 * 8) as usize;
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            return bytes.into();
        }
        let state = self.0.state.lock();
        let others = state.objects.iter().filter(|(other, _)| *other != name);
        let other = others.map(|(_, other)| other.bytes.clone()).next_back();
        drop(state);
        if let Some(other) = other
            && self.hit(Swapped)
        {
            return other;
        }
        bytes
    }
}

impl State {
    fn put(&mut self, name: &str, bytes: Bytes) -> VersionTag {
        self.versions += 1;
        let older = self.objects.get(name).map(|stored| (stored.bytes.clone(), stored.version));
        self.objects.insert(name.to_owned(), Stored { bytes, version: self.versions, older });
        self.deleted.remove(name);
        self.newest = Some(name.to_owned());
        tag_of(self.versions)
    }

    fn create(&mut self, name: &str, bytes: Bytes, lie: Option<Lie>) -> Result<(), RequestFailure> {
        let exists = self.objects.contains_key(name)
            || (lie == Some(Lie::DeleteSticks) && self.deleted.contains_key(name));
        if lie == Some(Lie::LoserIsStored) && exists {
            self.put(name, bytes.clone());
        }
        if exists && lie != Some(Lie::CreateReplaces) {
            return Err(RequestFailure::Conflict);
        }
        self.put(name, bytes);
        Ok(())
    }

    fn replace(
        &mut self,
        name: &str,
        bytes: Bytes,
        tag: &VersionTag,
        lie: Option<Lie>,
    ) -> Result<VersionTag, RequestFailure> {
        let found = self.objects.get(name).map(|stored| tag_of(stored.version));
        let is_absent = found.is_none();
        let ignores = lie == Some(Lie::SwapIgnoresTag) && !is_absent;
        if found.as_ref() == Some(tag) || ignores || (is_absent && lie == Some(Lie::SwapCreates)) {
            return Ok(self.put(name, bytes));
        }
        Err(if is_absent { RequestFailure::NotFound } else { RequestFailure::Conflict })
    }
}

fn tag_of(version: u64) -> VersionTag {
    VersionTag { etag: Some(format!("\"{version}\"")), generation: None }
}

impl BucketRequests for FaultStore {
    fn create(&self, name: &str, bytes: Bytes) -> Attempt<'_, ()> {
        let name = name.to_owned();
        async move {
            if self.lies(Lie::NoCreate) {
                return Err(RequestFailure::Unsupported("501 NotImplemented".to_owned()));
            }
            if self.hit(Undecided) {
                return Err(RequestFailure::Conflict);
            }
            if self.lies(Lie::CreateRaces) && !self.0.state.lock().objects.contains_key(&name) {
                sleep(Duration::from_millis(50)).await;
                self.0.state.lock().put(&name, bytes);
                return Ok(());
            }
            let lie = self.0.lie;
            self.write(move |state| state.create(&name, bytes, lie)).await
        }
        .boxed()
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &VersionTag) -> Attempt<'_, VersionTag> {
        let (name, tag, lie) = (name.to_owned(), tag.clone(), self.0.lie);
        async move {
            match lie {
                Some(Lie::NoSwap) => {
                    return Err(RequestFailure::Unsupported("501 NotImplemented".to_owned()));
                }
                Some(Lie::SwapNeverWorks) => return Err(RequestFailure::Conflict),
                _ => {}
            }
            if self.hit(Undecided) {
                return Err(RequestFailure::Conflict);
            }
            if self.lies(Lie::SwapRaces) {
                let is_present = |state: &State| {
                    state.objects.get(&name).is_some_and(|stored| tag_of(stored.version) == tag)
                };
                if is_present(&self.0.state.lock()) {
                    sleep(Duration::from_millis(50)).await;
                    return Ok(self.0.state.lock().put(&name, bytes));
                }
            }
            self.write(move |state| state.replace(&name, bytes, &tag, lie)).await
        }
        .boxed()
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Attempt<'_, FetchedObject> {
        let name = name.to_owned();
        async move {
            self.arrive().await?;
            let stored = self.0.state.lock().objects.get(&name).cloned();
            let mut stored = match stored {
                None => return Err(RequestFailure::NotFound),
                Some(stored) => stored,
            };
            // As a cache would: with the tag of that version.
            if let Some((bytes, version)) = stored.older.clone()
                && (self.lies(Lie::StaleReads) || self.hit(OldBody))
            {
                stored = Stored { bytes, version, older: None };
            }
            let body = self.spoil(&name, &stored);
            // A body of another object has its own length in the answer; a cut or padded one has not.
            let is_same = body.len() == stored.bytes.len();
            let is_other = !is_same && self.0.state.lock().objects.values().any(|it| it.bytes == body);
            let object_bytes = if is_other { body.len() } else { stored.bytes.len() } as u64;
            let tag = tag_of(stored.version);
            let Some(range) = range.filter(|_| !self.lies(Lie::RangeIgnored)) else {
                return Ok(FetchedObject { bytes: body, object_bytes, tag });
            };
            let end = (range.end as usize).min(body.len());
            let bytes = body.slice((range.start as usize).min(end)..end);
            let hidden = self.lies(Lie::RangeHidesLength);
            let object_bytes = if hidden { range.end } else { object_bytes };
            Ok(FetchedObject { bytes, object_bytes, tag })
        }
        .boxed()
    }

    fn delete(&self, name: &str) -> Attempt<'_, ()> {
        let name = name.to_owned();
        let ignored = self.lies(Lie::DeleteIgnored);
        self.write_boxed(move |state| {
            if let Some(stored) = (!ignored).then(|| state.objects.remove(&name)).flatten() {
                state.deleted.insert(name, stored.bytes.len() as u64);
            }
            Ok(())
        })
    }

    fn list<'a>(&'a self, prefix: &str, take: &'a mut (dyn FnMut(BucketEntry) + Send)) -> Attempt<'a, ()> {
        let prefix = format!("{prefix}/");
        async move {
            self.arrive().await?;
            let stale = self.hit(StaleList);
            let state = self.0.state.lock();
            let mut found: BTreeMap<&String, u64> =
                state.objects.iter().map(|(name, stored)| (name, stored.bytes.len() as u64)).collect();
            if let Some(newest) = state.newest.as_ref().filter(|_| stale || self.lies(Lie::ListMissesNew)) {
                found.remove(newest);
            }
            if stale || self.lies(Lie::ListShowsDeleted) {
                found.extend(state.deleted.iter().map(|(name, bytes)| (name, *bytes)));
            }
            for (name, bytes) in found.into_iter().filter(|(name, _)| name.starts_with(&prefix)) {
                take(BucketEntry { name: name.clone(), bytes });
            }
            Ok(())
        }
        .boxed()
    }
}

impl FaultStore {
    fn write_boxed(
        &self,
        apply: impl FnOnce(&mut State) -> Result<(), RequestFailure> + Send + 'static,
    ) -> Attempt<'_, ()> {
        async move { self.write(apply).await }.boxed()
    }
}
