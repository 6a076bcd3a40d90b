//! The unit: its identity, and the checksum that its holder expects.

use shoal_base::checksum::crc32c;
use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::{BLOCK_BYTES, Crc32c, Run};

use crate::PoolError;

/// Most blocks of a unit: 64 KiB that start inside a block touch 17.
pub(crate) const UNIT_BLOCKS_MAX: usize = VALUE_UNIT_BYTES / BLOCK_BYTES + 1;

/// The identity of a unit: its first block, and the use of that block (R11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitId {
    /// The first block.
    pub block: u64,
    /// Distinguishes this use of the block from earlier and later ones: a page's checksum, a value's LSN.
    pub identity: u64,
}

/// The verification of the bytes when they enter memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// One block whose first four bytes (little-endian) and the CRC-32C of the others both equal `crc`.
    Page {
        /// The expected checksum.
        crc: u32,
    },
    /// Bytes that start `offset` bytes into the first block.
    Bytes {
        /// Offset of the first byte in the first block, below 4,096.
        offset: u16,
        /// How many bytes: 1 to 65,536.
        bytes: u32,
        /// CRC-32C of these bytes.
        crc: u32,
    },
    /// No check: one block that changes in place, whose reader knows its contents. Only these units can be written.
    Mutable,
}

/// The bytes that the pool loads, verifies, caches and evicts as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// The identity.
    pub id: UnitId,
    /// Its extent and its checksum. Two units of one id and different checks are different units.
    pub check: Check,
}

/// The purpose of a fetch, which decides how long the unit stays in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// A lookup: its history of accesses decides.
    Lookup,
    /// A scan, or any unit that will hardly be needed again: evicted before all others, leaves no history, and takes a
    /// bounded share of the pool.
    Scan,
    /// An inner page of a tree: counts as often used from the start.
    Index,
}

const OFFSET_SHIFT: u32 = 32;
const BYTES_SHIFT: u32 = 44;
const PAGE_BIT: u64 = 1 << 61;
const MUTABLE_BIT: u64 = 1 << 62;

const _: () =
    assert!(BLOCK_BYTES <= 1 << (BYTES_SHIFT - OFFSET_SHIFT), "an offset fits between its neighbours");
const _: () = assert!(VALUE_UNIT_BYTES < 1 << (61 - BYTES_SHIFT), "a length fits below the page bit");

impl Unit {
    /// A tree page; its checksum is its identity.
    #[must_use]
    pub const fn page(block: u64, crc: u32) -> Self {
        Self { id: UnitId { block, identity: crc as u64 }, check: Check::Page { crc } }
    }

    /// A page that changes in place. The engine has none; see [`Pool::write`](crate::Pool::write).
    #[must_use]
    pub const fn mutable(block: u64) -> Self {
        Self { id: UnitId { block, identity: 0 }, check: Check::Mutable }
    }

    /// Returns true if the unit changes in place.
    pub(crate) const fn is_mutable(&self) -> bool {
        matches!(self.check, Check::Mutable)
    }

    /// `bytes` bytes from `offset` of block `id.block` on.
    #[must_use]
    pub const fn bytes(id: UnitId, offset: u16, bytes: u32, crc: u32) -> Self {
        Self { id, check: Check::Bytes { offset, bytes, crc } }
    }

