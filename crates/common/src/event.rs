//! Small tools for tasks of any runtime: a list of wakers, and a value that one task at a time takes and returns. For threads: a bell,
//! and the list of idle threads.

use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::sync::Mutex;
use super::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use super::sync::thread::{self, Thread};

/// Tasks that wait until the state of the store changes.
#[derive(Default)]
pub struct Notifier {
    waiting: Mutex<(u64, Vec<Waker>)>,
}

impl Notifier {
    /// Wakes all waiting tasks.
    #[inline]
    pub fn notify(&self) {
        let wakers = {
            let mut waiting = self.waiting.lock();
            waiting.0 += 1;
            std::mem::take(&mut waiting.1)
        };
        for waker in wakers {
            waker.wake();
        }
    }

    /// Waits until `check` returns a value. Calls it once at the start and after every [`notify`](Self::notify).
    pub async fn wait_until<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| {
            loop {
                let turn = self.waiting.lock().0;
                if let Some(value) = check() {
                    return Poll::Ready(value);
                }
                let mut waiting = self.waiting.lock();
                if waiting.0 == turn {
                    waiting.1.push(context.waker().clone());
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

/// A value that one task at a time works with; other tasks wait without blocking a thread. Not a lock on the path of a request: it orders
/// publishing, applies and growth (`docs/locks.md`).
pub struct Token<T> {
    value: Mutex<Option<T>>,
    returned: Notifier,
}

/// The right to work with the value.
pub struct TokenGuard<'a, T> {
    token: &'a Token<T>,
    value: Option<T>,
}

impl<T: Default> Default for Token<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Token<T> {
    /// A token with this value.
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(Some(value)), returned: Notifier::default() }
    }

    /// Waits for the value.
    pub async fn take(&self) -> TokenGuard<'_, T> {
        self.returned.wait_until(|| self.try_take()).await
    }

    /// Returns true if no task works with the value.
    pub fn is_free(&self) -> bool {
        self.value.lock().is_some()
    }

    /// The value, unless another task works with it.
    pub fn try_take(&self) -> Option<TokenGuard<'_, T>> {
        let value = self.value.lock().take()?;
        Some(TokenGuard { token: self, value: Some(value) })
    }
}

impl<T> Deref for TokenGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.value {
            Some(value) => value,
            None => unreachable!("the value is taken out only by drop"),
        }
    }
}

impl<T> DerefMut for TokenGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.value {
            Some(value) => value,
            None => unreachable!("the value is taken out only by drop"),
        }
    }
}

impl<T> Drop for TokenGuard<'_, T> {
    fn drop(&mut self) {
        *self.token.value.lock() = self.value.take();
        self.token.returned.notify();
    }
}

/// Wakes one thread.
#[derive(Default)]
pub struct Bell {
    rung: AtomicBool,
    thread: OnceLock<Thread>,
    /// The thread exits and answers no ring. Release by the exiting thread, acquire by the threads that would ring.
    closed: AtomicBool,
}

impl Bell {
    /// Binds the bell to this thread.
    pub fn attach(&self) {
        let _ = self.thread.set(thread::current());
    }

    /// Returns true if this is the thread of the bell.
    pub fn is_of_this_thread(&self) -> bool {
        self.thread.get().is_some_and(|thread| thread.id() == thread::current().id())
    }

    /// Closes the bell, and rings for the last time.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.ring();
    }

    /// Returns true if the bell was closed.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Wakes the thread, or makes its next wait return at once.
    #[inline]
    pub fn ring(&self) {
        // Only the first ring since the thread's last check costs a system call.
        if !self.rung.swap(true, Ordering::AcqRel)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Waits for a ring, at most for the timeout.
    pub fn wait(&self, timeout: Duration) {
        if !self.rung.swap(false, Ordering::AcqRel) {
            thread::park_timeout(timeout);
            // Not a store: this must see what a thread did before its ring, if that ring finds the earlier one and wakes nobody.
            self.rung.swap(false, Ordering::AcqRel);
        }
    }

    /// Returns true if the bell was rung since the last call. For a thread with several bells; it waits with [`Self::wait_for_any`].
    #[inline]
    pub fn take_ring(&self) -> bool {
        self.rung.swap(false, Ordering::AcqRel)
    }

    /// Waits, on the thread of these bells, until one of them rings, at most for the timeout. Leaves the ring to [`Self::take_ring`].
    pub fn wait_for_any<'a>(mut bells: impl Iterator<Item = &'a Self>, timeout: Duration) {
        if !bells.any(|bell| bell.rung.load(Ordering::Acquire)) {
            // A ring after the check makes this return at once.
            thread::park_timeout(timeout);
        }
    }
}

/// Background threads that sleep while the store is idle.
///
/// A thread polls its state at short intervals while the state changes. After a quiet period it announces its sleep, polls once more, and
/// then waits for its bell with a long timeout. Each change of the state is followed by [`happened`](Self::happened): it increments a
/// counter and makes one system call for each sleeper. No change is missed: either the last poll or the announcement sees it.
#[derive(Default)]
pub struct Sleepers {
    /// Changes so far. The order of this counter and of `announced` among all threads is the protocol: both are sequentially consistent.
    events: AtomicU64,
    announced: AtomicBool,
    bells: Mutex<Vec<Arc<Bell>>>,
}

impl Sleepers {
    /// The number of changes so far.
    #[inline]
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::SeqCst)
    }

    /// Notes a change of the state that the threads look at, and wakes the sleepers.
    #[inline]
    pub fn happened(&self) {
        self.events.fetch_add(1, Ordering::SeqCst);
        // For loom, to which only fences are sequentially consistent.
        fence(Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the sleepers after a change that they see without the counter, stored sequentially consistent. Cheap while nobody sleeps.
    #[inline]
    pub fn wake(&self) {
        if self.announced.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        if self.announced.swap(false, Ordering::SeqCst) {
            let bells = std::mem::take(&mut *self.bells.lock());
            bells.iter().for_each(|bell| bell.ring());
        }
    }

    /// Announces that the thread of `bell` sleeps soon. It looks at its state once more before it does.
    pub fn announce(&self, bell: &Arc<Bell>) {
        {
            let mut bells = self.bells.lock();
            if !bells.iter().any(|other| Arc::ptr_eq(other, bell)) {
                bells.push(bell.clone());
            }
        }
        self.announced.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}
