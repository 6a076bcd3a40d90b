//! Any moment of any history: the model's state, or an error where the moment cannot be had.

use super::history::{Moment, START_NS};
use super::*;

/// Returns true if the state at the moment with this index (none: before all) can be had by a base that was taken before: no batch
/// between that base and the moment is lost, nor the one after it, whose time nobody knows.
fn can_be_had(history: &History, last: Option<usize>, ns: u64) -> bool {
    let Some(base) = history.record.bases.iter().rfind(|base| base.taken_ns <= ns) else { return false };
    let after_base = |moment: &&Moment| moment.last > base.version;
    let reached = last.map_or(Lsn::NONE, |at| history.moments[at].last);
    let between = history.moments.iter().filter(after_base);
    let mut in_the_way = between.take_while(|moment| moment.last <= reached);
    // The next batch of a log, after the moment, shows the reader that it exists.
    let next = history.moments.iter().find(|moment| moment.last > reached.max(base.version));
    !in_the_way.any(|moment| moment.is_lost) && !next.is_some_and(|moment| moment.is_lost)
}

#[tokio::test]
async fn each_moment_has_the_state_of_the_model() {
    let (mut had, mut refused) = (0, 0);
    for seed in 0..24 {
        let mut history = History::new(seed);
        history.live(20 + seed * 2);
        if seed % 3 == 0 {
            history.close();
        } else if seed % 3 == 1 {
            history.seal_unconfirmed();
        }
        let store = store_of(&history, seed, 0);
        let mut times: Vec<u64> = history.moments.iter().map(|moment| moment.wall_ns).collect();
        times.extend(times.clone().iter().map(|ns| ns + 1));
        times.push(START_NS);
        times.dedup();
        for ns in times {
            let (expected, last) = history.state_at(|moment| moment.wall_ns <= ns);
            match restore(&store, RestoreMoment::Time(ns)).await {
                Ok((found, state)) => {
                    assert!(can_be_had(&history, last, ns), "seed {seed}, {ns}: {state:?}");
                    assert_eq!(found, expected, "seed {seed}, {ns}, {state:?}");
                    let reached = last.map_or(Lsn::NONE, |at| history.moments[at].last);
                    assert_eq!(state.version, reached);
                    had += 1;
                }
                Err(error) => {
                    assert!(!can_be_had(&history, last, ns), "seed {seed}, {ns}: {error}");
                    assert!(
                        error.to_string().contains("--version"),
                        "names a moment that can be had: {error}"
                    );
                    refused += 1;
                }
            }
        }
    }
    assert!(had > 200 && refused > 20, "{had} restored, {refused} refused");
}

#[tokio::test]
async fn each_version_has_the_state_of_the_model() {
    for seed in 100..110 {
        let mut history = History::new(seed);
        history.live(40);
        let store = store_of(&history, seed, 0);
        let newest = history.moments.last().map_or(Lsn::NONE, |moment| moment.last);
        for version in 0..=newest.0 {
            // A batch is whole: a number inside of it has the state before it.
            let (expected, last) = history.state_at(|moment| moment.last <= Lsn(version));
            let reached = last.map_or(Lsn::NONE, |at| history.moments[at].last);
            if let Ok((found, state)) = restore(&store, RestoreMoment::Version(Lsn(version))).await {
                assert_eq!((found, state.version), (expected, reached), "seed {seed}, version {version}");
            } else {
                let next = history.moments.iter().any(|moment| moment.is_lost);
                assert!(next, "only a gap is in the way: seed {seed}, version {version}");
            }
        }
        let beyond =
            restore(&store, RestoreMoment::Version(Lsn(newest.0 + 1))).await.map(|_| ()).unwrap_err();
        assert!(matches!(beyond, RestoreError::NoSuchMoment(_)), "{beyond}");
    }
}

#[tokio::test]
async fn the_newest_moment_is_that_of_the_last_archived_batch() {
    let mut history = History::new(7);
    history.live(30);
    history.base();
    history.live(0);
    let (expected, _) = history.state_at(|_| true);
    let (found, _) = restore(&store_of(&history, 7, 0), RestoreMoment::Newest).await.unwrap();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn moments_that_cannot_be_had_are_refused_with_those_that_can() {
    let refused = async |history: &History, moment| {
        let error = restore(&store_of(history, 1, 0), moment).await.map(|_| ()).unwrap_err();
        assert!(matches!(error, RestoreError::NoSuchMoment(_)), "{error}");
        error.to_string()
    };
    let mut history = History::new(3);
    history.live(60);
    let early = refused(&history, RestoreMoment::Time(START_NS - 1)).await;
    assert!(early.contains("oldest moment is --version 0 (2023-11-14T22:13:20.000Z)"), "{early}");
    // A pinned base whose log is gone is a moment, and those after it are none.
    history.base();
    let (pinned, newest) = (history.record.bases[0], *history.record.bases.last().unwrap());
    history.record.bases.drain(1..history.record.bases.len() - 1);
    let at = history.record.logs.iter().position(|log| log.id == newest.log).unwrap();
    history.record.logs.drain(..at);
    history.record.logs[0].first = newest.seq;
    (history.record.oldest_lsn, history.record.oldest_ns) = (newest.version, newest.taken_ns);
    let between = refused(&history, RestoreMoment::Time(pinned.taken_ns + 1)).await;
    assert!(between.contains("which is pinned") && between.contains("older than the retention"), "{between}");
    let (found, state) =
        restore(&store_of(&history, 1, 0), RestoreMoment::Version(pinned.version)).await.unwrap();
    assert_eq!((found, state.version), (Objects::new(), pinned.version));
    history.record.bases.clear();
    let none = refused(&history, RestoreMoment::Newest).await;
    assert!(none.contains("nothing is restorable yet"), "{none}");
    let empty = FaultStore::new(1, 0, Latency::None);
    let error = restore(&empty, RestoreMoment::Newest).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, RestoreError::NoArchive), "{error}");
}
