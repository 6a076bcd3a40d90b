//! Fills holes: takes the room of blocks that were returned, and makes them free blocks of the allocator again.
//!
//! If another program has taken the room meanwhile, a hole stays a hole: a write that needs it is refused as full, like one that needs a
//! longer file. No write ever meets a hole, so none fails within the file for room that the store released.

use shoal_common::error::no_room;
use shoal_common::injected_bug::{Bug, injected};
use shoal_space_manager::Hole;

use crate::checkpoint::checkpointer::Checkpointer;

impl Checkpointer {
    /// Fills holes of `blocks` blocks, the lowest first. Returns the number of blocks, which is smaller if there are fewer, or no room.
    pub async fn fill_holes(&self, blocks: u64) -> u64 {
        let _turn = self.grower.take().await;
        self.fill_some(blocks).0
    }

    /// As [`fill_holes`](Self::fill_holes), for the caller that grows the file; also returns the reason why there is no room.
    pub(crate) fn fill_some(&self, blocks: u64) -> (u64, Option<String>) {
        let mut filled = 0;
        while filled < blocks {
            let Some(hole) = self.space.holes().take_lowest(blocks - filled) else { break };
            if let Some(why) = self.no_room_for(hole) {
                // A part of it may have room now.
                self.space.holes().put_back(Hole { is_punched: false, ..hole });
                return (filled, Some(why));
            }
            filled += u64::from(hole.run.blocks);
            self.space.fill_hole(hole);
        }
        if filled > 0 {
            self.log.committer.moved.notify();
        }
        (filled, None)
    }

    /// Takes the room of a hole; returns the reason if there is none.
    fn no_room_for(&self, hole: Hole) -> Option<String> {
        if injected(Bug::HoleWithoutRoom) {
            return None;
        }
        let error = self.device.inner().hold_room(hole.run.block..hole.run.end()).err()?;
        Some(no_room(error.raw_os_error(), &error))
    }
}
