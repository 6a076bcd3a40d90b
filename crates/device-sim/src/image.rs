//! The contents of a simulated device: a shared base and the blocks that differ from it.
//!
//! Copying an image costs only its list of differences, not its contents, so thousands of crash states a second can be made from one base.
//! Blocks that were never written are zeros and take no memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use shoal_base::BLOCK_BYTES;

/// The bytes of one block.
pub type Block = [u8; BLOCK_BYTES];

static ZEROS: Block = [0; BLOCK_BYTES];

/// The contents of a whole device. Cheap to clone; see the module.
#[derive(Clone)]
pub struct Image {
    /// By block; shorter than the device if the rest is zeros.
    base: Arc<Vec<Option<Arc<Block>>>>,
    changed: BTreeMap<u64, Arc<Block>>,
    blocks: u64,
}

impl Image {
    /// `blocks` blocks of zeros.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Self { base: Arc::default(), changed: BTreeMap::new(), blocks }
    }

    /// The image that holds `bytes`, the rest of the last block zero.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut image = Self::new(bytes.len().div_ceil(BLOCK_BYTES) as u64);
        for (number, chunk) in bytes.chunks(BLOCK_BYTES).enumerate() {
            if chunk.iter().any(|&byte| byte != 0) {
                let mut block = ZEROS;
                block[..chunk.len()].copy_from_slice(chunk);
                image.write(number as u64, &block);
            }
        }
        image.settle();
        image
    }

    /// All bytes, in order.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        (0..self.blocks).flat_map(|block| *self.block(block)).collect()
    }

    /// Size in blocks.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The bytes of block `block`; zeros past the end.
    #[must_use]
    pub fn block(&self, block: u64) -> &Block {
        self.shared(block).map_or(&ZEROS, |block| block.as_ref())
    }

    /// Replaces block `block`, which must be within the device.
    pub fn write(&mut self, block: u64, bytes: &Block) {
        self.put(block, Arc::new(*bytes));
    }

    /// Flips the bits of `mask` in byte `byte` of block `block`.
    pub fn flip(&mut self, block: u64, byte: usize, mask: u8) {
        let mut bytes = *self.block(block);
        bytes[byte] ^= mask;
        self.write(block, &bytes);
    }

    /// The blocks that differ between two images (the longer one's end included).
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<u64> {
        let blocks = 0..self.blocks.max(other.blocks);
        let are_one = |block| match (self.shared(block), other.shared(block)) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (one, two) => one.is_none() && two.is_none(),
        };
        blocks.filter(|&block| !are_one(block) && self.block(block) != other.block(block)).collect()
    }

    pub(crate) fn shared(&self, block: u64) -> Option<&Arc<Block>> {
        let base = || self.base.get(usize::try_from(block).ok()?)?.as_ref();
        self.changed.get(&block).or_else(base)
    }

    /// The blocks that were written, some of them twice.
    pub(crate) fn written(&self) -> impl Iterator<Item = u64> {
        let base = (0..).zip(self.base.iter()).filter(|(_, block)| block.is_some());
        base.map(|(number, _)| number).chain(self.changed.keys().copied())
    }

    pub(crate) fn put(&mut self, block: u64, bytes: Arc<Block>) {
        assert!(block < self.blocks, "block {block} is after the end of an image of {} blocks", self.blocks);
        self.changed.insert(block, bytes);
    }

    /// Moves the differences into the base, so that clones are cheap again.
    pub(crate) fn settle(&mut self) {
        let Some((&last, _)) = self.changed.last_key_value() else { return };
        let base = Arc::make_mut(&mut self.base);
        let length = usize::try_from(last).unwrap_or(usize::MAX).saturating_add(1);
        if base.len() < length {
            base.resize(length, None);
        }
        for (block, bytes) in std::mem::take(&mut self.changed) {
            base[block as usize] = Some(bytes);
        }
    }

    /// Changes the size; the blocks that a shorter image cuts off are gone.
    pub(crate) fn resize(&mut self, blocks: u64) {
        if blocks < self.blocks {
            self.changed.split_off(&blocks);
            let keep = usize::try_from(blocks).unwrap_or(usize::MAX);
            if self.base.len() > keep {
                Arc::make_mut(&mut self.base).truncate(keep);
            }
        }
        self.blocks = blocks;
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        self.blocks == other.blocks && self.differences(other).is_empty()
    }
}

impl Eq for Image {}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("blocks", &self.blocks)
            .field("changed", &self.changed.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_and_differ() {
        let mut first = Image::from_bytes(&[7; 3 * BLOCK_BYTES - 100]);
        assert_eq!(first.blocks(), 3);
        let second = first.clone();
        first.flip(1, 5, 0x80);
        assert_eq!((first.block(1)[5], second.block(1)[5]), (0x87, 7));
        assert_eq!(first.differences(&second), [1]);
        first.settle();
        assert_eq!((first.block(1)[5], second.block(1)[5]), (0x87, 7));
        assert_eq!(second.to_bytes()[3 * BLOCK_BYTES - 101..][..2], [7, 0]);
        assert!(first != second);
    }

    #[test]
    fn growth_is_zeros_and_shrinking_forgets() {
        let mut image = Image::from_bytes(&[7; 2 * BLOCK_BYTES]);
        image.resize(1);
        image.resize(3);
        assert_eq!(image.block(0)[0], 7);
        assert_eq!((image.block(1)[0], image.block(2)[0], image.block(9)[0]), (0, 0, 0));
    }
}
