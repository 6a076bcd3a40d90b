//! The table of outcomes, row by row: each with a store that does one thing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use shoal_base::SeededEntropy;
use shoal_testkit::bytes::random;
use tokio::time::{Instant, sleep};

use crate::bucket::fault::{FaultStore, Latency, Lie};
use crate::bucket::requests::{Attempt, BucketRequests};
use crate::bucket::*;

/// The next attempt at a write.
#[derive(Clone, Copy, Debug)]
enum Script {
    /// It takes effect and answers.
    Works,
    /// It takes effect, and the answer is this failure.
    Then(fn() -> RequestFailure),
    /// It takes no effect, and the answer is this failure.
    Instead(fn() -> RequestFailure),
    /// It takes this number of seconds.
    Slow(u64),
}

fn lost() -> RequestFailure {
    RequestFailure::Unknown("reset".to_owned())
}

fn conflict() -> RequestFailure {
    RequestFailure::Conflict
}

fn throttled() -> RequestFailure {
    RequestFailure::Throttled("503".to_owned())
}

fn refused() -> RequestFailure {
    RequestFailure::Refused("403".to_owned())
}

/// A store whose writes follow a script, and then work.
#[derive(Clone)]
struct Scripted(FaultStore, Arc<Mutex<Vec<Script>>>);

impl Scripted {
    fn next(&self) -> Script {
        let mut script = self.1.lock();
        if script.is_empty() { Script::Works } else { script.remove(0) }
    }

    async fn play<T>(&self, attempt: Attempt<'_, T>) -> Result<T, RequestFailure> {
        match self.next() {
            Script::Works => attempt.await,
            Script::Then(failure) => attempt.await.and_then(|_| Err(failure())),
            Script::Instead(failure) => Err(failure()),
            Script::Slow(seconds) => {
                sleep(Duration::from_secs(seconds)).await;
                attempt.await
            }
        }
    }
}

impl BucketRequests for Scripted {
    fn create(&self, name: &str, bytes: Bytes) -> Attempt<'_, ()> {
        let attempt = self.0.create(name, bytes);
        self.play(attempt).boxed()
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &VersionTag) -> Attempt<'_, VersionTag> {
        let attempt = self.0.replace(name, bytes, tag);
        self.play(attempt).boxed()
    }

    fn get(&self, name: &str, range: Option<std::ops::Range<u64>>) -> Attempt<'_, FetchedObject> {
        self.0.get(name, range)
    }

    fn delete(&self, name: &str) -> Attempt<'_, ()> {
        let attempt = self.0.delete(name);
        self.play(attempt).boxed()
    }

    fn list<'a>(&'a self, prefix: &str, take: &'a mut (dyn FnMut(BucketEntry) + Send)) -> Attempt<'a, ()> {
        self.0.list(prefix, take)
    }
}

/// A bucket whose writes follow `script`, and its store.
fn scripted(script: &[Script]) -> (ArchiveBucket, FaultStore) {
    let store = FaultStore::new(1, 0, Latency::NEAR);
    let requests = Scripted(store.clone(), Arc::new(Mutex::new(script.to_vec())));
    let options = BucketOptions { puts_per_second: 1_000, patience: Duration::from_secs(30) };
    (ArchiveBucket::over(Box::new(requests), options, Arc::new(SeededEntropy::new(5))), store)
}

fn body(seed: u64) -> Bytes {
    random(300, seed).into()
}

