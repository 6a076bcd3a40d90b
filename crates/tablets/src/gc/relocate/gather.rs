//! Rounds that only return space: in a quiet store whose free blocks are scattered, the emptiest windows of 1 MiB are emptied, because the
//! file returns long free runs only (`docs/adr/2026-11-29-quiet-stores-give-back.md`).
//!
//! After a look for holes the free blocks are compared with those that the round before left. Dead entries are compacted first; then the
//! windows are chosen ([`SpaceManager::scattered`](shoal_space_manager::SpaceManager::scattered)) and their groups closed, and the walk of
//! all rounds empties them. Everything that moves goes to short free runs, which have their room, and values that need a longer one stay.
//! So a round takes no room, except for a step's pages and values, and ends with fewer blocks in short runs.
//!
//! It terminates: a round starts only if more blocks can be gained than the last one left, by a fraction of the used ones. A store without
//! deletes, applies and compactions has no more, and so at most one round. A round ends when the store is not quiet any more, and none starts
//! soon after the file system refused room.

use std::sync::Arc;

use shoal_base::Run;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shoal_common::error::Result;
use shoal_space_manager::Scattered;

use super::{AVOID_NS, Relocator, Round};

/// A round gains at least this fraction of the used blocks.
const GAINED_SHARE: u64 = 64;
/// A round gains at least this number of blocks, 1 MiB.
const GAINED_MIN: u64 = 256;
/// Comparing free blocks takes at most one part in this number of the time: a large store with many free runs takes a second.
const COMPARED_SHARE: u64 = 50;
/// After the file system refused room, no round starts for this time.
const REFUSED_NS: u64 = 600_000_000_000;

/// The state of these rounds.
#[derive(Default)]
pub(crate) struct Gathering {
    /// True if there was a look for holes since free blocks were last compared.
    pub is_due: AtomicBool,
    /// True if they could not be compared then, because the store was not quiet, was refused room, or is compacted: the looks continue.
    pub waits: AtomicBool,
    /// True if the last round is over and its rest was not counted yet.
    counts_rest: AtomicBool,
    /// The blocks that the last round left although they could be gained.
    rest_blocks: AtomicU64,
    /// An interrupted round is not repeated before this time, nor are free blocks compared.
    not_before_ns: AtomicU64,
    /// The windows of the round; `None` if it is no such round.
    windows: Mutex<Option<Arc<[Run]>>>,
}

impl Gathering {
    /// The windows of the round, in ascending order; `None` if it empties whole groups for the reserve.
    pub(crate) fn windows(&self) -> Option<Arc<[Run]>> {
        self.windows.lock().clone()
    }

    /// Notes that the round ends early.
    pub(crate) fn interrupted(&self, now_ns: u64) {
        self.not_before_ns.store(now_ns.saturating_add(AVOID_NS), Ordering::Relaxed);
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Notes the end of a round. Returns true if it was one of these.
    pub(crate) fn ended(&self) -> bool {
        let was_one = self.windows.lock().take().is_some();
        if was_one && !self.waits.load(Ordering::Relaxed) {
            self.counts_rest.store(true, Ordering::Relaxed);
        }
        was_one
    }
}

impl Relocator {
    /// Returns true if little is written and the file system has not refused room recently.
    pub(crate) fn may_gather(&self) -> bool {
        let checkpointer = &self.checkpointer;
        checkpointer.quiet.is_quiet()
            && !checkpointer.growth.was_reached(checkpointer.now_ns(), REFUSED_NS)
            && checkpointer.log.committer.room.reason_of_any().is_none()
    }

    /// Starts a round if free blocks are to be compared.
    pub(crate) fn begin_gathering(&self) -> Option<Round> {
        let gathering = &self.gathering;
        if !self.gives_back()
            || self.space.holes().is_any_new()
            || !gathering.is_due.swap(false, Ordering::Relaxed)
        {
            return None;
        }
        let is_early = self.checkpointer.now_ns() < gathering.not_before_ns.load(Ordering::Relaxed);
        let begins = !is_early && self.may_gather();
        gathering.waits.store(!begins, Ordering::Relaxed);
        begins.then_some(Round::Compact)
    }

    /// Compacts dead entries, a step at a time; then closes the groups with the windows to be emptied, if they are worth a round.
    pub(crate) async fn prepare_gathering(&self) -> Result<Option<Round>> {
        let is_compacted = self.may_gather() && self.checkpointer.compact_idle().await?;
        if is_compacted {
            return Ok(Some(Round::Compact));
        }
        if !self.may_gather() || self.checkpointer.wants_compaction() {
            self.gathering.waits.store(true, Ordering::Relaxed);
            return Ok(None);
        }
        let began_ns = self.checkpointer.now_ns();
        // Free blocks that can become holes as they are need no round. They are punched before the others are compared.
        if self.make_holes(None).await > 0 {
            self.gathering.is_due.store(true, Ordering::Relaxed);
            return Ok(None);
        }
        if !self.is_worth(&self.scattered().await) {
            let now_ns = self.checkpointer.now_ns();
            let rest_ns = now_ns.saturating_sub(began_ns).saturating_mul(COMPARED_SHARE);
            self.gathering.not_before_ns.store(now_ns.saturating_add(rest_ns), Ordering::Relaxed);
            return Ok(None);
        }
        // Values in the memtables already have their places: the walk must meet them in the trees.
        self.checkpointer.free_what_is_dead().await?;
        let chosen = self.scattered().await;
        if !self.is_worth(&chosen)
            || !self.space.closed.close_scattered(self.space.allocator(), &chosen.groups)
        {
            return Ok(None);
        }
        let Scattered { groups, windows, gained_blocks, moved_blocks } = chosen;
        assert!(windows.is_sorted_by(|one, next| one.end() <= next.block), "windows are in order and apart");
        tracing::debug!(
            "{gained_blocks} free blocks in {} groups are gathered by moving {moved_blocks}",
            groups.len()
        );
        *self.gathering.windows.lock() = Some(windows.into());
        Ok(Some(Round::Walk { tablet: 0, position: Vec::new() }))
    }

    /// The windows that a round should empty: as many blocks as may become holes.
    async fn scattered(&self) -> Scattered {
        let except = self.blocks_of_no_value(1).await;
        self.space.scattered(&except, self.spare_blocks())
    }

    /// Makes the blocks that steps of the round freed reusable if they are many: the pages of later steps need them.
    pub(crate) async fn reclaim_moved(&self) {
        if self.gathering.windows().is_some()
            && self.space.pending_blocks() > self.checkpointer.growth_ahead() / 2
        {
            self.checkpointer.make_freed_reusable().await;
        }
    }

    /// Returns true if `chosen` gains enough more than the last round left.
    fn is_worth(&self, chosen: &Scattered) -> bool {
        let gathering = &self.gathering;
        let gained = chosen.gained_blocks;
        let rest = match gathering.counts_rest.swap(false, Ordering::Relaxed) {
            true => gained,
            false => gathering.rest_blocks.load(Ordering::Relaxed).min(gained),
        };
        gathering.rest_blocks.store(rest, Ordering::Relaxed);
        let free = self.space.allocator().free_blocks() + self.space.holes().blocks();
        let used = self.space.data_blocks().saturating_sub(free);
        gained >= rest + (used / GAINED_SHARE).max(GAINED_MIN)
    }
}
