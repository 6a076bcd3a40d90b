//! A tablet's record in the superblock: its slots, its trees, and their totals.

use std::ops::Range;

use shoal_base::codec::{Reader, Truncated};
use shoal_base::{BLOCK_BYTES, Lsn};
use shoal_common::key::slot_of_encoded;
use shoal_common::options::TABLETS_MAX;
use shoal_log::format::COUNTER_MAX;
use shoal_space::SPACE_BLOCKS_MAX;
use shoal_tree::layers::LayersRef;
use shoal_tree::{ENTRIES_MAX, PageRef, Root};
use shoal_value::packed::Totals;

use crate::superblock::fields;

/// Bytes of a record.
pub(crate) const TABLET_BYTES: usize = 96;
/// Offset in a record of the place of the list of its layers.
const LAYERS_OFFSET: usize = 80;

/// A tablet as published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TabletRecord {
    /// The first slot of keys that it owns.
    pub slot_first: u16,
    /// The last one.
    pub slot_last: u16,
    /// The root of the base.
    pub root: Root,
    /// The tree holds all records up to this one.
    pub applied: Lsn,
    /// The totals of all trees.
    pub totals: Totals,
    /// The reference to the list of its layers, if it has any.
    pub layers: Option<LayersRef>,
}

impl TabletRecord {
    /// Returns true if an object of this encoded name belongs to the tablet (R14).
    #[inline]
    pub fn owns(&self, encoded: &[u8]) -> bool {
        (self.slot_first..=self.slot_last).contains(&slot_of_encoded(encoded))
    }

    /// Returns true if the root is in `usable` blocks and sums of the totals cannot overflow.
    pub(crate) fn is_sensible(&self, usable: &Range<u64>) -> bool {
        let Totals { runs, packed_blocks, packed_live_bytes, value_bytes, expiring } = self.totals;
        let expiring = expiring.unwrap_or_default();
        let lists = |stored: LayersRef| {
            let end = stored.block.checked_add(u64::from(stored.copies));
            stored.copies > 0 && usable.contains(&stored.block) && end.is_some_and(|end| end <= usable.end)
        };
        self.root.page.is_none_or(|page| usable.contains(&page.block))
            && self.layers.is_none_or(lists)
            && runs.max(packed_blocks) <= SPACE_BLOCKS_MAX
            && packed_live_bytes <= SPACE_BLOCKS_MAX * BLOCK_BYTES as u64
            && self.root.entries.max(expiring) <= ENTRIES_MAX
            && value_bytes <= COUNTER_MAX / TABLETS_MAX as u64
            && self.applied.0 <= COUNTER_MAX
    }

    /// The bytes of the record, as the superblock has them.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(TABLET_BYTES);
        bytes.extend_from_slice(&self.slot_first.to_le_bytes());
        bytes.extend_from_slice(&self.slot_last.to_le_bytes());
        bytes.push(self.root.height);
        bytes.push(u8::from(self.root.page.is_some()));
        bytes.extend_from_slice(&[0; 2]);
        let page = self.root.page.unwrap_or(PageRef { block: 0, crc: 0 });
        bytes.extend_from_slice(&page.block.to_le_bytes());
        bytes.extend_from_slice(&page.crc.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.root.entries.to_le_bytes());
        bytes.extend_from_slice(&self.applied.0.to_le_bytes());
        let Totals { runs, packed_blocks, packed_live_bytes, value_bytes, expiring } = self.totals;
        let expiring = expiring.map_or(0, |count| count + 1);
        for field in [runs, packed_blocks, packed_live_bytes, value_bytes, expiring] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        assert_eq!(bytes.len(), LAYERS_OFFSET, "the record of a tablet without layers ends here");
        if let Some(LayersRef { block, crc, copies }) = self.layers {
            bytes.extend_from_slice(&block.to_le_bytes());
            bytes.extend_from_slice(&crc.to_le_bytes());
            bytes.extend_from_slice(&copies.to_le_bytes());
        }
        bytes
    }

    /// The reverse of [`encode`](Self::encode).
    ///
    /// # Errors
    /// [`Truncated`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let (slot_first, slot_last) = (reader.u16()?, reader.u16()?);
        let (height, some) = (reader.u8()?, reader.u8()?);
        reader.bytes(2)?;
        let page = PageRef { block: reader.u64()?, crc: reader.u32()? };
        reader.bytes(4)?;
        let root = Root { page: (some == 1).then_some(page), height, entries: reader.u64()? };
        let applied = Lsn(reader.u64()?);
        let [runs, packed_blocks, packed_live_bytes, value_bytes, expiring] = fields(&mut reader)?;
        let expiring = expiring.checked_sub(1);
        let totals = Totals { runs, packed_blocks, packed_live_bytes, value_bytes, expiring };
        let (block, crc, copies) = (reader.u64()?, reader.u32()?, reader.u16()?);
        let layers = (block > 0).then_some(LayersRef { block, crc, copies });
        Ok(Self { slot_first, slot_last, root, applied, totals, layers })
    }
}
