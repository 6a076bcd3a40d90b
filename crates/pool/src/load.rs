//! Reading units that are not there, once for everybody who wants them.
//!
//! A [`Load`] stands in the table from before its read begins until it is published or failed; who comes meanwhile joins
//! it and is woken. A [`ReadRequest`] owns the device's future and drives itself: it is the waker of that future, so
//! the completion verifies and publishes whether anybody still waits or not. Dropping the fetch that began the read
//! strands nobody.
//!
//! A read of several units that fails is no verdict on any of them: their waiters ask again, one unit a request, so that
//! one bad block does not hurt its neighbours.
//!
//! Loads hold the pool's memory, never its device: the last reference to a device is not dropped on its own threads.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::Ordering;
use shoal_device::{IoFuture, Outcome};
use smallvec::SmallVec;

use crate::PoolError;
use crate::ahead::Ahead;
use crate::driven;
use crate::frame::{Frames, ReadFrames};
use crate::pin::Pinned;
use crate::pool::{Inner, Pool};
use crate::unit::{Hint, Unit};

/// How a load ended for those who wait.
pub(crate) enum Ending {
    /// One pin for each of them.
    Loaded(SmallVec<[Pinned; 2]>),
    Failed(PoolError),
    /// Ask again, for this unit alone.
    Again,
}

struct State {
    hint: Hint,
    /// Blocks that count as on their way by a prefetch.
    prefetching: usize,
    /// Blocks that count as on their way for a scan.
    scanning: usize,
    waiting: u32,
    wakers: SmallVec<[Waker; 2]>,
    ending: Option<Ending>,
}

/// One unit on its way into the pool.
pub(crate) struct Load {
    inner: Arc<Inner>,
    pub(crate) unit: Unit,
    state: Mutex<State>,
}

impl Load {
    pub(crate) fn new(inner: Arc<Inner>, unit: Unit, hint: Hint) -> Arc<Self> {
        let scanning = if hint == Hint::Scan { unit.blocks() } else { 0 };
        inner.scanning.fetch_add(scanning, Ordering::Relaxed);
        let wakers = SmallVec::new();
        let state = State { hint, prefetching: 0, scanning, waiting: 0, wakers, ending: None };
        Arc::new(Self { inner, unit, state: Mutex::new(state) })
    }

    /// Waits for it. To be called under the lock of the shard, where the load still stands in the table.
    pub(crate) fn join<'a>(self: &Arc<Self>, pool: &'a Pool, hint: Hint) -> Wait<'a> {
        let mut state = self.state.lock();
        assert!(state.ending.is_none(), "a load that ended stood in the table");
        if state.hint == Hint::Scan {
            state.hint = hint;
        }
        state.waiting += 1;
        let _ = pool;
        Wait { load: self.clone(), _pool: PhantomData, joined: true }
    }

    /// Counts the load as a prefetch until it ends. Its read was not started yet.
    pub(crate) fn mark_prefetch(&self) {
        let blocks = self.unit.blocks();
        self.inner.stats.prefetched.add(1);
        self.inner.prefetching.fetch_add(blocks, Ordering::Relaxed);
        self.state.lock().prefetching = blocks;
    }

    /// The bytes are in the frames: verifies and publishes them.
    fn read(self: &Arc<Self>, frames: Frames) {
        let (offset, bytes) = self.unit.extent();
        let verified = self.unit.verify(frames.chunks(offset, bytes));
        match verified {
            Ok(()) => self.publish(frames),
            Err(error) => {
                // A read that everybody left may find its block reused: that is no damage.
                if self.state.lock().waiting > 0 {
                    self.inner.stats.corrupt.add(1);
                }
                self.fail(frames, Ending::Failed(error));
            }
        }
    }

    fn publish(self: &Arc<Self>, frames: Frames) {
        let index = frames.list().head;
        let mut guard = self.inner.table.lock(self.unit.id.block);
        guard.loads.retain(|load| !Arc::ptr_eq(load, self));
        let mut state = self.state.lock();
        self.inner.policy.entered(&self.inner.slots[index as usize], index, state.hint);
        let pins = self.inner.publish(frames, state.waiting);
        let wakers = state.end(&self.inner, Ending::Loaded(pins));
        drop(state);
        drop(guard);
        self.inner.store.starving.notify();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn fail(self: &Arc<Self>, frames: Frames, ending: Ending) {
        let mut guard = self.inner.table.lock(self.unit.id.block);
        guard.loads.retain(|load| !Arc::ptr_eq(load, self));
        self.inner.table.unlink(&self.inner.slots, frames.list().head, &guard);
        let wakers = self.state.lock().end(&self.inner, ending);
        drop(guard);
        drop(frames);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn end(&mut self, inner: &Inner, ending: Ending) -> SmallVec<[Waker; 2]> {
        assert!(self.ending.is_none(), "a load ended twice");
        self.ending = Some(ending);
        inner.prefetching.fetch_sub(self.prefetching, Ordering::Relaxed);
        inner.scanning.fetch_sub(self.scanning, Ordering::Relaxed);
        std::mem::take(&mut self.wakers)
    }
}

/// Waits for a load. Borrows the pool, because it ends with a pin.
pub(crate) struct Wait<'a> {
    load: Arc<Load>,
    _pool: PhantomData<&'a Pool>,
    /// Whether it still counts among those who wait.
    joined: bool,
}

