//! From values to packed runs: the choice of values to pack, and the filling of a run with a group of them, sorted by
//! key.
//!
//! Invariant (R3): a run never takes more blocks than its values would take with their own extents. Their writes
//! reserved that many blocks for the apply.

use bytes::Bytes;
use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::{BLOCK_BYTES, Lsn, Run, blocks_for};
use shoal_common::options::Tuning;
use shoal_device::IoBuf;

use super::format::{RUN_BLOCKS_MAX, RunEntry, RunOwner, TAIL_BYTES, item_bytes, put_footer, put_item};
use crate::entry::{Entry, Home};

/// A value is packed only if its own blocks would waste more than this share of its length: a packed run loses about
/// the same share to footers and dead values, and has to be counted and rewritten.
const WASTE_SHARE_MIN: usize = 32;

/// Returns true if a value of this many stored bytes goes into a packed run instead of separate extents.
#[inline]
pub fn packs(key_bytes: usize, stored: usize) -> bool {
    let waste = stored.next_multiple_of(BLOCK_BYTES) - stored;
    (1..=VALUE_UNIT_BYTES).contains(&stored)
        && waste >= item_bytes(key_bytes, stored) + (stored / WASTE_SHARE_MIN).max(TAIL_BYTES)
}

/// The longest run, in blocks, on a store that withholds `reserve` blocks from values: a few runs must fit into the
/// reserve, so that they can be rewritten when the store is full.
pub fn run_blocks_max(tuning: &Tuning, reserve: u64) -> u32 {
    let configured = (tuning.packed_run_bytes_max / BLOCK_BYTES) as u64;
    configured.min(reserve / 4).clamp(4, u64::from(RUN_BLOCKS_MAX)) as u32
}

/// A value that waits for its run.
pub struct Pending {
    /// The index of its operation in the apply.
    pub op: usize,
    /// Its entry, without the new home.
    pub entry: Entry,
    /// The key of the object.
    pub key: Bytes,
    /// The version of the object.
    pub version: Lsn,
    /// The stored bytes.
    pub stored: Bytes,
    /// Their checksum.
    pub checksum: u32,
}

impl Pending {
    fn footer_bytes(&self) -> usize {
        item_bytes(self.key.len(), self.stored.len())
    }
}

/// Values that wait for their run, in the order of their keys.
pub struct Packer {
    pending: Vec<Pending>,
    bytes: usize,
    bytes_max: usize,
}

/// A run that is filled and not written yet.
pub struct PackedRun {
    /// The bytes of the run.
    pub memory: IoBuf,
    /// Its entry in the tree.
    pub entry: RunEntry,
    /// Operation and entry, with the new home, of each value.
    pub placed: Vec<(usize, Entry)>,
}

impl Packer {
    /// A packer for runs of at most this many blocks.
    pub fn new(run_blocks_max: u32) -> Self {
        Self { pending: Vec::new(), bytes: TAIL_BYTES, bytes_max: run_blocks_max as usize * BLOCK_BYTES }
    }

    /// Returns true if the value fits after the waiting ones; otherwise they must be packed first.
    pub fn has_room_for(&self, pending: &Pending) -> bool {
        self.bytes + pending.stored.len() + pending.footer_bytes() <= self.bytes_max
    }

    /// Adds a value. Its key must be above those of the waiting values.
    pub fn push(&mut self, pending: Pending) {
        assert!(
            self.pending.last().is_none_or(|last| last.key < pending.key),
            "values are packed in order of their keys"
        );
        self.bytes += pending.stored.len() + pending.footer_bytes();
        self.pending.push(pending);
    }

    /// The number of waiting values.
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Blocks of a run of all waiting values.
    pub fn blocks(&self) -> u32 {
        blocks_for(self.bytes as u64) as u32
    }

    /// The number of waiting values, from the first on, that fit in `blocks` blocks, and the blocks that they need.
    pub fn fits(&self, blocks: u32) -> (usize, u32) {
        let mut bytes = TAIL_BYTES;
        let mut count = 0;
        for pending in &self.pending {
            let with = bytes + pending.stored.len() + pending.footer_bytes();
            if with > blocks as usize * BLOCK_BYTES {
                break;
            }
            bytes = with;
            count += 1;
        }
        (count, blocks_for(bytes as u64) as u32)
    }

    /// Removes the first waiting value; `None` if there is none.
    pub fn pop_first(&mut self) -> Option<Pending> {
        if self.pending.is_empty() {
            return None;
        }
        let first = self.pending.remove(0);
        self.bytes -= first.stored.len() + first.footer_bytes();
        Some(first)
    }

