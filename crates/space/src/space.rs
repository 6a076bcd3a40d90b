//! [`Space`]: the allocator behind its lock.

use parking_lot::Mutex;
use shoal_base::Run;
use smallvec::SmallVec;

use crate::free_runs::FreeRuns;
use crate::geometry::Geometry;
use crate::index::HISTOGRAM_BINS;
use crate::{FreeImage, SpaceError};

/// The runs of one allocation; up to four without memory of their own.
pub type Runs = SmallVec<[Run; 4]>;

/// The free runs of a device, in memory.
///
/// Every call takes one mutex for well under a microsecond (longer where it says so) and does no I/O. What is not
/// free is not known here: blocks are in use, not there yet, or waiting to be freed, all alike.
pub struct Space {
    geometry: Geometry,
    inner: Mutex<FreeRuns>,
}

impl Space {
    /// A space of `blocks_max` blocks, none of them free, in groups of `group_blocks` (see
    /// [`group_blocks_for`](crate::group_blocks_for)). Space is added by [`Self::free`].
    ///
    /// # Panics
    /// Where `blocks_max` is 0 or above [`SPACE_BLOCKS_MAX`](crate::SPACE_BLOCKS_MAX), or `group_blocks` is not a
    /// power of two from 16 to 65,536, or both together make more than 262,144 groups.
    #[must_use]
    pub fn new(blocks_max: u64, group_blocks: u32) -> Self {
        let geometry = Geometry::new(blocks_max, group_blocks);
        Self { geometry, inner: Mutex::new(FreeRuns::new(geometry)) }
    }

    /// A space in which exactly what `image` says is free, with the image's groups.
    #[must_use]
    pub fn from_image(image: &FreeImage) -> Self {
        let space = Self::new(image.blocks_max(), image.group_blocks());
        {
            let mut inner = space.inner.lock();
            for run in image.runs() {
                let freed = inner.free(run);
                assert!(freed.is_ok(), "the runs of an image lie inside and do not overlap: {freed:?}");
            }
        }
        space
    }

    /// The first block behind the space.
    #[must_use]
    pub fn blocks_max(&self) -> u64 {
        self.geometry.blocks_max()
    }

    /// Blocks of a group.
    #[must_use]
    pub fn group_blocks(&self) -> u32 {
        self.geometry.group_blocks()
    }

    /// Makes a run free: one that is given back, or space that was added. It is merged with its neighbours and may
    /// be handed out again at once, so R9 must hold when this is called.
    ///
    /// # Errors
    /// [`SpaceError::AlreadyFree`] where any block of it is free, [`SpaceError::Outside`]. Nothing is changed then.
    pub fn free(&self, run: Run) -> Result<(), SpaceError> {
        self.inner.lock().free(run)
    }

    /// Makes many runs free under one lock, in order of address: all of them or none.
    ///
    /// # Errors
    /// As [`Self::free`], for the first run that is wrong; two runs of the batch that overlap are
    /// [`SpaceError::AlreadyFree`] too.
    pub fn free_batch(&self, runs: &[Run]) -> Result<(), SpaceError> {
        self.inner.lock().free_batch(runs)
    }

    /// Hands out a contiguous run of exactly `blocks` blocks: from the shortest free run of any group that fits,
    /// the lowest of that length; where no group has one, the same among the runs that cross borders of groups
    /// (a walk over the borders in free space). `None` only if no contiguous run fits.
    ///
    /// # Panics
    /// Where `blocks` is 0.
    #[must_use]
    pub fn allocate(&self, blocks: u32) -> Option<Run> {
        self.inner.lock().allocate(blocks)
    }

    /// Hands out `blocks` blocks in at most `runs_max` runs: in one if possible, else the longest free runs first
    /// and the last piece by best fit. All or nothing.
    ///
    /// # Panics
    /// Where `blocks` is 0.
    #[must_use]
    pub fn allocate_runs(&self, blocks: u32, runs_max: usize) -> Option<Runs> {
        let mut runs = Runs::new();
        self.inner.lock().allocate_runs(blocks, runs_max, &mut runs).then_some(runs)
    }

    /// Hands out a run of `blocks` blocks, or the longest free run where all are shorter. `None` if nothing is free.
    ///
    /// # Panics
    /// Where `blocks` is 0.
    #[must_use]
    pub fn allocate_at_most(&self, blocks: u32) -> Option<Run> {
        self.inner.lock().allocate_at_most(blocks)
    }

    /// Takes exactly this run out of the free space, as recovery does with what the log's records own.
    ///
    /// # Errors
    /// [`SpaceError::NotFree`] with the first part that is in use, [`SpaceError::Outside`]. Nothing is changed then.
    pub fn take(&self, run: Run) -> Result<(), SpaceError> {
        self.inner.lock().take(run)
    }

    /// Takes whatever is free of a run and says how many blocks that were: for groups whose image is incomplete
    /// ([`FreeImage::is_incomplete`]) and for areas that must not be handed out.
    ///
    /// # Errors
    /// [`SpaceError::Outside`].
    pub fn take_free_part(&self, run: Run) -> Result<u64, SpaceError> {
        self.inner.lock().take_free_part(run)
    }

    /// How many blocks are free.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.inner.lock().free_blocks
    }

    /// Blocks of the longest free run, also across groups, at most `u32::MAX`: what [`Self::allocate`] can serve.
    /// With many wholly free groups this walks over them.
    #[must_use]
    pub fn largest_run(&self) -> u32 {
        self.inner.lock().longest().map_or(0, |run| run.blocks)
    }

    /// How many free runs have 2^i to 2^(i+1) - 1 blocks, for each i; a run that crosses borders of groups counts
    /// once in each group.
    #[must_use]
    pub fn histogram(&self) -> [u64; HISTOGRAM_BINS] {
        self.inner.lock().index.histogram()
    }

    /// Whether every block of a run is free.
    #[must_use]
    pub fn is_free(&self, run: Run) -> bool {
        self.inner.lock().is_free(run)
    }

    /// Calls `visit` for every free run in ascending order, merged across groups: one consistent state. The lock
    /// is held meanwhile: `visit` must be quick and must not call this space.
    pub fn for_each_run(&self, visit: &mut dyn FnMut(Run)) {
        self.inner.lock().runs().for_each(visit);
    }

    /// Bytes of memory in use. Walks over the groups.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let inner = self.inner.lock();
        let arrays: usize = inner.groups.iter().map(|runs| runs.heap_bytes()).sum();
        let groups = inner.groups.capacity() * size_of_val(&inner.groups[0]);
        size_of::<Self>() + arrays + groups + inner.joined.heap_bytes() + inner.index.heap_bytes()
    }

    /// Checks the index against the free runs themselves; slow, for tests and `shoal check`.
    ///
    /// # Panics
    /// Where they contradict each other.
    pub fn audit(&self) {
        self.inner.lock().audit();
    }
}
