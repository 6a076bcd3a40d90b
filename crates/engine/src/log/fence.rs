//! Flushes that overlap answer for each other (R20).
//!
//! A flush that fails may take with it what other threads wrote, and a later one, or one beside it, then succeeds all the same: the
//! kernel tells one of them only. So whoever flushed well asks whether the store was poisoned, and must not ask too early: another
//! flush may have failed already, and its thread not come to say so. A flush therefore counts as done only when all those that
//! were under way with it have answered and, where they failed, poisoned the store.

use std::collections::BTreeSet;
use std::future::Future;

use super::event::Event;
use super::sync::Mutex;
use crate::testing::injected_bug::{Bug, injected};

/// The flushes under way.
#[derive(Default)]
pub(crate) struct Fence {
    turns: Mutex<Turns>,
    ended: Event,
}

#[derive(Default)]
struct Turns {
    next: u64,
    under_way: BTreeSet<u64>,
}

impl Fence {
    /// Runs `flush`, tells `failed` where it failed, and waits for the flushes that began before it ended. Whoever asks afterwards
    /// whether one has failed learns of all that can have taken away what `flush` made durable.
    ///
    /// To be run to its end: nobody learns how a flush ended that is dropped.
    pub(crate) async fn pass<T, E>(
        &self,
        flush: impl Future<Output = Result<T, E>>,
        failed: impl FnOnce(&E),
    ) -> Result<T, E> {
        let turn = self.begin();
        let result = flush.await;
        if let Err(error) = &result {
            // Before the turn ends: who waits for it asks then.
            failed(error);
        }
        let next = self.turns.lock().next;
        drop(turn);
        if injected(Bug::FlushesAlone) {
            return result;
        }
        self.ended
            .wait_until(|| {
                self.turns.lock().under_way.first().is_none_or(|&first| first >= next).then_some(())
            })
            .await;
        result
    }

    fn begin(&self) -> Turn<'_> {
        let mut turns = self.turns.lock();
        let number = turns.next;
        turns.next += 1;
        turns.under_way.insert(number);
        drop(turns);
        Turn { fence: self, number }
    }
}

/// A flush under way.
struct Turn<'a> {
    fence: &'a Fence,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.fence.turns.lock().under_way.remove(&self.number);
        self.fence.ended.notify();
    }
}
