//! Requests that wait for a frame because every frame is pinned or under I/O.
//!
//! A thread that frees a frame wakes them, and so does a watchdog thread, which lives only while a request waits. The
//! watchdog bounds the wait on any runtime: the requests fail after a number of its ticks.
//!
//! Potential weakness: each free frame wakes all of them. Starvation is rare and the waiters are few (each holds a
//! separate request), so fairness and thundering were not worth a queue.

use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How long the watchdog sleeps, in milliseconds.
pub(crate) const TICK_MS: u64 = 10;

#[derive(Default)]
pub(crate) struct Starving {
    /// Requests that wait. Announced before they look for frames; see `FreeList::pop` for the other side.
    waiting: AtomicUsize,
    ticks: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    wakers: Vec<Waker>,
    watched: bool,
}

impl Starving {
    /// Announces a request that waits; `None` if the watchdog cannot be started, so that nothing would bound the wait.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Waiting> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waiting = Waiting { starving: self.clone(), start: self.ticks.load(Ordering::Relaxed) };
        let mut state = self.state.lock();
        // Schedules have no time: a waiter that is never woken is a deadlock there, and found.
        if !state.watched && !cfg!(shoal_shuttle) {
            let starving = self.clone();
            let watchdog = thread::Builder::new().name("pool-watchdog".into());
            watchdog.spawn(move || starving.watch()).ok()?;
            state.watched = true;
        }
        Some(waiting)
    }

    fn watch(&self) {
        loop {
            thread::sleep(Duration::from_millis(TICK_MS));
            self.ticks.fetch_add(1, Ordering::Relaxed);
            self.wake();
            let mut state = self.state.lock();
            if self.waiting.load(Ordering::SeqCst) == 0 {
                state.watched = false;
                return;
            }
        }
    }

    /// Requests that wait now.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Wakes the starving requests, if there are any: a frame may be available.
    pub(crate) fn notify(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut self.state.lock().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A request that waits for a frame.
pub(crate) struct Waiting {
    starving: Arc<Starving>,
    start: u64,
}

impl Waiting {
    /// Asks to be woken. To be called before looking for a frame, each time.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut state = self.starving.state.lock();
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
    }

    /// Ticks since the start of the wait.
    pub(crate) fn ticks(&self) -> u64 {
        self.starving.ticks.load(Ordering::Relaxed).wrapping_sub(self.start)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.starving.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
