//! The pin word alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::resident::word::{Duties, HIT, HIT_SHIFT, HITS_HIGH, RESIDENT, Word};

#[test]
fn the_life_of_a_unit() {
    let word = Word::default();
    assert!(word.is_vacant() && !word.pin(true) && word.claim().is_none() && !word.wake_at_unpin());
    word.publish(1);
    assert!(word.is_resident() && !word.is_evictable() && word.claim().is_none());
    assert!(word.pin(true) && word.pin(false));
    word.pin_again();
    assert_eq!(word.hits(), 1);
    assert!(word.unpin() && word.unpin());
    assert!(word.wake_at_unpin());
    assert!(!word.unpin());
    assert_eq!(word.unpin_for_others(), Duties::default());
    assert_eq!(word.unpin_for_others(), Duties { wake: true, ..Duties::default() });
    assert!(word.is_evictable());
    assert_eq!(word.claim(), Some(1));
    assert!(word.is_vacant());
}

#[test]
fn retired_units_are_freed_by_last_reader() {
    let word = Word::default();
    word.publish(2);
    assert!(word.pin(true));
    assert_eq!(word.doom(), 1);
    assert!(!word.pin(true) && word.claim().is_none() && !word.is_resident());
    assert!(word.close_at_unpin());
    assert_eq!(word.unpin_for_others(), Duties::default());
    assert_eq!(word.unpin_for_others(), Duties::default());
    assert_eq!(word.unpin_for_others(), Duties { free: true, close: true, ..Duties::default() });
    assert!(word.is_vacant() && !word.close_at_unpin());
}

/// A regression: the flag was lost, so only the watchdog woke a request that waited for a frame after the release
/// of a unit.
#[test]
fn the_reader_of_a_unit_that_is_being_read_wakes_waiting_requests() {
    let word = Word::default();
    word.reserve();
    assert!(word.wake_at_unpin(), "it will be pinned");
    assert!(!word.publish(1), "nobody waits for this unit");
    assert!(!word.unpin());
    assert_eq!(word.unpin_for_others(), Duties { wake: true, ..Duties::default() });
    assert!(word.is_evictable());
}

#[test]
fn hits_are_collected_before_they_overflow() {
    let word = Word(AtomicU64::new(RESIDENT | (HITS_HIGH - HIT)));
    assert!(!word.is_full_of_hits());
    assert!(word.pin(true) && word.is_full_of_hits());
    word.uncount_hit();
    assert!(word.pin(true));
    assert_eq!(word.collect_hits(), HITS_HIGH >> HIT_SHIFT);
    assert_eq!((word.hits(), word.is_pinned()), (0, true));
}

#[test]
fn frames_have_one_owner() {
    let rounds = if cfg!(miri) { 30 } else { 20_000 };
    let word = Arc::new(Word::default());
    let owners = Arc::new(AtomicUsize::new(0));
    word.publish(0);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (word, owners) = (word.clone(), owners.clone());
            let own = move |word: &Word| {
                assert_eq!(owners.fetch_add(1, Ordering::Relaxed), 0);
                assert_eq!(owners.fetch_sub(1, Ordering::Relaxed), 1);
                word.publish(0);
            };
            thread::spawn(move || {
                for round in 0..rounds {
                    if round % 4 == thread && word.claim().is_some() {
                        own(&word);
                    }
                    if !word.pin(true) {
                        continue;
                    }
                    if round % 3 == 0 {
                        word.wake_at_unpin();
                    }
                    // One thread dooms, so that no unit is doomed twice.
                    if thread == 0 && round % 5 == 0 && word.is_resident() {
                        word.doom();
                    }
                    if !word.unpin() && word.unpin_for_others().free {
                        own(&word);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(word.is_evictable());
}
