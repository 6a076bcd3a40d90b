//! The probe admits an honest store, and refuses each lie by the name of the promise.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::over;
use crate::bucket::fault::{Fault, FaultStore, Latency, Lie};
use crate::bucket::*;

#[tokio::test(start_paused = true)]
async fn an_honest_store_passes() {
    let store = FaultStore::new(1, 0, Latency::S3);
    let bucket = over(&store, 2);
    let full = bucket.probe(ProbeDepth::Full).await.unwrap();
    let counts = bucket.counters();
    let requests =
        [&counts.puts, &counts.gets, &counts.deletes, &counts.lists].map(|it| it.load(Ordering::Relaxed));
    assert!(full.checks >= 20, "{full:?}");
    assert!((50..=100).contains(&requests.iter().sum::<u64>()), "{requests:?}");
    let short = bucket.probe(ProbeDepth::Short).await.unwrap();
    assert!(short.checks >= 8 && short.checks < full.checks, "{short:?}");
    assert!(store.contents().is_empty(), "the probe removes its objects");
}

/// Each lie with the promise that the whole probe names, and whether the short form finds it, too.
const LIES: [(Lie, BucketPromise, bool); 16] = [
    (Lie::CreateReplaces, BucketPromise::OneCreateWins, true),
    (Lie::CreateRaces, BucketPromise::OneCreateWins, false),
    (Lie::LoserIsStored, BucketPromise::WinnerIsStored, true),
    (Lie::NoCreate, BucketPromise::OneCreateWins, true),
    (Lie::SwapIgnoresTag, BucketPromise::StaleSwapFails, true),
    (Lie::SwapRaces, BucketPromise::OneSwapWins, false),
    (Lie::SwapCreates, BucketPromise::SwapNeedsObject, true),
    (Lie::SwapNeverWorks, BucketPromise::SwapWorks, true),
    (Lie::NoSwap, BucketPromise::SwapWorks, true),
    (Lie::StaleReads, BucketPromise::ReadsSeeWrites, true),
    (Lie::ListMissesNew, BucketPromise::ListsSeeWrites, false),
    (Lie::ListShowsDeleted, BucketPromise::ListsSeeWrites, false),
    (Lie::RangeIgnored, BucketPromise::RangesAreExact, true),
    (Lie::RangeHidesLength, BucketPromise::RangesAreExact, true),
    (Lie::DeleteIgnored, BucketPromise::DeletesWork, false),
    (Lie::DeleteSticks, BucketPromise::DeletesWork, false),
];

#[tokio::test(start_paused = true)]
async fn each_lie_is_refused() {
    for (lie, expected, in_short) in LIES {
        let bucket = over(&FaultStore::lying(lie), 3);
        let refusal = bucket.probe(ProbeDepth::Full).await.unwrap_err();
        let text = refusal.to_string();
        println!("{lie:?}: {text}");
        let ProbeRefusal::Broken { promise, .. } = refusal else { panic!("{lie:?}: {text}") };
        assert_eq!(promise, expected, "{lie:?}: {text}");
        assert!(text.contains("it does not promise that") && text.contains("Use a"), "{text}");
        let fenced = text.contains("two servers may own one archive");
        assert_eq!(fenced, promise.is_fence(), "{text}");
        let bucket = over(&FaultStore::lying(lie), 4);
        assert_eq!(bucket.probe(ProbeDepth::Short).await.is_err(), in_short, "{lie:?}");
    }
}

/// Faults are no lies: requests with indecisive answers are repeated, and only wrong contents count against a store.
#[tokio::test(start_paused = true)]
async fn faults_are_no_broken_promises() {
    let wrong_contents = [
        Fault::Swapped,
        Fault::OldBody,
        Fault::FlippedBit,
        Fault::DeletedKey,
        Fault::StaleList,
        Fault::Truncated,
        Fault::Padded,
        Fault::AppliedLate,
    ];
    let (mut passed, mut hit) = (0, 0);
    for seed in 0..150 {
        let store = FaultStore::new(seed, 8, Latency::S3);
        let result = over(&store, seed).probe(ProbeDepth::Full).await;
        let counts = store.counts();
        let is_wrong = wrong_contents.iter().any(|fault| counts.contains_key(fault));
        match result {
            Ok(_) => (passed, hit) = (passed + 1, hit + usize::from(!counts.is_empty())),
            Err(ProbeRefusal::Request(_)) => {}
            Err(ProbeRefusal::Broken { promise, found }) => {
                assert!(is_wrong, "{seed}: {promise:?}: {found}; {counts:?}");
            }
        }
    }
    assert!(passed >= 50 && hit >= 20, "{passed} passed, {hit} of them with faults");
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_are_named_at_once() {
    let store = FaultStore::new(1, 0, Latency::S3);
    store.expire(Duration::from_secs(3600));
    let start = Instant::now();
    let refusal = over(&store, 1).probe(ProbeDepth::Full).await.unwrap_err().to_string();
    assert!(refusal.starts_with("the bucket cannot be probed: probe/"), "{refusal}");
    assert!(refusal.contains("ExpiredToken. Check the credentials"), "{refusal}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    sleep(Duration::from_secs(3600)).await;
    assert!(over(&store, 2).probe(ProbeDepth::Short).await.is_ok());
}