    /// Packs the first `count` waiting values into `run`, in which they must fit.
    pub fn pack(&mut self, count: usize, run: Run, owner: RunOwner) -> PackedRun {
        assert!(count > 0 && run.block == owner.block, "a run of values has an owner");
        let mut memory = IoBuf::unfilled(run.blocks as usize);
        let mut items = Vec::new();
        let mut placed = Vec::with_capacity(count);
        let mut at = 0;
        for mut pending in self.pending.drain(..count) {
            self.bytes -= pending.stored.len() + item_bytes(pending.key.len(), pending.stored.len());
            let end = at + pending.stored.len();
            memory[at..end].copy_from_slice(&pending.stored);
            put_item(&mut items, &pending.key, pending.version, pending.stored.len());
            pending.entry.home = Home::Packed { run: run.block, at: at as u32, checksum: pending.checksum };
            placed.push((pending.op, pending.entry));
            at = end;
        }
        assert_eq!(placed.len(), count, "each value has its place in the run (R25)");
        put_footer(&mut memory, at, &items, count as u32, owner);
        let entry = RunEntry {
            blocks: run.blocks,
            values: count as u32,
            value_bytes: at as u32,
            live_values: count as u32,
            live_bytes: at as u32,
            uncertain: false,
            fixed: false,
        };
        PackedRun { memory, entry, placed }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shoal_base::TabletId;
    use shoal_base::checksum::crc32c;

    use super::*;
    use crate::entry::Meta;
    use crate::packed::format::Footer;

    fn pending(op: usize, key_bytes: usize, stored: usize) -> Pending {
        let mut key = format!("{op:08}").into_bytes();
        key.resize(key_bytes.max(8), b'k');
        let stored = Bytes::from(vec![op as u8; stored]);
        Pending {
            op,
            entry: Entry {
                modified_ns: 1,
                end: None,
                value_bytes: stored.len() as u64,
                meta: Meta::Inline(smallvec::SmallVec::new()),
                home: Home::Inline,
            },
            key: key.into(),
            version: Lsn(op as u64 + 1),
            checksum: crc32c(&stored),
            stored,
        }
    }

    #[test]
    fn a_value_that_fills_its_blocks_is_not_packed() {
        for stored in [0, 4_096, 4_000, 8_192, 16_384, 16_000, 65_537] {
            assert!(!packs(20, stored), "{stored}");
        }
        for stored in [1, 1_100, 3_000, 3_900, 4_097, 9_000, 15_000] {
            assert!(packs(20, stored), "{stored}");
        }
        assert!(!packs(1_088, 3_000), "the key's place in the footer costs more than the block's rest");
    }

    proptest! {
        /// A packed run takes no more blocks than its values would alone (R3), and its values are at the places in
        /// entries and footer.
        #[test]
        fn runs_hold_what_they_say(sizes in prop::collection::vec((1_usize..1_088, 1_usize..20_000), 1..60)) {
            let owner = |block| RunOwner { device: 1, tablet: TabletId(2), block };
            let mut packer = Packer::new(64);
            let mut alone = 0;
            let mut expected = Vec::new();
            for (op, (key_bytes, stored)) in sizes.into_iter().enumerate() {
                let value = pending(op, key_bytes, stored);
                if !packs(value.key.len(), stored) || !packer.has_room_for(&value) {
                    continue;
                }
                alone += blocks_for(stored as u64);
                expected.push((value.key.clone(), value.version, value.stored.clone()));
                packer.push(value);
            }
            prop_assume!(!expected.is_empty());
            prop_assert!(u64::from(packer.blocks()) <= alone);
            prop_assert_eq!(packer.fits(packer.blocks()), (expected.len(), packer.blocks()));
            let blocks = packer.blocks();
            let packed = packer.pack(expected.len(), Run::new(77, blocks), owner(77));
            prop_assert_eq!((packer.waiting(), packer.blocks()), (0, 1));
            let footer = Footer::decode(&packed.memory, owner(77)).unwrap();
            for ((item, (op, entry)), (key, version, stored)) in footer.items().zip(&packed.placed).zip(&expected) {
                let item = item.unwrap();
                prop_assert_eq!((item.key, item.version), (&key[..], *version));
                let place = item.at as usize..(item.at + item.bytes) as usize;
                prop_assert_eq!(&packed.memory[place], &stored[..]);
                let checksum = crc32c(stored);
                prop_assert_eq!(&entry.home, &Home::Packed { run: 77, at: item.at, checksum });
                prop_assert_eq!(stored[0], *op as u8);
            }
            prop_assert_eq!(packed.placed.len(), expected.len());
            prop_assert!(footer.fits(&packed.entry));
        }
    }

    #[test]
    fn a_shorter_run_takes_the_first_ones() {
        let mut packer = Packer::new(16);
        (0..5).for_each(|op| packer.push(pending(op, 20, 3_000)));
        assert_eq!(packer.blocks(), 4);
        assert_eq!(packer.fits(2), (2, 2));
        assert_eq!(packer.fits(1), (1, 1));
        assert_eq!(packer.pop_first().map(|value| value.op), Some(0));
        assert_eq!((packer.waiting(), packer.blocks()), (4, 3));
    }
}
