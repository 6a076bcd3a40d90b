//! Applies that sleep.

use std::task::{Context, Waker};

use shoal_tablets::apply::pace::{Pace, STEPS};

use crate::block_on;
use crate::testing::fixtures::Fixture;

#[test]
fn an_apply_hurries_once_something_waits_for_its_turn() {
    let store = Fixture::new().open().unwrap();
    let checkpointer = &store.0.checkpointer;
    let turn = block_on(checkpointer.applier.turn());
    assert!(!checkpointer.is_apply_waited_for());
    let mut pace = Pace::new(checkpointer, 1_000);
    pace.keep(0, 1_000);
    assert_eq!(pace.next, 1_000 / STEPS);
    let mut waiting = Box::pin(checkpointer.applier.turn());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(checkpointer.is_apply_waited_for());
    pace.keep(500, 1_000);
    assert_eq!(pace.next, usize::MAX, "it sleeps no more");
    drop(waiting);
    assert!(!checkpointer.is_apply_waited_for());
    drop(turn);
}

/// Symptom: clients waited for an apply that slept on, with a clock that stands still as in a test. Cause: only the clock's time counted.
#[test]
fn sleeps_count_without_a_clock() {
    let store = Fixture::new().open().unwrap();
    let mut pace = Pace::new(&store.0.checkpointer, 3_000_000);
    (1..=1_000).for_each(|done| pace.keep(done, 1_000));
    assert!((1..=4_000_000).contains(&pace.slept_ns), "{}", pace.slept_ns);
}
