//! Reads from the device: on the calling thread, or as a request that drives itself.
//!
//! A read of several units that fails is no verdict on any of them: their waiters ask again, one unit a request, so that
//! one bad block does not hurt its neighbours.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use shoal_base::sync::atomic::Ordering;
use shoal_device::{Completion, IoFuture};
use smallvec::SmallVec;

use crate::PoolError;
use crate::memory::frame::{Frames, ReadFrames};
use crate::pool::Pool;
use crate::requests::Purpose;
use crate::shared::Shared;
use crate::table::load::{Ending, Load};
use crate::unit::{Hint, Unit};

/// A load with its frames.
pub(crate) type Part = (Arc<Load>, Frames);

/// One request to the device, for one unit or for several adjacent ones. Its completion verifies and publishes them,
/// with or without waiters.
pub(crate) struct Read {
    shared: Arc<Shared>,
    loads: SmallVec<[Arc<Load>; 1]>,
    /// The start of the read, if it is timed.
    began: Option<Instant>,
    /// Woken at the end of the read.
    then: Option<Waker>,
}

impl Read {
    /// A request for `parts`, which are neighbours on the device.
    pub(crate) fn request(
        pool: &Pool,
        parts: impl IntoIterator<Item = Part>,
        then: Option<Waker>,
    ) -> (IoFuture<ReadFrames>, Self) {
        let (loads, frames): (SmallVec<[Arc<Load>; 1]>, SmallVec<[Frames; 1]>) = parts.into_iter().unzip();
        let Some(first) = loads.first() else { unreachable!("a request reads something") };
        let io = pool.device().read(first.unit.id.block, ReadFrames(frames));
        let shared = pool.shared().clone();
        (io, Self { began: shared.latency.began(), shared, loads, then })
    }

    /// The bytes are in the frames: verifies and publishes them.
    fn read(&self, load: &Arc<Load>, frames: Frames) {
        let (offset, bytes) = load.unit.extent();
        let verified = load.unit.verify(frames.chunks(offset, bytes));
        // The block of a read without waiters may be reused meanwhile: that is no damage.
        if verified.is_err() && load.is_wanted() {
            self.shared.stats.corrupt.add(1);
        }
        self.shared.loaded(load, frames, verified.err().map(Ending::Failed));
    }
}

impl Purpose<ReadFrames> for Read {
    fn ended(&self, completion: Completion<ReadFrames>) {
        self.shared.latency.ended(self.began);
        assert_eq!(self.loads.len(), completion.memory.0.len(), "a read returns its frames");
        let parts = self.loads.iter().zip(completion.memory.0);
        match completion.result {
            Ok(()) => parts.for_each(|(load, frames)| self.read(load, frames)),
            Err(error) => {
                let alone = self.loads.len() == 1;
                for (load, frames) in parts {
                    self.shared.stats.read_errors.add(1);
                    let ending = if alone { Ending::Failed(error.clone().into()) } else { Ending::Again };
                    self.shared.loaded(load, frames, Some(ending));
                }
            }
        }
        if let Some(then) = &self.then {
            then.wake_by_ref();
        }
    }
}

impl Shared {
    /// Counts a miss.
    fn missed(&self, hint: Hint) {
        self.stats.misses.add(1);
        match hint {
            Hint::Index => self.stats.index_misses.add(1),
            Hint::Lookup => self.stats.lookup_misses.add(1),
            Hint::Scan => {}
        }
    }

    /// Starts a load. It counts until it is [complete](Self::loaded).
    pub(super) fn load(&self, unit: &Unit, hint: Hint, is_prefetch: bool) -> Arc<Load> {
        self.missed(hint);
        if is_prefetch {
            self.stats.prefetched.add(1);
            self.prefetching.fetch_add(unit.blocks(), Ordering::Relaxed);
        }
        if hint == Hint::Scan {
            self.scanning.fetch_add(unit.blocks(), Ordering::Relaxed);
        }
        Load::new(*unit, hint, is_prefetch)
    }
}

impl Pool {
    /// Reads a reserved unit on this thread, which may block, without the cost of a hand-off. Returns the frames with
    /// the verified bytes, to be published.
    pub(super) fn read_here(&self, unit: &Unit, hint: Hint, frames: Frames) -> Result<Frames, PoolError> {
        let shared = self.shared();
        shared.missed(hint);
        let index = frames.list().head;
        let began = shared.latency.began();
        let completion = self.device().read_now(unit.id.block, ReadFrames(smallvec::smallvec![frames]));
        shared.latency.ended(began);
        let Some(frames) = completion.memory.0.into_iter().next() else {
            unreachable!("a read returns its memory")
        };
        let (offset, bytes) = unit.extent();
        let verified = match completion.result {
            Ok(()) => unit.verify(frames.chunks(offset, bytes)).inspect_err(|_| shared.stats.corrupt.add(1)),
            Err(error) => {
                shared.stats.read_errors.add(1);
                Err(error.into())
            }
        };
        if let Err(error) = verified {
            let guard = shared.table.lock(unit.id.block);
            shared.table.unlink(index, &guard);
            let awaited = shared.residents.slot(index).word.unreserve();
            drop(guard);
            drop(frames);
            if awaited {
                shared.residents.latches.wake(index);
            }
            return Err(error);
        }
        Ok(frames)
    }
}