impl Wait<'_> {
    /// The same for somebody who keeps the pool by other means until this is dropped.
    pub(crate) fn unbound(mut self) -> Wait<'static> {
        let joined = std::mem::replace(&mut self.joined, false);
        Wait { load: self.load.clone(), _pool: PhantomData, joined }
    }

    /// Whether it would be ready at once.
    pub(crate) fn is_over(&self) -> bool {
        self.load.state.lock().ending.is_some()
    }
}

impl Future for Wait<'_> {
    /// `None` means: ask again.
    type Output = Option<Result<Pinned, PoolError>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(self.joined, "polled after it was ready");
        let mut state = self.load.state.lock();
        let result = match &mut state.ending {
            Some(Ending::Loaded(pins)) => {
                let Some(pinned) = pins.pop() else { unreachable!("a load has a pin for each who waits") };
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

/// A load and the frames that it goes to.
pub(crate) type Part = (Arc<Load>, Frames);

/// One request to the device, for one unit or for several that are adjacent on it.
pub(crate) struct ReadRequest {
    loads: SmallVec<[Arc<Load>; 1]>,
    /// The stream that reads ahead with it.
    stream: Option<Arc<Ahead>>,
    begun: Option<Instant>,
    io: Mutex<Option<IoFuture<ReadFrames>>>,
}

impl ReadRequest {
    /// First block and memory of the request, and the request.
    pub(crate) fn new(
        parts: impl IntoIterator<Item = Part>,
        stream: Option<&Arc<Ahead>>,
    ) -> (u64, ReadFrames, Arc<Self>) {
        let (loads, frames): (SmallVec<[Arc<Load>; 1]>, SmallVec<[Frames; 1]>) = parts.into_iter().unzip();
        let Some(first) = loads.first() else { unreachable!("a request reads something") };
        let block = first.unit.id.block;
        let begun = first.inner.latency.begun();
        let request = Self { begun, stream: stream.cloned(), io: Mutex::new(None), loads };
        (block, ReadFrames(frames), Arc::new(request))
    }

    /// Drives the request from here on. `io` was started.
    pub(crate) fn arm(self: Arc<Self>, io: IoFuture<ReadFrames>) {
        *self.io.lock() = Some(io);
        self.drive();
    }

    fn drive(self: Arc<Self>) {
        if let Some(outcome) = driven::ended(&self.io, &self) {
            self.finish(outcome);
        }
    }

    fn finish(&self, outcome: Outcome<ReadFrames>) {
        if let Some(first) = self.loads.first() {
            first.inner.latency.ended(self.begun);
        }
        let parts = self.loads.iter().zip(outcome.memory.0);
        match outcome.result {
            Ok(()) => parts.for_each(|(load, frames)| load.read(frames)),
            Err(error) => {
                let alone = self.loads.len() == 1;
                for (load, frames) in parts {
                    load.inner.stats.read_errors.add(1);
                    let ending = if alone { Ending::Failed(error.clone().into()) } else { Ending::Again };
                    load.fail(frames, ending);
                }
            }
        }
        if let Some(stream) = &self.stream {
            stream.completed();
        }
    }
}

impl Wake for ReadRequest {
    /// The device completed the request: runs on whichever thread reaps completions.
    fn wake(self: Arc<Self>) {
        self.drive();
    }
}