    /// Blocks that it touches.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        let (offset, bytes) = self.extent();
        (offset + bytes).div_ceil(BLOCK_BYTES)
    }

    /// The blocks that it touches.
    #[must_use]
    pub const fn run(&self) -> Run {
        Run::new(self.id.block, self.blocks() as u32)
    }

    /// Offset of the first byte in the first block, and the number of bytes.
    pub(crate) const fn extent(&self) -> (usize, usize) {
        match self.check {
            Check::Page { .. } | Check::Mutable => (0, BLOCK_BYTES),
            Check::Bytes { offset, bytes, .. } => (offset as usize, bytes as usize),
        }
    }

    /// Refuses a check that does not fit a unit: it would not fit [`packed`](Self::packed) either.
    pub(crate) fn validate(&self) -> Result<(), PoolError> {
        let Check::Bytes { offset, bytes, .. } = self.check else { return Ok(()) };
        if usize::from(offset) < BLOCK_BYTES && bytes >= 1 && bytes as usize <= VALUE_UNIT_BYTES {
            Ok(())
        } else {
            Err(PoolError::Invalid { block: self.id.block, offset, bytes })
        }
    }

    /// The check in one word, so that a hit compares it with one load. The unit must be [valid](Self::validate).
    pub(crate) const fn packed(&self) -> u64 {
        match self.check {
            Check::Page { crc } => crc as u64 | PAGE_BIT,
            Check::Mutable => MUTABLE_BIT,
            Check::Bytes { offset, bytes, crc } => {
                crc as u64 | (offset as u64) << OFFSET_SHIFT | (bytes as u64) << BYTES_SHIFT
            }
        }
    }

    /// Returns true if the unit with these [packed](Self::packed) fields is a page.
    #[inline]
    pub(crate) const fn is_page_packed(packed: u64) -> bool {
        packed & (MUTABLE_BIT | PAGE_BIT) != 0
    }

    /// The unit of these words; the inverse of [`packed`](Self::packed).
    pub(crate) const fn unpacked(id: UnitId, packed: u64) -> Self {
        let crc = packed as u32;
        let check = if packed & MUTABLE_BIT != 0 {
            Check::Mutable
        } else if packed & PAGE_BIT != 0 {
            Check::Page { crc }
        } else {
            let offset = (packed >> OFFSET_SHIFT) as u16 & (BLOCK_BYTES as u16 - 1);
            Check::Bytes { offset, bytes: (packed >> BYTES_SHIFT) as u32, crc }
        };
        Self { id, check }
    }

    /// Verifies the unit's bytes, in pieces in their order in memory.
    ///
    /// # Errors
    /// [`PoolError::Corrupt`].
    pub fn verify<'a>(&self, mut pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), PoolError> {
        let (expected, found) = match self.check {
            Check::Page { crc } => (crc, page_crc(pieces.next().unwrap_or_default(), crc)),
            Check::Bytes { crc, .. } => {
                let mut sum = Crc32c::new();
                pieces.for_each(|piece| sum.update(piece));
                (crc, sum.finish())
            }
            Check::Mutable => return Ok(()),
        };
        if found == expected {
            Ok(())
        } else {
            Err(PoolError::Corrupt { block: self.id.block, expected, found })
        }
    }
}

/// The checksum of a page's contents, or the stored one if that is not `expected`.
fn page_crc(page: &[u8], expected: u32) -> u32 {
    let Some((carried, contents)) = page.split_first_chunk::<4>() else { return !expected };
    let computed = crc32c(contents);
    if computed == expected { u32::from_le_bytes(*carried) } else { computed }
}

#[cfg(test)]
mod unit_tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packing_loses_nothing(block: u64, identity: u64, offset in 0_u16..4096, bytes in 1_u32..=65536, crc: u32) {
            let unit = Unit::bytes(UnitId { block, identity }, offset, bytes, crc);
            prop_assert!(unit.validate().is_ok());
            prop_assert_eq!(Unit::unpacked(unit.id, unit.packed()), unit);
            prop_assert!((1..=UNIT_BLOCKS_MAX).contains(&unit.blocks()));
            let page = Unit::page(block, crc);
            prop_assert_eq!(Unit::unpacked(page.id, page.packed()), page);
            let mutable = Unit::mutable(block);
            prop_assert_eq!(Unit::unpacked(mutable.id, mutable.packed()), mutable);
        }
    }

    #[test]
    fn impossible_units_are_refused() {
        let id = UnitId { block: 7, identity: 1 };
        for (offset, bytes) in [(0, 0), (4096, 1), (0, 65537), (u16::MAX, u32::MAX)] {
            assert!(Unit::bytes(id, offset, bytes, 0).validate().is_err(), "{offset}, {bytes}");
        }
        assert_eq!(Unit::bytes(id, 4095, 65536, 0).blocks(), 17);
        assert_eq!(Unit::bytes(id, 4095, 1, 0).blocks(), 1);
    }

    #[test]
    fn a_page_needs_both_checksums() {
        let mut page = vec![7_u8; BLOCK_BYTES];
        let crc = crc32c(&page[4..]);
        let unit = Unit::page(3, crc);
        assert!(unit.verify([&page[..]].into_iter()).is_err(), "the carried checksum is wrong");
        page[..4].copy_from_slice(&crc.to_le_bytes());
        assert!(unit.verify([&page[..]].into_iter()).is_ok());
        page[4000] ^= 1;
        assert!(unit.verify([&page[..]].into_iter()).is_err(), "the contents are wrong");
        assert!(unit.verify(std::iter::empty()).is_err());
    }
}
