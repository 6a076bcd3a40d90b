//! Releases free blocks on the device (`OpenOptions::discard`): a file gets holes, and a raw device learns which blocks are unused.
//!
//! A *look*, every [`LOOK_NS`], makes holes of the long free runs in which no block was freed since the look before. It leaves one and a
//! half times the growth ahead of need free: a busy store does not release blocks and take them again in turns. Then the device punches
//! one hole at a time, and none while commits are queued. Blocks of a hole are no free blocks of the allocator: growth fills holes
//! (`growth/fill.rs`).
//!
//! Only blocks that may be allocated become holes (R9: no published or recoverable state refers to them), so their contents may be lost.

use std::time::Duration;

use shoal_base::BLOCK_BYTES_U64;
use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shoal_space_manager::{Hole, Touched};

use super::{Progress, Relocator};

/// Time between two looks: blocks are returned if they have been free for one to two such times.
const LOOK_NS: u64 = 5_000_000_000;
/// Holes wait this long while commits are queued.
const BESIDE_COMMITS: Duration = Duration::from_millis(100);

/// The state of releasing blocks.
#[derive(Default)]
pub(crate) struct Giving {
    /// The time of the next look.
    look_ns: AtomicU64,
    /// True if the next look may find something although nothing was freed: the last one passed by recent frees, or found the growth ahead
    /// of need too large.
    looks_again: AtomicBool,
    /// True if the next look includes recent frees and short runs beside holes.
    takes_all: AtomicBool,
    /// True after the device failed to punch.
    has_failed: AtomicBool,
}

impl Giving {
    /// Makes the next look due now, and includes recent frees and short runs beside holes in it.
    pub(crate) fn look_at_all(&self) {
        self.takes_all.store(true, Ordering::Relaxed);
        self.looks_again.store(true, Ordering::Relaxed);
        self.look_ns.store(0, Ordering::Relaxed);
    }
}

impl Relocator {
    pub(crate) fn gives_back(&self) -> bool {
        self.checkpointer.move_limits.discards && !self.giving.has_failed.load(Ordering::Relaxed)
    }

    /// Punches the next hole, or looks for new ones if it is time.
    pub async fn discard_some(&self) -> Progress {
        if !self.gives_back() || self.checkpointer.log.committer.has_work() {
            return Progress::Idle;
        }
        if let Some(hole) = self.space.holes().take_not_punched() {
            self.punch(hole).await;
            return Progress::Worked;
        }
        let now_ns = self.checkpointer.now_ns();
        if now_ns < self.giving.look_ns.load(Ordering::Relaxed) || !self.wants_look() {
            return Progress::Idle;
        }
        self.giving.look_ns.store(now_ns.saturating_add(LOOK_NS), Ordering::Relaxed);
        self.look_for_holes().await
    }

    /// The time until there may be more to release; `None` if that needs an event.
    pub fn next_discard_in(&self) -> Option<Duration> {
        if !self.gives_back() {
            return None;
        }
        if self.space.holes().is_any_new() {
            return Some(BESIDE_COMMITS);
        }
        let rest_ns = self.giving.look_ns.load(Ordering::Relaxed).saturating_sub(self.checkpointer.now_ns());
        self.wants_look().then(|| Duration::from_nanos(rest_ns).max(BESIDE_COMMITS))
    }

    fn wants_look(&self) -> bool {
        self.space.holes().is_touched()
            || self.giving.looks_again.load(Ordering::Relaxed)
            || self.gathering.waits.load(Ordering::Relaxed)
    }

    /// Free blocks beyond those that stay free: one and a half times the growth ahead of need.
    pub(crate) fn spare_blocks(&self) -> u64 {
        let ahead = self.checkpointer.growth_ahead();
        self.space.available().saturating_sub(ahead + ahead / 2)
    }

    /// Turns long free runs into holes.
    async fn look_for_holes(&self) -> Progress {
        let holes = self.space.holes();
        let was_touched = holes.is_touched();
        let touched = holes.look();
        let takes_all = self.giving.takes_all.swap(false, Ordering::Relaxed);
        self.make_holes(Some(&touched).filter(|_| !takes_all)).await;
        self.gathering.is_due.store(true, Ordering::Relaxed);
        self.giving.looks_again.store(was_touched || !self.checkpointer.growth.is_calm(), Ordering::Relaxed);
        // The holes are punched, or free blocks compared.
        Progress::Worked
    }

    /// Turns free runs into holes, except for the blocks that stay free. With `touched`, skips recent frees; without it, includes short runs
    /// beside holes. Returns the number of new holes.
    pub(crate) async fn make_holes(&self, touched: Option<&Touched>) -> usize {
        // Growth takes blocks ahead of need, and fills holes: not beside this.
        let _turn = self.checkpointer.grower.take().await;
        let runs = self.space.runs_for_holes(touched, self.spare_blocks());
        runs.into_iter().filter(|&run| self.space.make_hole(run)).count()
    }

    /// Has the device punch `hole`. After a failure no hole is punched until the next start; the store uses all holes as before.
    async fn punch(&self, hole: Hole) {
        let blocks = u64::from(hole.run.blocks);
        let answer = self.checkpointer.device.discard(hole.run.block, blocks).await.ok();
        self.space.holes().put_back(Hole { is_punched: true, ..hole });
        self.checkpointer.move_limits.charge(blocks * BLOCK_BYTES_U64);
        match answer {
            Ok(()) => _ = self.bytes_discarded.fetch_add(blocks * BLOCK_BYTES_U64, Ordering::Relaxed),
            Err(error) => {
                self.giving.has_failed.store(true, Ordering::Relaxed);
                tracing::warn!("free blocks are not returned to the device until the next start: {error}");
            }
        }
    }
}
