//! The pool as a whole: its parts and its options.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use shoal_base::Run;
use shoal_base::sync::atomic::AtomicUsize;
use shoal_device::Device;

use crate::PoolError;
use crate::budget::IoBudget;
use crate::counters::{Alone, PoolCounters, Stats};
use crate::damaged::DamagedPages;
use crate::latency::{Latency, moment};
use crate::memory::frame::Stores;
use crate::memory::free::NONE;
use crate::policy::{K_MAX, Policy};
use crate::resident::pin::close;
use crate::resident::slot::{Residents, Slot};
use crate::shared::{InPlaceWrites, Shared};
use crate::table::Table;
use crate::unit::{UNIT_BLOCKS_MAX, Unit, UnitId};

/// The size of the pool, and the choice of units to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Frames of 4 KiB in the pool. Tables take about 7 % more memory with the defaults.
    pub frames: usize,
    /// LRU-K's k, 1 to 16.
    pub k: usize,
    /// Evicted units whose accesses LRU-K remembers, each 9 + 4 k bytes; 0 means none.
    pub history: usize,
    /// Frames that scans take before they reuse their own.
    pub scan_frames_max: usize,
    /// On a slow device pages are written ahead of need while fewer frames than this are free or being written; 0:
    /// never.
    pub ready_frames: usize,
    /// Buffers of 4 KiB beside the frames, from which pages that change in place are written on a slow device: their
    /// frames are free at once. 0, the default: none. (The engine's pages do not change in place.)
    pub side_buffers: usize,
    /// The longest wait of a request for a frame while all are pinned or under I/O, in milliseconds (rounded up to 10).
    pub pin_wait_ms: u64,
}

impl PoolOptions {
    /// Least frames that remember evicted units: with fewer, the table would be too small to be useful.
    const HISTORY_MIN: usize = 1024;

    /// A sixth of the frames, at least 8 for threads that miss at the same time, at most 64 and a third. With fewer,
    /// misses wait for writes; with more, pages are evicted that are needed again (64 frames, 1 ms: 8 starve, 21
    /// halve the hits).
    const fn ready(frames: usize) -> usize {
        let share = frames / 6;
        let bounded = if share < 8 { 8 } else { share };
        let bounded = if bounded > 64 { 64 } else { bounded };
        if bounded > frames / 3 { frames / 3 } else { bounded }
    }

    /// An eighth; of small pools 3/16, at most 64; of the smallest 3/8, at most 16: a scan needs a page or two, and with
    /// fewer eight scans wait for each other (24 frames, 1 ms: with 4 a third of the scans and half of the gets).
    const fn for_scans(frames: usize) -> usize {
        let least = if frames * 3 / 8 < 16 { frames * 3 / 8 } else { 16 };
        let small = if frames * 3 / 16 < 64 { frames * 3 / 16 } else { 64 };
        let small = if small < least { least } else { small };
        if frames / 8 > small { frames / 8 } else { small }
    }

    /// The defaults for a pool of `frames` frames: LRU-K with k = 8, four remembered units a frame, an eighth for scans (of small
    /// pools more), one second of waiting.
    #[must_use]
    pub const fn new(frames: usize) -> Self {
        let history = if frames * 4 > Self::HISTORY_MIN { frames * 4 } else { Self::HISTORY_MIN };
        let scan_frames_max = Self::for_scans(frames);
        Self {
            frames,
            k: 8,
            history,
            scan_frames_max,
            ready_frames: Self::ready(frames),
            side_buffers: 0,
            pin_wait_ms: 1000,
        }
    }
}

struct Handle {
    shared: Arc<Shared>,
    /// As in `shared`, without the indirection for a hit.
    residents: Arc<Residents>,
    device: Device,
}

impl Drop for Handle {
    fn drop(&mut self) {
        close(&self.residents);
    }
}

/// The page buffer pool of one device. Cheap to clone; the clones share everything.
///
/// Dropping the last clone does not wait for reads and writes in flight, nor for pins: the memory goes with the last of
/// them. Dirty pages are lost then: for a shutdown, call [`flush_all`](Self::flush_all) first, which waits for every
/// write.
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

