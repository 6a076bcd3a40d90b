//! Checks if values find room in the data file again.
//!
//! A file can have room for the log and none for free blocks: they are holes, or copies on write. Then values are refused, and a store with
//! all writes blocked is not ready. A store that is not ready may get no writes, so it retries by itself.

use shoal_device::IoBuf;
use shoal_device::memory::Guarded;

use crate::store::Inner;

/// Limit on the blocks of one try; otherwise the size of the write that found no room.
const TRIED_BLOCKS_MAX: u64 = 256;

impl Inner {
    /// Writes zeros at the place of the next value, if the last value found no room there. The blocks stay free.
    pub(crate) async fn try_room_of_values(&self) {
        let room = &self.log.committer.room;
        let Some(blocks) = room.lacking_blocks() else { return };
        // Without free blocks the store is full, regardless of the room in the file system.
        let claimed = self.space.claim_value(0, blocks.min(TRIED_BLOCKS_MAX), 0);
        let Ok((extents, _)) = claimed else { return };
        for run in extents.runs() {
            let zeros = Guarded { memory: IoBuf::new(run.blocks as usize), guard: extents.clone() };
            if let Err(error) = self.device.write(run.block, zeros).await.ok() {
                if !error.is_no_room() {
                    // As after a failed write of a value: nothing names this place, which stays unused.
                    extents.keep();
                }
                return;
            }
        }
        room.value_written();
    }
}
