//! Overlapping flushes share their failures (R20).
//!
//! A failed flush may lose data that other threads wrote, and a later or simultaneous flush still succeeds: the kernel
//! reports the failure to one of them only. So a thread whose flush succeeded checks whether the store was poisoned,
//! and must not check too early: another flush may have failed already while its thread has not reported it. A flush
//! therefore counts as done only when all flushes that overlapped with it have returned and, if they failed, have
//! poisoned the store.

use std::collections::BTreeSet;
use std::future::Future;

use shoal_common::injected_bug::{Bug, injected};

use super::event::Notifier;
use super::sync::Mutex;

/// The flushes in progress.
#[derive(Default)]
pub(crate) struct Fence {
    turns: Mutex<Turns>,
    ended: Notifier,
}

#[derive(Default)]
struct Turns {
    next: u64,
    under_way: BTreeSet<u64>,
}

impl Fence {
    /// Runs `flush`, calls `failed` if it failed, and waits for the flushes that started before it completed.
    /// Afterwards every failure that may have lost the data of `flush` is known.
    ///
    /// Run this to its end: the outcome of a dropped flush is never known.
    pub(crate) async fn pass<T, E>(
        &self,
        flush: impl Future<Output = Result<T, E>>,
        failed: impl FnOnce(&E),
    ) -> Result<T, E> {
        let turn = self.begin();
        let result = flush.await;
        if let Err(error) = &result {
            // Before the turn is over: the threads that wait for it check for failures then.
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
        assert!(turns.under_way.insert(number), "each flush has a unique number (R20)");
        drop(turns);
        Turn { fence: self, number }
    }
}

/// A flush in progress.
struct Turn<'a> {
    fence: &'a Fence,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let was_under_way = self.fence.turns.lock().under_way.remove(&self.number);
        assert!(was_under_way, "a flush ends once (R20)");
        self.fence.ended.notify();
    }
}
