//! Tests of `event.rs` on real threads; `models.rs` runs the same code under every schedule.

use super::event::{Bell, Sleepers, Token};
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::task::block_on;
use shoal_base::{Clock, SystemClock};
use std::sync::{Arc, Barrier};
use std::time::Duration;

#[test]
fn one_at_a_time() {
    let token = Arc::new(Token::new(0_u64));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let token = token.clone();
            std::thread::spawn(move || {
                for _ in 0..1000 {
                    let mut guard = block_on(token.take());
                    let seen = *guard;
                    std::hint::spin_loop();
                    *guard = seen + 1;
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*block_on(token.take()), 4000);
    let held = token.try_take();
    assert!(token.try_take().is_none());
    drop(held);
}

/// A wait that no ring ended: a test machine is never that slow.
const FOR_EVER: Duration = Duration::from_secs(600);

#[test]
fn a_thread_with_two_bells_hears_both() {
    let bells = [Bell::default(), Bell::default()];
    bells.iter().for_each(Bell::attach);
    for (index, bell) in bells.iter().enumerate() {
        bell.ring();
        Bell::wait_for_any(bells.iter(), FOR_EVER);
        // Only one of them rang, and the ring is taken once.
        assert_eq!([0, 1].map(|index| bells[index].take_ring()), [index == 0, index == 1]);
        assert!(!bell.take_ring());
    }
    std::thread::scope(|scope| {
        scope.spawn(|| bells[1].ring());
        while !bells[1].take_ring() {
            Bell::wait_for_any(bells.iter(), FOR_EVER);
        }
    });
}

#[test]
fn sleepers_are_rung_once_and_only_after_their_announcement() {
    let (sleepers, bell) = (Sleepers::default(), Arc::new(Bell::default()));
    bell.attach();
    sleepers.happened();
    assert!(!bell.take_ring() && sleepers.events() == 1);
    sleepers.announce(&bell);
    sleepers.announce(&bell);
    sleepers.wake();
    assert!(bell.take_ring() && sleepers.events() == 1);
    sleepers.happened();
    assert!(!bell.take_ring(), "it sleeps no more");
}

/// The change and the announcement race: the sleeper sees every change at once, never only when its sleep is over.
#[test]
fn no_change_is_missed_by_a_thread_that_falls_asleep() {
    const ROUNDS: u64 = 2_000;
    let (sleepers, bells) = (Sleepers::default(), [(); 2].map(|()| Arc::new(Bell::default())));
    let (state, start) = (AtomicU64::new(0), Barrier::new(3));
    let clock = SystemClock::default();
    let began_ns = clock.monotonic_ns();
    std::thread::scope(|scope| {
        for bell in &bells {
            scope.spawn(|| {
                bell.attach();
                for round in 1..=ROUNDS {
                    start.wait();
                    while state.load(Ordering::Relaxed) < round {
                        let seen = sleepers.events();
                        sleepers.announce(bell);
                        if sleepers.events() == seen && state.load(Ordering::Relaxed) < round {
                            bell.wait(FOR_EVER);
                        }
                    }
                }
            });
        }
        for round in 1..=ROUNDS {
            start.wait();
            state.store(round, Ordering::Relaxed);
            sleepers.happened();
        }
    });
    assert!(clock.monotonic_ns() - began_ns < FOR_EVER.as_nanos() as u64, "a change was missed");
}
