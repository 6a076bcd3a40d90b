//! [`SlotWatch`]: finds superblocks of another opening on a device that two machines can open.

use shoal_base::BLOCK_BYTES;
use shoal_base::sync::Mutex;
use shoal_base::task::Boxed;
use shoal_common::error::Result;
use shoal_device::{Device, IoBuf};
use shoal_log::DeviceWatch;

use crate::layout::SUPERBLOCK_COPIES;
use crate::superblock::{Superblock, SuperblockHead};

/// Superblocks of this opening that a slot may hold: the newest of each slot, and the one before it while that is being overwritten.
const KEPT: usize = 4;
/// One read has the copies of both slots.
const _: () = assert!(SUPERBLOCK_COPIES[0][0] + 1 == SUPERBLOCK_COPIES[1][0]);
const _: () = assert!(SUPERBLOCK_COPIES[0][1] + 1 == SUPERBLOCK_COPIES[1][1]);

/// The superblocks of one opening, and the device that should have no others.
///
/// A publish calls [`note`](Self::note) before it writes. A look may run beside publishes: a slot then has the superblock before, the one
/// that is written, or a torn one, which proves nothing.
pub struct SlotWatch {
    device: Device,
    identity: [u8; 16],
    epoch: u64,
    /// The number of this opening's first superblock.
    first: u64,
    own: Mutex<OwnSuperblocks>,
}

/// The numbers and checksums of the newest superblocks of this opening, the newest first.
#[derive(Clone, Copy, Default)]
struct OwnSuperblocks([Option<(u64, u32)>; KEPT]);

impl OwnSuperblocks {
    fn numbers(&self) -> impl Iterator<Item = u64> {
        self.0.into_iter().flatten().map(|(number, _)| number)
    }

    fn has(&self, head: &SuperblockHead) -> bool {
        self.0.contains(&Some((head.number, head.crc)))
    }

    fn add(&mut self, number: u64, crc: u32) {
        // A superblock that found no room is on no slot, and its number is used again.
        if self.0[0].is_none_or(|(newest, _)| newest < number) {
            self.0.rotate_right(1);
        }
        self.0[0] = Some((number, crc));
    }
}

impl SlotWatch {
    /// The watch of an opening with `superblock`, which is on the device if `is_written` is set. Else the next one is its first.
    pub fn new(device: Device, superblock: &Superblock, is_written: bool) -> Self {
        let first = superblock.number + u64::from(!is_written);
        let (identity, epoch) = (superblock.identity, superblock.epoch);
        let watch = Self { device, identity, epoch, first, own: Mutex::default() };
        if is_written {
            watch.note(superblock);
        }
        watch
    }

    /// Notes a superblock that this opening writes next.
    pub fn note(&self, superblock: &Superblock) {
        let head = SuperblockHead::of(&superblock.encode());
        let head = head.expect("an encoded superblock is whole");
        assert!(head.number >= self.first && head.epoch == self.epoch, "a superblock of this opening (R45)");
        self.own.lock().add(head.number, head.crc);
    }

    async fn find_other(&self) -> Result<Option<String>> {
        let before = *self.own.lock();
        let slots = match self.read_both(0).await {
            Ok(slots) => slots,
            Err(_) => self.read_both(1).await?,
        };
        let mut heads = [None, None];
        for (slot, block) in slots.chunks(BLOCK_BYTES).enumerate() {
            heads[slot] = SuperblockHead::of(block);
            if heads[slot].is_none()
                && let Ok(second) =
                    self.device.read(SUPERBLOCK_COPIES[slot][1], IoBuf::unfilled(1)).await.ok()
            {
                heads[slot] = SuperblockHead::of(&second);
            }
        }
        let after = *self.own.lock();
        let others = heads.into_iter().flatten().filter(|head| !self.is_own(head, (&before, &after)));
        let other = others.max_by_key(|head| head.number);
        Ok(other.map(|head| self.words(&head, &after)))
    }

    /// The copies of both slots: the first ones, or the second ones.
    async fn read_both(&self, copy: usize) -> Result<IoBuf> {
        Ok(self.device.read(SUPERBLOCK_COPIES[0][copy], IoBuf::unfilled(2)).await.ok()?)
    }

    /// Returns true if the superblock is one of this opening, or one that it found. `before` and `after` are those of this opening before
    /// and after the read.
    fn is_own(&self, head: &SuperblockHead, (before, after): (&OwnSuperblocks, &OwnSuperblocks)) -> bool {
        if head.identity != self.identity {
            return false;
        }
        let was_found = head.number < self.first && head.epoch <= self.epoch;
        // Several publishes during one slow read: the checksum of this one is forgotten. The next look has others.
        let is_between = || {
            head.epoch == self.epoch
                && before.numbers().all(|number| number < head.number)
                && after.numbers().all(|number| number > head.number)
        };
        was_found || before.has(head) || after.has(head) || is_between()
    }

    fn words(&self, head: &SuperblockHead, own: &OwnSuperblocks) -> String {
        let path = self.device.inner().path();
        let what = path.map_or_else(|| "the device".to_owned(), |path| path.display().to_string());
        if head.identity != self.identity {
            return format!(
                "{what} holds another store now than the one that was opened: it was replaced in place"
            );
        }
        let newest = own.numbers().next().unwrap_or(self.first);
        let version = if head.is_known { "" } else { ", of a newer version of shoal," };
        format!(
            "another server{version} opened {what}: superblock {} of opening {} is on it, and this server, opening {}, wrote {newest} last. \
             Nothing more is acknowledged here, but the last batch may have overwritten writes of the other server. Stop this server, take \
             the device from its machine, and look with `shoal check` when the other server is stopped",
            head.number, head.epoch, self.epoch
        )
    }
}

impl DeviceWatch for SlotWatch {
    fn look(&self) -> Boxed<'_, Result<Option<String>>> {
        Box::pin(self.find_other())
    }
}

#[cfg(test)]
#[path = "slot_watch_tests.rs"]
mod tests;
