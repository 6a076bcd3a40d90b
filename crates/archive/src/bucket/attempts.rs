//! Retries, and the table of outcomes: from the results of attempts to the outcome of a request.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use tokio::time::{Instant, sleep, timeout};

use super::pace::pause;
use super::requests::{Attempt, RequestFailure, VersionTag};
use super::{
    ArchiveBucket, BucketEntry, BucketError, CasOutcome, CreateOutcome, FetchedObject, IDENTITY_BYTES, count,
};

/// A write without an answer after this time has an unknown outcome: the store may apply it all the same.
pub(super) const WRITE_TIME: Duration = Duration::from_secs(5);
/// The time of a read: 64 MiB at 2 MB/s.
const READ_TIME: Duration = Duration::from_secs(32);
/// Times that a body of a wrong length is fetched.
const WRONG_LENGTHS_MAX: u32 = 3;

/// The attempts at one request.
struct Attempts<'a> {
    bucket: &'a ArchiveBucket,
    object: &'a str,
    start: Instant,
    count: u32,
}

impl<'a> Attempts<'a> {
    fn new(bucket: &'a ArchiveBucket, object: &'a str) -> Self {
        Self { bucket, object, start: Instant::now(), count: 0 }
    }

    /// Waits before the next attempt after this failure.
    ///
    /// # Errors
    /// There is none: the store refuses the request, or the patience is at its end.
    async fn next(&mut self, failure: RequestFailure) -> Result<(), BucketError> {
        let object = self.object.to_owned();
        count(&self.bucket.counters.failures);
        self.count += 1;
        match failure {
            RequestFailure::Refused(why) => return Err(BucketError::Refused { object, why }),
            RequestFailure::Unsupported(why) => return Err(BucketError::Unsupported { object, why }),
            _ => {}
        }
        let pause = pause(self.count - 1, &*self.bucket.dice);
        let elapsed = self.start.elapsed();
        if elapsed + pause > self.bucket.options.patience {
            let (attempts, seconds) = (self.count, elapsed.as_secs());
            return Err(BucketError::Undecided { object, attempts, seconds, last: failure.to_string() });
        }
        sleep(pause).await;
        Ok(())
    }
}

/// An attempt with a time limit.
pub(super) async fn limited<T>(time: Duration, attempt: Attempt<'_, T>) -> Result<T, RequestFailure> {
    let elapsed = |_| RequestFailure::Unknown(format!("no answer in {} s", time.as_secs()));
    timeout(time, attempt).await.map_err(elapsed)?
}

impl ArchiveBucket {
    /// Creates `name` with `bytes`, unless it exists. The first [`IDENTITY_BYTES`] of `bytes` differ from those of every other object.
    ///
    /// # Errors
    /// [`BucketError`]. After [`BucketError::Undecided`] and [`BucketError::Refused`], only the same bytes may be sent again.
    pub async fn create(&self, name: &str, bytes: Bytes) -> Result<CreateOutcome, BucketError> {
        let mut attempts = Attempts::new(self, name);
        loop {
            let failure = match self.create_once(name, &bytes).await {
                // Ours if this was the only attempt, but a store may have applied an earlier one: both have the same bytes.
                Ok(()) => return Ok(CreateOutcome::Created),
                Err(RequestFailure::Conflict) => match self.decide(name, &bytes).await? {
                    Some(outcome) => return Ok(outcome),
                    None => {
                        RequestFailure::Unknown("a conflict about an object that does not exist".to_owned())
                    }
                },
                Err(failure) => failure,
            };
            attempts.next(failure).await?;
        }
    }

    /// One attempt, and a second one beside it if it is slow. The first decisive result counts.
    async fn create_once(&self, name: &str, bytes: &Bytes) -> Result<(), RequestFailure> {
        let attempt = || {
            count(&self.counters.puts);
            limited(WRITE_TIME, self.requests.create(name, bytes.clone()))
        };
        // Waiting for the turn is no slowness of the store.
        self.budget.turn(bytes.len()).await;
        let start = Instant::now();
        let first = std::pin::pin!(attempt());
        let second = std::pin::pin!(async {
            sleep(self.times.second_attempt()).await;
            self.budget.turn(bytes.len()).await;
            count(&self.counters.second_attempts);
            attempt().await
        });
        let is_decisive = |result: &Result<(), RequestFailure>| {
            !matches!(result, Err(RequestFailure::Unknown(_) | RequestFailure::Throttled(_)))
        };
        let result = match select(first, second).await {
            Either::Left((result, _)) => result,
            Either::Right((result, first)) if !is_decisive(&result) => first.await,
            Either::Right((result, _)) => result,
        };
        if result.is_ok() {
            self.times.add(start.elapsed());
        }
        result
    }

