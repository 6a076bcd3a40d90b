//! [`Load`]: a unit that is being read into the pool, and [`Wait`], which waits for it.
//!
//! A load is in the table from before the start of its read until it is published or failed. A later fetch joins it
//! and is woken, so one read serves all. The fetch that started the read may be dropped: the others still get the
//! unit.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use shoal_base::sync::Mutex;
use smallvec::SmallVec;

use crate::PoolError;
use crate::resident::pin::Pinned;
use crate::unit::{Hint, Unit};

/// The end of a load for its waiters.
pub(crate) enum Ending {
    /// One pin for each of them.
    Loaded(SmallVec<[Pinned; 2]>),
    Failed(PoolError),
    /// Ask again, for this unit alone.
    Again,
}

struct State {
    hint: Hint,
    waiting: u32,
    wakers: SmallVec<[Waker; 2]>,
    ending: Option<Ending>,
}

/// One unit on its way into the pool.
pub(crate) struct Load {
    pub(crate) unit: Unit,
    /// Its blocks count as on their way for a scan.
    pub(crate) is_scan: bool,
    /// Its blocks count as on their way by a prefetch.
    pub(crate) is_prefetch: bool,
    state: Mutex<State>,
}

impl Load {
    pub(crate) fn new(unit: Unit, hint: Hint, is_prefetch: bool) -> Arc<Self> {
        let state = State { hint, waiting: 0, wakers: SmallVec::new(), ending: None };
        Arc::new(Self { unit, is_scan: hint == Hint::Scan, is_prefetch, state: Mutex::new(state) })
    }

    /// Waits for the load while `_pool` is borrowed. Call it under the lock of the shard, while the load is in the
    /// table.
    pub(crate) fn join<'a, P>(self: &Arc<Self>, _pool: &'a P, hint: Hint) -> Wait<'a> {
        let mut state = self.state.lock();
        assert!(state.ending.is_none(), "a finished load was in the table");
        if state.hint == Hint::Scan {
            state.hint = hint;
        }
        state.waiting += 1;
        Wait { load: self.clone(), _pool: PhantomData, joined: true }
    }

    /// Returns true if a fetch waits for the load.
    pub(crate) fn is_wanted(&self) -> bool {
        self.state.lock().waiting > 0
    }

    /// Completes the load. `ending` gets the strongest hint and the number of waiters; the result has their wakers.
    /// Call it under the lock of the shard, when the load is no longer in the table.
    pub(crate) fn end(&self, ending: impl FnOnce(Hint, u32) -> Ending) -> SmallVec<[Waker; 2]> {
        let mut state = self.state.lock();
        assert!(state.ending.is_none(), "a load ended twice");
        state.ending = Some(ending(state.hint, state.waiting));
        std::mem::take(&mut state.wakers)
    }
}

/// Waits for a load. Borrows the pool, because the result is a pin.
pub(crate) struct Wait<'a> {
    load: Arc<Load>,
    _pool: PhantomData<&'a ()>,
    /// True while this counts among the waiters.
    joined: bool,
}

impl Wait<'_> {
    /// The same for a caller that keeps the pool by other means until this is dropped.
    pub(crate) fn unbound(mut self) -> Wait<'static> {
        let joined = std::mem::replace(&mut self.joined, false);
        Wait { load: self.load.clone(), _pool: PhantomData, joined }
    }

    /// Returns true if the wait would return at once.
    pub(crate) fn is_over(&self) -> bool {
        self.load.state.lock().ending.is_some()
    }
}

impl Future for Wait<'_> {
    /// `None` means: look the unit up again.
    type Output = Option<Result<Pinned, PoolError>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(self.joined, "polled after it was ready");
        let mut state = self.load.state.lock();
        let result = match &mut state.ending {
            Some(Ending::Loaded(pins)) => {
                let Some(pinned) = pins.pop() else { unreachable!("a load has a pin for each wait") };
                Some(Ok(pinned))
            }
            Some(Ending::Failed(error)) => Some(Err(error.clone())),
            Some(Ending::Again) => None,
            None => {
                if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                    state.wakers.push(context.waker().clone());
                }
                return Poll::Pending;
            }
        };
        state.waiting -= 1;
        drop(state);
        self.joined = false;
        Poll::Ready(result)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.joined {
            let mut state = self.load.state.lock();
            state.waiting -= 1;
            let pinned = match &mut state.ending {
                Some(Ending::Loaded(pins)) => pins.pop(),
                _ => None,
            };
            drop(state);
            drop(pinned);
        }
    }
}