impl Pool {
    /// A pool without a unit. Memory is used as frames are.
    ///
    /// # Errors
    /// [`PoolError::Setup`] if the options are outside of their limits, or if the address space does not suffice.
    pub fn new(device: Device, options: PoolOptions) -> Result<Self, PoolError> {
        let PoolOptions { frames, k, history, scan_frames_max, ready_frames, .. } = options;
        let PoolOptions { side_buffers, pin_wait_ms, .. } = options;
        let setup = |message: String| PoolError::Setup { frames, message };
        let count = u32::try_from(frames).ok().filter(|&count| (1..NONE / K_MAX as u32).contains(&count));
        let count = count.ok_or_else(|| setup("the number of frames is not supported".into()))?;
        if !(1..=K_MAX).contains(&k) {
            return Err(setup(format!("k is {k}, not 1 to {K_MAX}")));
        }
        let side = match u32::try_from(side_buffers).map(|count| count.min(NONE - 1)) {
            Ok(0) => None,
            Ok(count) => Some(Stores::new(count).map_err(|error| setup(error.to_string()))?),
            Err(_) => return Err(setup("the number of side buffers is not supported".into())),
        };
        let residents = Arc::new(Residents::new(count).map_err(|error| setup(error.to_string()))?);
        let shared = Shared {
            table: Table::new(residents.slots.clone()),
            policy: Policy::new(frames, k, history, scan_frames_max),
            residents: residents.clone(),
            draw: Alone::default(),
            stats: Stats::default(),
            latency: Alone(Latency::new()),
            prefetching: Alone::default(),
            scanning: Alone::default(),
            fresh: Alone::default(),
            writes: InPlaceWrites { side, ready_frames, ..InPlaceWrites::default() },
            streams: AtomicUsize::new(0),
            pin_wait_ms,
            damaged: DamagedPages::new(frames),
            budget: IoBudget::new(),
        };
        Ok(Self(Arc::new(Handle { shared: Arc::new(shared), residents, device })))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    pub(crate) fn residents(&self) -> &Arc<Residents> {
        &self.0.residents
    }

    /// The parts to drop, if this is the last handle.
    pub(crate) fn into_last(self) -> Option<impl Send> {
        Arc::into_inner(self.0)
    }

    /// The device that the pool reads from and writes to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Values above this many bytes should be read past the pool: they would displace too many units that are read
    /// often.
    #[must_use]
    pub fn pass_through_bytes(&self) -> u64 {
        (self.frames() / 64 * shoal_base::BLOCK_BYTES) as u64
    }

    /// Frames of the pool.
    pub(crate) fn frames(&self) -> usize {
        self.residents().slots.len()
    }

    /// Returns true if a unit of this identity is resident. It may be gone a moment later.
    #[must_use]
    pub fn is_resident(&self, id: &UnitId) -> bool {
        let shared = self.shared();
        let guard = shared.table.lock(id.block);
        let mut slots = shared.table.chain(id.block, &guard).map(|index| shared.residents.slot(index));
        slots.any(|slot| slot.id() == *id && slot.word.is_resident())
    }

    /// The device time that background work may take.
    #[must_use]
    pub fn budget(&self) -> &IoBudget {
        &self.shared().budget
    }

    /// The present moment, taken at the start of a read: see [`Self::remember_damage`].
    #[must_use]
    pub fn moment(&self) -> Instant {
        moment()
    }

    /// The error of the last read of a page, if that failed recently.
    #[must_use]
    pub fn remembered_damage(&self, unit: &Unit) -> Option<PoolError> {
        self.shared().damaged.find(unit, moment())
    }

    /// Remembers for some seconds that the read of a page, started at `began`, has failed. The caller omits errors that
    /// do not come from the page's block.
    pub fn remember_damage(&self, unit: &Unit, error: &PoolError, began: Instant) {
        self.shared().damaged.note(unit, error, began, moment());
    }

    /// Forgets the damage of a page, which was read well.
    pub fn forget_damage(&self, unit: &Unit) {
        self.shared().damaged.was_read(unit);
    }

    /// Forgets the damage of all pages: the next reads ask the device.
    pub fn forget_all_damage(&self) {
        self.shared().damaged.forget_all();
    }

    /// Returns true if the device reported unreadable blocks and no read of others has succeeded since.
    #[must_use]
    pub fn is_device_in_doubt(&self) -> bool {
        self.shared().damaged.is_device_in_doubt()
    }

    /// Notes that the device reported an unreadable block, or that it reads others.
    pub fn doubt_device(&self, is_in_doubt: bool) {
        self.shared().damaged.doubt_device(is_in_doubt);
    }

    /// Drops the units that have a block in `run`, for instance because its space is reused. Pinned units can no longer
    /// be found and go with their last pin; loads in flight are not touched.
    ///
    /// Identities keep a reused block from being taken for its former self (R11), so this only frees memory early.
    pub fn forget(&self, run: Run) {
        let residents = self.residents();
        let first = run.block.saturating_sub(UNIT_BLOCKS_MAX as u64 - 1);
        let forget = |block: u64| {
            let guard = self.shared().table.lock(block);
            let pins = self.shared().retire(block, &guard, |unit| unit.run().overlaps(run));
            drop(guard);
            drop(pins);
        };
        if (run.end() - first) as usize <= residents.slots.len() {
            (first..run.end()).for_each(forget);
            return;
        }
        // The run is longer than the pool: ask the slots instead of the blocks. A slot that changes meanwhile names a
        // unit that was loaded after this call.
        let resident = residents.used_slots().iter().filter(|slot| slot.word.is_resident());
        resident.map(Slot::block).filter(|block| (first..run.end()).contains(block)).for_each(forget);
    }

    /// Drops this unit if it is resident, as [`Self::forget`] does.
    pub fn forget_unit(&self, id: UnitId) {
        let guard = self.shared().table.lock(id.block);
        let pins = self.shared().retire(id.block, &guard, |unit| unit.id == id);
        drop(guard);
        drop(pins);
    }

    /// Frames that scans take before they reuse their own.
    #[must_use]
    pub fn scan_frames_max(&self) -> usize {
        self.shared().policy.scan_frames_max()
    }

    /// Counts so far and the state now. Looks at every slot: for `stat` and tests, not for each request.
    #[must_use]
    pub fn counters(&self) -> PoolCounters {
        let (shared, residents) = (self.shared(), self.residents());
        let stats = &shared.stats;
        let slots = residents.used_slots();
        let pinned = slots.iter().filter(|slot| slot.word.is_pinned());
        PoolCounters {
            hits: residents.hits.get() + slots.iter().map(|slot| slot.word.hits()).sum::<u64>(),
            misses: stats.misses.get(),
            index_misses: stats.index_misses.get(),
            lookup_misses: stats.lookup_misses.get(),
            coalesced: stats.coalesced.get(),
            prefetched: stats.prefetched.get(),
            evictions: stats.evictions.get(),
            adopted: stats.adopted.get(),
            writes: stats.writes.get(),
            blocks_written: stats.blocks_written.get(),
            write_errors: stats.write_errors.get(),
            read_errors: stats.read_errors.get(),
            corrupt: stats.corrupt.get(),
            exhausted: stats.exhausted.get(),
            starved: stats.starved.get(),
            starved_us: stats.starved_us.get(),
            set_aside: stats.set_aside.get(),
            queue_hits: stats.queue_hits.get(),
            ahead_used: stats.ahead_used.get(),
            ahead_wasted: stats.ahead_wasted.get(),
            read_us: shared.latency.us(),
            frames: self.frames(),
            frames_used: residents.memory.free.used(),
            frames_pinned: pinned.map(|slot| slot.unit().blocks()).sum(),
            side_buffers: shared.writes.side.as_ref().map_or(0, |side| side.free.frames()),
            side_buffers_used: shared.writes.side.as_ref().map_or(0, |side| side.free.used()),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("frames", &self.frames())
            .field("device", self.device())
            .finish_non_exhaustive()
    }
}
