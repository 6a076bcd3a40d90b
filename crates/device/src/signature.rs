//! Signatures that file systems, volume managers and partition tables leave on a device, so that a refusal can name them.
//!
//! A table of magic bytes and their places. It only supplies names: [`crate::blank`] decides if a device is blank, so data without an entry
//! in the table are not at risk.

use shoal_base::{BLOCK_BYTES, BLOCK_BYTES_U64};

/// A known format on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Its name, with an article: "an XFS file system".
    pub what: &'static str,
    /// The first of its magic bytes, in bytes from the start of the device.
    pub byte: u64,
}

/// The possible places of magic bytes. No magic crosses a border of blocks.
enum MagicAt {
    /// At these bytes of the device.
    At(&'static [u64]),
    /// At the start of every piece of this length, if the place depends on the size of the device or on the container.
    Each(usize),
}

struct Known {
    what: &'static str,
    magic: &'static [u8],
    place: MagicAt,
    /// Returns true if the bytes around a short magic are plausible; takes the block and the offset of the magic in it.
    fits: fn(&[u8], usize) -> bool,
}

const fn known(what: &'static str, place: MagicAt, magic: &'static [u8]) -> Known {
    Known { what, magic, place, fits: |_, _| true }
}

const SECTOR_BYTES: usize = 512;
const EXT: &str = "an ext2, ext3 or ext4 file system";
const MD: &str = "a member of a Linux RAID (md)";
const ZFS: &str = "a member of a ZFS pool";
const SWAP: &str = "a swap area";
/// The signature of swap space is at the end of its first page, for each page size of machines.
const SWAP_PLACES: MagicAt = MagicAt::At(&[4_086, 8_182, 16_374, 32_758, 65_526]);
/// The possible places of the second header of LUKS2.
const LUKS2_SECOND: MagicAt =
    MagicAt::At(&[0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000]);

/// The name of a store of ours.
pub(crate) const SHOAL: &str = "a Shoal store";

const KNOWN: [Known; 22] = [
    // The first superblock, and the first copy of it with blocks of 1, 2 and 4 KiB.
    Known {
        fits: is_ext,
        ..known(EXT, MagicAt::At(&[1_080, 8_389_688, 33_554_488, 134_217_784]), b"\x53\xef")
    },
    // Each allocation group starts with one.
    known("an XFS file system", MagicAt::Each(BLOCK_BYTES), b"XFSB"),
    known("a btrfs file system", MagicAt::At(&[0x1_0040, 0x400_0040, 0x40_0000_0040]), b"_BHRfS_M"),
    // An uberblock, in either order of bytes: of the two labels at the start and the two at the end.
    known(ZFS, MagicAt::Each(1024), b"\x0c\xb1\xba\0\0\0\0\0"),
    known(ZFS, MagicAt::Each(1024), b"\0\0\0\0\0\xba\xb1\x0c"),
    known("a physical volume of LVM", MagicAt::At(&[0, 512, 1_024, 1_536]), b"LABELONE"),
    known(SWAP, SWAP_PLACES, b"SWAPSPACE2"),
    known(SWAP, SWAP_PLACES, b"SWAP-SPACE"),
    known("a LUKS1 volume", MagicAt::At(&[0]), b"LUKS\xba\xbe\0\x01"),
    known("a LUKS2 volume", MagicAt::At(&[0]), b"LUKS\xba\xbe\0\x02"),
    known("a LUKS2 volume", LUKS2_SECOND, b"SKUL\xba\xbe"),
    // Superblocks of version 1.1 at 0, 1.2 at 4 KiB, 0.90 and 1.0 near the end; that of 0.90 is in the machine's order.
    known(MD, MagicAt::Each(BLOCK_BYTES), b"\xfc\x4e\x2b\xa9"),
    known(MD, MagicAt::Each(BLOCK_BYTES), b"\xa9\x2b\x4e\xfc"),
    // The first one in sector 1, its backup in the last sector; sectors have 512 or 4,096 bytes.
    known("a GPT partition table", MagicAt::Each(SECTOR_BYTES), b"EFI PART"),
    Known { fits: is_mbr, ..known("an MBR partition table", MagicAt::At(&[510]), b"\x55\xaa") },
    known("an NTFS file system", MagicAt::At(&[3]), b"NTFS    "),
    known("an exFAT file system", MagicAt::At(&[3]), b"EXFAT   "),
    known("a FAT file system", MagicAt::At(&[54]), b"FAT"),
    known("a FAT file system", MagicAt::At(&[82]), b"FAT32"),
    known("a squashfs file system", MagicAt::At(&[0]), b"hsqs"),
    known("an ISO 9660 file system", MagicAt::At(&[32_769]), b"CD001"),
    // Any of the four copies of its superblock.
    known(SHOAL, MagicAt::Each(BLOCK_BYTES), b"SHOALSB\n"),
];

/// The sizes of blocks and the number of inodes of an ext superblock.
fn is_ext(block: &[u8], magic: usize) -> bool {
    let field = |at: usize| {
        let start = magic.checked_sub(56)?.checked_add(at)?;
        Some(u32::from_le_bytes(block.get(start..start + 4)?.try_into().ok()?))
    };
    field(0).is_some_and(|inodes| inodes > 0) && field(24).is_some_and(|log_block_bytes| log_block_bytes <= 6)
}

/// Four partitions that are bootable or not, and one of which has a type. A boot sector has code there.
fn is_mbr(block: &[u8], magic: usize) -> bool {
    let Some(table) = magic.checked_sub(64).and_then(|start| block.get(start..magic)) else { return false };
    let mut partitions = table.chunks_exact(16);
    partitions.clone().all(|partition| partition[0] & 0x7f == 0)
        && partitions.any(|partition| partition[4] != 0)
}

/// The known signatures in the bytes of block `block`.
pub(crate) fn signatures(block: u64, bytes: &[u8]) -> impl Iterator<Item = Signature> {
    let start = block * BLOCK_BYTES_U64;
    let has = |known: &Known, at: usize| {
        bytes.get(at..).is_some_and(|rest| rest.starts_with(known.magic)) && (known.fits)(bytes, at)
    };
    KNOWN.iter().filter_map(move |known| {
        let at = match known.place {
            MagicAt::At(places) => {
                let mut here =
                    places.iter().filter_map(|place| usize::try_from(place.checked_sub(start)?).ok());
                here.find(|&at| has(known, at))
            }
            MagicAt::Each(step) => (0..bytes.len()).step_by(step).find(|&at| has(known, at)),
        };
        Some(Signature { what: known.what, byte: start + at? as u64 })
    })
}

/// The blocks that hold known places of signatures.
pub(crate) fn known_blocks() -> impl Iterator<Item = u64> {
    let places = KNOWN.iter().filter_map(|known| match known.place {
        MagicAt::At(places) => Some(places),
        MagicAt::Each(_) => None,
    });
    places.flatten().map(|byte| byte / BLOCK_BYTES_U64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_magic_crosses_a_border_of_blocks() {
        for known in &KNOWN {
            let offsets: Vec<usize> = match known.place {
                MagicAt::At(places) => {
                    places.iter().map(|place| (place % BLOCK_BYTES_U64) as usize).collect()
                }
                MagicAt::Each(step) => {
                    assert_eq!(BLOCK_BYTES % step, 0, "{}", known.what);
                    vec![BLOCK_BYTES - step]
                }
            };
            for offset in offsets {
                assert!(offset + known.magic.len() <= BLOCK_BYTES, "{}", known.what);
            }
        }
    }

    #[test]
    fn two_byte_magic_is_no_file_system() {
        let mut block = [0; BLOCK_BYTES];
        block[1_080..1_082].copy_from_slice(b"\x53\xef");
        block[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(signatures(0, &block).count(), 0);
        block[1_024] = 1;
        assert_eq!(signatures(0, &block).next(), Some(Signature { what: EXT, byte: 1_080 }));
        block[446 + 4] = 0x83;
        assert!(signatures(0, &block).any(|found| found.what == "an MBR partition table"));
        block[446 + 16] = 0x33;
        assert!(!signatures(0, &block).any(|found| found.what == "an MBR partition table"), "that is code");
    }

    #[test]
    fn short_blocks_do_not_panic() {
        for bytes in [0, 1, 511, 512, 1_081] {
            assert_eq!(signatures(0, &vec![0x55; bytes]).count(), 0);
        }
    }
}
