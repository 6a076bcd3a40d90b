//! The trees' pages come from the pool, and the new pages of an apply go through it to fresh blocks.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use shoal_base::task::Boxed;
use shoal_base::{BLOCK_BYTES, Run, TabletId};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_device::{DeviceError, IoBuf};
use shoal_memtable::admission::MemtableAdmission;
use shoal_pool::{Hint, Keep, Pinned, Pool, PoolError, Unit, Writer, WriterOptions};
use shoal_space_manager::SpaceManager;
use shoal_tree::{Draft, PageRef, PageSink, PageSource, ReadHint, Tree};
use shoal_value::packed::RunOwner;
use shoal_value::pool_error;

use crate::counters::OperationCounters;

/// Blocks that an apply allocates at a time for its pages, so that one write covers several neighbours.
const PAGE_RUN_BLOCKS: u32 = 16;

/// The tree of a tablet. `identity` is the store's.
#[inline]
pub fn tree_of(identity: [u8; 16], tablet: TabletId) -> Tree {
    let mut device = [0; 8];
    device.copy_from_slice(&identity[..8]);
    Tree { device: u64::from_le_bytes(device), tablet }
}

/// The owner of a tree's packed run at `block`, as its footer names it.
#[inline]
pub fn owner_of(tree: Tree, block: u64) -> RunOwner {
    RunOwner { device: tree.device, tablet: tree.tablet, block }
}

/// A page source that reads through the pool.
#[derive(Clone, Copy)]
pub struct PoolPages<'a> {
    pool: &'a Pool,
    gives_up: bool,
    remembers: Remembers,
    /// The memtables of background work, which reads within the budget of the pool unless they are nearly full.
    paced_by: Option<&'a MemtableAdmission>,
}

/// The fill of the memtables, in thousandths, from which on background work reads as fast as it can: writers are about to wait for it.
pub const LATE_PERMILLE: usize = 750;

/// The recent damage that a source takes for granted: pages whose read failed in the last seconds and that are not read again. `shoal-pool`
/// (`damaged.rs`) has the rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remembers {
    /// None: each read asks the device. For gets, and for every operation that treats a page as lost for good.
    Nothing,
    /// Wrong bytes. For applies that try again if the device cannot read a block.
    WrongBytes,
    /// Wrong bytes and blocks that the device cannot read. For passes over many keys.
    All,
}

/// Requests that background work may keep in flight now: no limit without `paced_by`, or if its memtables are nearly full.
pub(crate) fn depth_of(pool: &Pool, paced_by: Option<&MemtableAdmission>) -> usize {
    let in_time = |admission: &&MemtableAdmission| {
        admission.fill_permille() < LATE_PERMILLE && !admission.is_waited_for()
    };
    paced_by.filter(in_time).map_or(usize::MAX, |_| pool.budget().depth())
}

impl<'a> PoolPages<'a> {
    /// Reads pages through `pool`.
    #[inline]
    pub fn new(pool: &'a Pool) -> Self {
        Self { pool, gives_up: false, remembers: Remembers::Nothing, paced_by: None }
    }

    /// Reads the page without a frame of the pool.
    fn read_past(&self, unit: Unit) -> Boxed<'_, std::result::Result<PoolPage, PoolError>> {
        Box::pin(async move {
            let read = self.pool.device().read(unit.id.block, IoBuf::unfilled(1)).await;
            let bytes = read.ok().map_err(PoolError::Device)?;
            unit.verify(std::iter::once(&bytes[..]))?;
            Ok(PoolPage::Past(Arc::new(bytes)))
        })
    }

    /// The same source. With `gives_up`, a page that the device reports as unreadable is damaged.
    #[inline]
    pub fn giving_up(self, gives_up: bool) -> Self {
        Self { gives_up, ..self }
    }

    /// The same source, which skips reads of the damaged pages that it `remembers`.
    #[inline]
    pub fn remembering(self, remembers: Remembers) -> Self {
        Self { remembers, ..self }
    }

    /// The same source for a pass over many keys, each of which may meet the same damaged pages.
    #[inline]
    pub fn of_pass(self) -> Self {
        self.remembering(Remembers::All)
    }

    /// The same source for background work: it reads ahead within the budget of the pool, unless memtables of `admission` are nearly full.
    pub(crate) fn paced_by(self, admission: Option<&'a MemtableAdmission>) -> Self {
        Self { paced_by: admission, ..self }
    }

    /// Pages that background work may read ahead now, as far as the device is concerned.
    pub(crate) fn depth(&self) -> usize {
        depth_of(self.pool, self.paced_by)
    }

    /// The error of a page that could not be read some seconds ago.
    fn remembered(&self, unit: &Unit) -> Option<PoolError> {
        let known = match self.remembers {
            Remembers::Nothing => None,
            Remembers::WrongBytes | Remembers::All => self.pool.remembered_damage(unit),
        };
        known.filter(|error| self.remembers == Remembers::All || matches!(error, PoolError::Corrupt { .. }))
    }

    /// Reads a page that is not in memory.
    async fn read(&self, unit: Unit, level: u8, hint: ReadHint) -> std::result::Result<PoolPage, PoolError> {
        if let Some(error) = self.remembered(&unit) {
            return Err(error);
        }
        let began = self.pool.moment();
        if hint == ReadHint::Point {
            self.pool.budget().note_read();
        }
        // A scan of many trees may itself pin every frame of a small pool, and an apply must not wait for scans.
        let fetched = match hint {
            ReadHint::Point => self.pool.fetch(unit, hint_of(level, hint)).await,
            ReadHint::Scan | ReadHint::Apply => self.pool.try_fetch(unit, hint_of(level, hint)).await,
        };
        let found = match fetched {
            Err(PoolError::Exhausted { .. }) => self.read_past(unit).await,
            fetched => fetched.map(PoolPage::Pinned),
        };
        match &found {
            Ok(_) => self.pool.forget_damage(&unit),
            Err(error) if is_of_page(error) => self.pool.remember_damage(&unit, error, began),
            Err(_) => {}
        }
        found
    }
}