    /// Decides a conflict by the object itself; `None` if it does not exist.
    async fn decide(&self, name: &str, bytes: &Bytes) -> Result<Option<CreateOutcome>, BucketError> {
        let Some(found) = self.get_range(name, 0..IDENTITY_BYTES).await? else { return Ok(None) };
        let ours = bytes.slice(..bytes.len().min(IDENTITY_BYTES as usize));
        let (head, object_bytes) = (found.bytes, found.object_bytes);
        if head == ours && object_bytes == bytes.len() as u64 {
            count(&self.counters.ambiguous_ours);
            return Ok(Some(CreateOutcome::Created));
        }
        count(&self.counters.ambiguous_foreign);
        Ok(Some(CreateOutcome::Exists { head, object_bytes }))
    }

    /// Replaces the version `tag` of `name` by `bytes`, which differ from all earlier versions.
    ///
    /// # Errors
    /// [`BucketError`]. After [`BucketError::Undecided`] the swap may have been done, or may be done later.
    pub async fn cas(&self, name: &str, bytes: Bytes, tag: &VersionTag) -> Result<CasOutcome, BucketError> {
        let mut attempts = Attempts::new(self, name);
        loop {
            self.budget.turn(bytes.len()).await;
            count(&self.counters.puts);
            let failure = match limited(WRITE_TIME, self.requests.replace(name, bytes.clone(), tag)).await {
                Ok(tag) if tag != VersionTag::default() => return Ok(CasOutcome::Done(tag)),
                // Done, without a tag: the object has it.
                Ok(_) => RequestFailure::Unknown("the store reports no version".to_owned()),
                Err(failure) => failure,
            };
            if matches!(failure, RequestFailure::Refused(_) | RequestFailure::Unsupported(_)) {
                attempts.next(failure).await?;
                continue;
            }
            // The object decides after any answer: an earlier attempt may have changed it.
            let is_conflict = matches!(failure, RequestFailure::Conflict | RequestFailure::NotFound);
            match self.get(name).await? {
                Some(found) if found.bytes == bytes => {
                    count(&self.counters.ambiguous_ours);
                    return Ok(CasOutcome::Done(found.tag));
                }
                Some(found) if found.tag != *tag => {
                    count(&self.counters.ambiguous_foreign);
                    return Ok(CasOutcome::Changed(Some(found)));
                }
                None if is_conflict => return Ok(CasOutcome::Changed(None)),
                // The version is still the expected one.
                _ => attempts.next(failure).await?,
            }
        }
    }

    /// Reads an object; `None` if it does not exist.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn get(&self, name: &str) -> Result<Option<FetchedObject>, BucketError> {
        self.fetch(name, None).await
    }

    /// Reads a range of an object, as much of it as the object has; `None` if the object does not exist.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn get_range(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<Option<FetchedObject>, BucketError> {
        self.fetch(name, Some(range)).await
    }

    async fn fetch(
        &self,
        name: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<FetchedObject>, BucketError> {
        let mut attempts = Attempts::new(self, name);
        let mut times = 0;
        loop {
            count(&self.counters.gets);
            let failure = match limited(READ_TIME, self.requests.get(name, range.clone())).await {
                Ok(found) => {
                    let (bytes, announced) = (found.bytes.len() as u64, announced(&found, range.as_ref()));
                    if bytes == announced {
                        return Ok(Some(found));
                    }
                    count(&self.counters.wrong_lengths);
                    times += 1;
                    if times == WRONG_LENGTHS_MAX {
                        return Err(BucketError::WrongLength {
                            object: name.to_owned(),
                            bytes,
                            announced,
                            times,
                        });
                    }
                    RequestFailure::Unknown(format!("{bytes} bytes instead of {announced}"))
                }
                Err(RequestFailure::NotFound) => return Ok(None),
                Err(failure) => failure,
            };
            attempts.next(failure).await?;
        }
    }

    /// Deletes an object, which need not exist.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn delete(&self, name: &str) -> Result<(), BucketError> {
        let mut attempts = Attempts::new(self, name);
        loop {
            count(&self.counters.deletes);
            match limited(WRITE_TIME, self.requests.delete(name)).await {
                Ok(()) | Err(RequestFailure::NotFound) => return Ok(()),
                Err(failure) => attempts.next(failure).await?,
            }
        }
    }

    /// Calls `take` for each object below the folder `prefix`, in any order. A listing may miss new objects and have deleted ones.
    /// It is not repeated after an error, because the caller has taken a part of it: no conclusion may be drawn from that part.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn list(
        &self,
        prefix: &str,
        mut take: impl FnMut(BucketEntry) + Send,
    ) -> Result<(), BucketError> {
        count(&self.counters.lists);
        let object = prefix.to_owned();
        self.requests.list(prefix, &mut take).await.map_err(|failure| {
            count(&self.counters.failures);
            match failure {
                RequestFailure::Refused(why) => BucketError::Refused { object, why },
                RequestFailure::Unsupported(why) => BucketError::Unsupported { object, why },
                other => BucketError::Undecided { object, attempts: 1, seconds: 0, last: other.to_string() },
            }
        })
    }
}

/// The number of bytes that an answer about this range has.
fn announced(found: &FetchedObject, range: Option<&Range<u64>>) -> u64 {
    let whole = 0..found.object_bytes;
    let range = range.unwrap_or(&whole);
    let (start, end) = (range.start.min(found.object_bytes), range.end.min(found.object_bytes));
    end.saturating_sub(start)
}
