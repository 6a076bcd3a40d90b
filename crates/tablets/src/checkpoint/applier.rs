//! The turn to apply, and the waits that end the pace of the apply that has it.

use std::time::Duration;

use shoal_base::sync::atomic::{AtomicUsize, Ordering};
use shoal_common::event::{Bell, Token, TokenGuard};

/// The turn of the one apply.
#[derive(Default)]
pub struct Applier {
    turn: Token<()>,
    /// Tasks that wait for the end of the apply: writers for room, others for the turn.
    waiting: AtomicUsize,
    /// Wakes the thread that applies from a sleep of its pace.
    bell: Bell,
}

/// A wait for the end of an apply, until this is dropped.
pub struct ApplyWait<'a>(&'a Applier);

impl Applier {
    /// Waits for the turn. The apply that has it sleeps no longer.
    pub async fn turn(&self) -> TokenGuard<'_, ()> {
        if let Some(turn) = self.turn.try_take() {
            return turn;
        }
        let _wait = self.wait();
        self.turn.take().await
    }

    /// Starts a wait, which ends a sleep of the present apply at once.
    pub fn wait(&self) -> ApplyWait<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // After the increment, so that the thread that this wakes sees the wait.
        self.bell.ring();
        ApplyWait(self)
    }

    /// Returns true if a task waits for the end of an apply.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Sleeps on the thread that applies until a task waits, at most for `timeout`.
    pub(crate) fn sleep(&self, timeout: Duration) {
        self.bell.attach();
        if !self.is_waited_for() {
            self.bell.wait(timeout);
        }
    }
}

impl Drop for ApplyWait<'_> {
    fn drop(&mut self) {
        let before = self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a wait ends once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_wait_ends_a_sleep_at_once() {
        let applier = Applier::default();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                while !applier.is_waited_for() {
                    applier.sleep(DAY);
                }
                // Nothing sleeps while a task waits.
                applier.sleep(DAY);
            });
            let wait = applier.wait();
            drop(applier.wait());
            sleeper.join().unwrap();
            drop(wait);
        });
        assert!(!applier.is_waited_for());
    }
}