/// Returns true if the device reports the blocks as unreadable, as opposed to a lost connection or a lack of memory.
pub(crate) fn is_of_medium(error: &DeviceError) -> bool {
    /// EIO, ENODATA, EILSEQ, EBADMSG, EUCLEAN, EREMOTEIO: Linux's error codes for unreadable sectors and failed integrity checks.
    const CODES: [i32; 6] = [5, 61, 84, 74, 117, 121];
    matches!(error, DeviceError::Io { code: Some(code), .. } if !error.is_write() && CODES.contains(code))
}

/// Returns true if only this page cannot be read: the device may read others.
fn is_of_page(error: &PoolError) -> bool {
    match error {
        PoolError::Corrupt { .. } => true,
        PoolError::Device(error) => is_of_medium(error),
        _ => false,
    }
}

/// A verified page.
#[derive(Clone)]
pub enum PoolPage {
    /// In a pinned frame.
    Pinned(Pinned),
    /// Read past the pool, in which no frame was free.
    Past(Arc<IoBuf>),
}

impl PoolPage {
    /// The page's bytes; they keep a frame pinned.
    #[inline]
    pub fn into_bytes(self) -> Bytes {
        match self {
            // A page is one frame: there is one chunk.
            Self::Pinned(pinned) => pinned.into_bytes().next().unwrap_or_default(),
            Self::Past(bytes) => Bytes::copy_from_slice(&bytes),
        }
    }
}

impl Deref for PoolPage {
    type Target = [u8; BLOCK_BYTES];

    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            Self::Pinned(pinned) => pinned.page(),
            Self::Past(bytes) => match bytes.first_chunk() {
                Some(page) => page,
                None => unreachable!("a page was read as one block"),
            },
        }
    }
}

#[inline]
fn hint_of(level: u8, hint: ReadHint) -> Hint {
    match (level, hint) {
        (1.., _) => Hint::Index,
        (0, ReadHint::Point) => Hint::Lookup,
        // A leaf that an apply replaces, or a scan passes, is not needed again soon.
        (0, ReadHint::Scan | ReadHint::Apply) => Hint::Scan,
    }
}

impl PageSource for PoolPages<'_> {
    type Page = PoolPage;

    #[inline]
    fn cached(&self, page: PageRef, level: u8, hint: ReadHint) -> Option<PoolPage> {
        if injected(Bug::ParentNotAsked) {
            return None;
        }
        let unit = Unit::page(page.block, page.crc);
        self.pool.get_hinted(&unit, hint_of(level, hint)).map(PoolPage::Pinned)
    }

    async fn page(&self, page: PageRef, level: u8, hint: ReadHint) -> Result<PoolPage> {
        // A parent with a correct checksum can still name such a page, because of a bug or a forged page. That is damage, not a failure of
        // the device.
        if page.block >= self.pool.device().blocks() {
            let what = format!("a page of level {level} is after the end of the device");
            return Err(Error::Corrupt { what, block: page.block });
        }
        let mut unit = Unit::page(page.block, page.crc);
        if injected(Bug::ParentNotAsked) {
            let bytes = self.pool.device().read(page.block, IoBuf::unfilled(1)).await.ok()?;
            unit = Unit::page(page.block, shoal_base::codec::Reader::new(&bytes).u32().unwrap_or_default());
        }
        // A scan must not look pages up as a lookup does: scanned pages would seem wanted, and prefetched ones would be evicted first.
        if let Some(page) = self.cached(page, level, hint) {
            return Ok(page);
        }
        let found = self.read(unit, level, hint).await;
        found.map_err(|error| match error {
            PoolError::Corrupt { block, .. } => {
                Error::Corrupt { what: format!("a page of level {level} of an index tree"), block }
            }
            PoolError::Device(error) if self.gives_up && is_of_medium(&error) => {
                Error::Corrupt { what: format!("a page of level {level} ({error})"), block: page.block }
            }
            error => pool_error(error),
        })
    }

    #[inline]
    fn prefetch(&self, pages: &[PageRef], level: u8, hint: ReadHint) {
        let units = pages.iter().map(|page| Unit::page(page.block, page.crc));
        let units: Vec<Unit> = units.filter(|unit| self.remembered(unit).is_none()).collect();
        self.pool.prefetch(&units, hint_of(level, hint));
    }

    fn ahead_max(&self) -> usize {
        // The previous batch may be half read when the next one is prefetched.
        (self.pool.scan_frames_max() / 2).clamp(1, self.depth())
    }
}