#[tokio::test(start_paused = true)]
async fn a_create_has_one_outcome() {
    use Script::{Instead, Slow, Then, Works};
    for (script, puts) in [
        (&[Works][..], 1),
        // Lost answers: the second attempt meets our own object.
        (&[Then(lost)], 2),
        (&[Instead(lost), Then(lost), Instead(throttled)], 4),
        (&[Instead(lost), Instead(throttled)], 3),
        // 409 of S3: not decided, and the key does not exist.
        (&[Instead(conflict)], 2),
        (&[Instead(conflict), Instead(lost), Instead(conflict)], 4),
        // A conflict about our own object.
        (&[Then(conflict)], 1),
        // The store takes longer than an attempt may: a second attempt beside it wins.
        (&[Slow(20), Works], 2),
        (&[Slow(20), Instead(lost), Works], 3),
    ] {
        let (bucket, store) = scripted(script);
        let outcome = bucket.create("log/a/0", body(1)).await;
        assert_eq!(outcome, Ok(CreateOutcome::Created), "{script:?}");
        assert_eq!(bucket.counters().puts.load(Ordering::Relaxed), puts, "{script:?}");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(store.contents()["log/a/0"], body(1), "{script:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreign_object_is_returned() {
    for script in [&[][..], &[Script::Instead(lost)], &[Script::Instead(conflict)]] {
        let (bucket, store) = scripted(script);
        store.create("log/a/0", body(2)).await.unwrap();
        let expected = CreateOutcome::Exists { head: body(2).slice(..128), object_bytes: 300 };
        assert_eq!(bucket.create("log/a/0", body(1)).await, Ok(expected));
        assert_eq!(bucket.counters().ambiguous_foreign.load(Ordering::Relaxed), 1);
        assert_eq!(store.contents()["log/a/0"], body(2));
    }
    // The same first bytes and another length are another object.
    let (bucket, store) = scripted(&[]);
    store.create("log/a/0", body(1).slice(..299)).await.unwrap();
    let outcome = bucket.create("log/a/0", body(1)).await.unwrap();
    assert!(matches!(outcome, CreateOutcome::Exists { object_bytes: 299, .. }), "{outcome:?}");
    // An object that is shorter than the identity, as a tombstone.
    let (bucket, store) = scripted(&[]);
    store.create("log/a/0", body(3).slice(..64)).await.unwrap();
    let outcome = bucket.create("log/a/0", body(1)).await.unwrap();
    assert_eq!(outcome, CreateOutcome::Exists { head: body(3).slice(..64), object_bytes: 64 });
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_outcome_ends_after_the_patience() {
    let (bucket, _) = scripted(&[Script::Instead(lost); 1_000]);
    let start = Instant::now();
    let error = bucket.create("log/a/0", body(1)).await.unwrap_err();
    let BucketError::Undecided { object, attempts, seconds, last } = &error else { panic!("{error}") };
    assert_eq!((&**object, &**last), ("log/a/0", "no decisive answer: reset"));
    assert!((8..40).contains(attempts) && (20..=30).contains(seconds), "{error}");
    assert!(start.elapsed() <= Duration::from_secs(30));
    // Refused: somebody must change something, so it is reported at once.
    let (bucket, _) = scripted(&[Script::Instead(refused)]);
    let start = Instant::now();
    let error = bucket.create("log/a/0", body(1)).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "log/a/0: 403. Check the credentials, their rights (get, put, delete, list) and the name of the bucket"
    );
    assert!(start.elapsed() < Duration::from_secs(1));
}

/// The record of a writer.
async fn tag(bucket: &ArchiveBucket) -> VersionTag {
    bucket.get("record").await.unwrap().unwrap().tag
}

#[tokio::test(start_paused = true)]
async fn a_swap_has_one_outcome() {
    use Script::{Instead, Then, Works};
    for script in [
        &[][..],
        &[Then(lost)],
        &[Instead(lost), Instead(throttled)],
        &[Instead(conflict)],
        &[Then(conflict)],
    ] {
        let (bucket, store) = scripted(&[&[Works], script].concat());
        bucket.create("record", body(1)).await.unwrap();
        let before = tag(&bucket).await;
        let outcome = bucket.cas("record", body(2), &before).await.unwrap();
        assert_eq!(outcome, CasOutcome::Done(tag(&bucket).await), "{script:?}");
        assert_eq!(store.contents()["record"], body(2), "{script:?}");
        // Another writer's version, for any first answer.
        let (bucket, store) = scripted(&[&[Works, Works], script].concat());
        bucket.create("record", body(1)).await.unwrap();
        let before = tag(&bucket).await;
        bucket.cas("record", body(3), &before).await.unwrap();
        let outcome = bucket.cas("record", body(2), &before).await.unwrap();
        let CasOutcome::Changed(Some(found)) = outcome else { panic!("{script:?}: {outcome:?}") };
        assert_eq!((found.bytes, found.tag), (body(3), tag(&bucket).await), "{script:?}");
        assert_eq!(store.contents()["record"], body(3), "{script:?}");
    }
    let (bucket, _) = scripted(&[]);
    let none = VersionTag { etag: Some("\"1\"".to_owned()), generation: None };
    assert_eq!(bucket.cas("record", body(1), &none).await, Ok(CasOutcome::Changed(None)));
    assert_eq!(bucket.get("record").await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_delete_is_repeated_until_it_is_done() {
    use Script::{Instead, Then, Works};
    let (bucket, store) = scripted(&[Works, Instead(lost), Then(lost), Instead(throttled)]);
    bucket.create("log/a/0", body(1)).await.unwrap();
    assert_eq!(bucket.delete("log/a/0").await, Ok(()));
    assert!(store.contents().is_empty());
    assert_eq!(bucket.delete("log/a/0").await, Ok(()), "it need not exist");
    assert_eq!(bucket.counters().deletes.load(Ordering::Relaxed), 5);
}

/// A body of a wrong length is fetched again, and then reported with the object's name.
#[tokio::test(start_paused = true)]
async fn bodies_of_a_wrong_length_are_refused() {
    let bucket = super::over(&FaultStore::lying(Lie::RangeIgnored), 1);
    bucket.create("log/a/0", body(1)).await.unwrap();
    let error = bucket.get_range("log/a/0", 0..128).await.unwrap_err().to_string();
    let expected =
        "log/a/0: 300 bytes came where 128 were announced, 3 times. The object or the store is damaged";
    assert_eq!((&*error, bucket.counters().wrong_lengths.load(Ordering::Relaxed)), (expected, 3));
    assert_eq!(bucket.get("log/a/0").await.unwrap().unwrap().bytes, body(1));
}

/// Slow PUTs start a second attempt; fast ones never do.
#[tokio::test(start_paused = true)]
async fn second_attempts_are_for_slow_puts_only() {
    let (bucket, _) = scripted(&[]);
    for at in 0..50 {
        bucket.create(&format!("log/a/{at}"), body(at)).await.unwrap();
    }
    assert_eq!(bucket.counters().second_attempts.load(Ordering::Relaxed), 0);
    // A PUT that waits for the budget is not slow.
    let (mut bucket, _) = scripted(&[]);
    bucket.budget = PutBudget::new(1);
    let start = Instant::now();
    let names: Vec<String> = (0..5).map(|at| format!("log/a/{at}")).collect();
    let creates = names.iter().map(|name| bucket.create(name, body(1)));
    futures_util::future::join_all(creates).await;
    assert!(start.elapsed() >= Duration::from_secs(4));
    // Nor did a second attempt take a turn.
    bucket.create("log/a/5", body(1)).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    assert_eq!(bucket.counters().second_attempts.load(Ordering::Relaxed), 0);
    let (bucket, _) = scripted(&[Script::Slow(3)]);
    let start = Instant::now();
    bucket.create("log/a/0", body(1)).await.unwrap();
    assert!((1_000..1_200).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert_eq!(bucket.counters().second_attempts.load(Ordering::Relaxed), 1);
}
