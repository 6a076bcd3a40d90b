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
    pub(crate) async fn fill_holes(&self, blocks: u64) -> u64 {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_device::Device;
    use shoal_device_sim::{Image, SimDevice, SimOptions};

    use crate::testing::fixtures::{environment, key, open_in, options, put};
    use crate::{FormatOptions, Store, block_on};

    /// Symptom: a store whose file system had room again kept reporting that its file could not grow. Cause: it had enough free blocks, so
    /// it did not try to grow. Fix: a file that could not grow is tried again until it can.
    #[test]
    fn room_is_noticed_although_enough_is_free() {
        let options_of_file =
            SimOptions { growable: true, allocates: true, room: Some(1 << 20), ..SimOptions::default() };
        let sim = SimDevice::with_options(Image::new(1), options_of_file);
        let device = Device::new(Arc::clone(&sim) as _);
        let format = FormatOptions { initial_blocks: Some(0), ..FormatOptions::for_blocks(1 << 16) };
        block_on(Store::format(&device, &format, &environment())).unwrap();
        let store = open_in(&device, options(), environment());
        put(&store, &key(1), vec![1; 30]);
        let checkpointer = &store.0.checkpointer;
        assert!(block_on(checkpointer.grow(4_096)).unwrap() > 0);
        sim.set_room(0);
        while block_on(checkpointer.grow(0)).unwrap() > 0 {}
        assert!(store.stat().cannot_grow.is_some());
        sim.set_room(1 << 20);
        assert!(checkpointer.space.available() >= checkpointer.growth_ahead() && checkpointer.wants_growth());
        block_on(checkpointer.grow_unless_freed()).unwrap();
        assert!(store.stat().cannot_grow.is_none() && !checkpointer.wants_growth());
    }
}