/// A page sink that writes through the pool.
pub struct PoolSink<'a> {
    space: &'a SpaceManager,
    counters: &'a OperationCounters,
    writer: Writer,
    /// The rest of the run in which pages are placed.
    rest: Option<Run>,
    /// The place in the pool of leaves that replace none.
    new_leaves: Keep,
    pages: PageBlocks<'a>,
}

/// The blocks that an apply took and freed for pages. If this is dropped before it is [kept](Self::keep), the taken blocks are free again:
/// the apply failed, and no superblock names them.
pub struct PageBlocks<'a> {
    space: &'a SpaceManager,
    /// Blocks of the pages that were written.
    pub taken: Vec<Run>,
    /// Blocks of the pages that were replaced.
    pub freed: Vec<Run>,
    kept: bool,
}

impl PageBlocks<'_> {
    /// Keeps the taken blocks: a superblock names them now.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for PageBlocks<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.space.give_back(&self.taken);
        }
    }
}

impl<'a> PoolSink<'a> {
    /// At most `in_flight_bytes_max` bytes of pages are in flight.
    pub(crate) fn new(
        pool: &Pool,
        space: &'a SpaceManager,
        counters: &'a OperationCounters,
        in_flight_bytes_max: usize,
    ) -> Self {
        Self {
            space,
            counters,
            writer: pool.writer(WriterOptions { in_flight_bytes_max, ..WriterOptions::default() }),
            rest: None,
            new_leaves: Keep::Free,
            pages: PageBlocks { space, taken: Vec::new(), freed: Vec::new(), kept: false },
        }
    }

    /// The same for the pages of a layer: its leaves replace none and hold the newest records, so they stay in the pool like scanned pages.
    pub(crate) fn of_layer(self) -> Self {
        Self { new_leaves: Keep::Resident(Hint::Scan), ..self }
    }

    fn next_block(&mut self) -> Result<u64> {
        if self.rest.is_none() {
            self.rest = self.space.allocate_for_pages(PAGE_RUN_BLOCKS);
        }
        let Some(run) = self.rest else {
            return Err(Error::full(1, 0));
        };
        self.rest = (run.blocks > 1).then(|| Run::new(run.block + 1, run.blocks - 1));
        match self.pages.taken.last_mut() {
            Some(last) if last.end() == run.block => last.blocks += 1,
            _ => self.pages.taken.push(Run::new(run.block, 1)),
        }
        Ok(run.block)
    }

    /// Waits until every page is on the device (not flushed). Returns the taken and freed blocks.
    ///
    /// # Errors
    /// As the device. The taken blocks then stay unused, because their contents are unknown (R8); those of writes without room are free
    /// again.
    pub async fn finish(mut self) -> Result<PageBlocks<'a>> {
        if let Some(rest) = self.rest.take() {
            self.space.give_back(&[rest]);
        }
        let finished = self.writer.finish().await.map_err(pool_error);
        self.pages.kept |= finished.as_ref().is_err_and(|error| !matches!(error, Error::NoRoom(_)));
        finished.map(|()| self.pages)
    }
}

impl PageSink for PoolSink<'_> {
    async fn write(&mut self, draft: &mut Draft, replaces: Option<PageRef>) -> Result<PageRef> {
        let block = self.next_block()?;
        // A forged page can name a child in a free block: a published page is never overwritten (R6).
        if replaces.is_some_and(|old| old.block == block) {
            let what = format!("a page of level {} of an index tree is in a free block", draft.level());
            return Err(Error::Corrupt { what, block });
        }
        let (page, bytes) = draft.seal(block);
        let mut frame = self.writer.page().await.map_err(pool_error)?;
        frame.copy_from_slice(bytes);
        // A new page inherits the place of the page that it replaces, otherwise each apply would empty the hot cache.
        let keep = match replaces {
            Some(old) => Keep::Inherit(Unit::page(old.block, old.crc).id),
            // A growing tree gets a root that replaces nothing, and the next lookup of any key needs it.
            None if draft.level() > 0 => Keep::Resident(Hint::Index),
            None => self.new_leaves,
        };
        self.writer.write(frame, Unit::page(page.block, page.crc).id, keep).await.map_err(pool_error)?;
        // Counted one by one: the file grows ahead by the rate of this counter, and a compaction may take seconds.
        OperationCounters::add(&self.counters.pages_written, 1);
        Ok(page)
    }

    fn release(&mut self, page: PageRef) {
        self.pages.freed.push(Run::new(page.block, 1));
    }
}
