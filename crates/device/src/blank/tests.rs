//! Devices of a terabyte that hold one thing, at the start, at the end, or anywhere.

use std::sync::Arc;

use shoal_base::task::block_on;
use shoal_base::{SeededEntropy, SystemEntropy};

use super::*;
use crate::MemDevice;

/// A tebibyte.
const BLOCKS: u64 = 1 << 28;
const BYTES: u64 = BLOCKS * BLOCK_BYTES_U64;

fn in_memory(blocks: u64) -> Device {
    Device::new(Arc::new(MemDevice::new(blocks)))
}

fn write(device: &Device, byte: u64, bytes: &[u8]) {
    let (block, offset) = (byte / BLOCK_BYTES_U64, (byte % BLOCK_BYTES_U64) as usize);
    let mut buffer = block_on(device.read(block, IoBuf::new(1))).ok().unwrap();
    buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
    block_on(device.write(block, buffer)).ok().unwrap();
}

fn look_at(device: &Device) -> Content {
    block_on(look(device, &SystemEntropy)).unwrap()
}

/// The findings on a device that holds these bytes only.
fn found(places: &[(u64, &[u8])]) -> Content {
    let device = in_memory(BLOCKS);
    places.iter().for_each(|(byte, bytes)| write(&device, *byte, bytes));
    let content = look_at(&device);
    assert!(!content.is_blank());
    content
}

fn names(places: &[(u64, &[u8])], what: &str) {
    let content = found(places);
    assert!(content.signatures.iter().any(|found| found.what == what), "{what}: {content}");
    assert!(content.to_string().contains(what), "{content}");
}

#[test]
fn every_signature_is_named() {
    let ext = "an ext2, ext3 or ext4 file system";
    // Inodes and the size of blocks, then the magic.
    for start in [1_024, 8_193 << 10, 32 << 20, 128 << 20] {
        names(&[(start, &[9]), (start + 24, &[2]), (start + 56, b"\x53\xef")], ext);
    }
    names(&[(0, b"XFSB")], "an XFS file system");
    names(&[(BYTES - (16 << 20), b"XFSB")], "an XFS file system");
    for byte in [0x1_0040, 0x400_0040, 0x40_0000_0040] {
        names(&[(byte, b"_BHRfS_M")], "a btrfs file system");
    }
    let labels = [0, 256 << 10, BYTES - (512 << 10), BYTES - (256 << 10)];
    for uberblocks in labels.map(|label| label + (128 << 10)) {
        names(&[(uberblocks + 5 * 1024, &0x00ba_b10c_u64.to_le_bytes())], "a member of a ZFS pool");
        names(&[(uberblocks, &0x00ba_b10c_u64.to_be_bytes())], "a member of a ZFS pool");
    }
    for sector in 0..4 {
        names(&[(sector * 512, b"LABELONE")], "a physical volume of LVM");
    }
    for page in [4_096, 8_192, 16_384, 32_768, 65_536] {
        names(&[(page - 10, b"SWAPSPACE2")], "a swap area");
    }
    names(&[(4_086, b"SWAP-SPACE")], "a swap area");
    names(&[(0, b"LUKS\xba\xbe\0\x01")], "a LUKS1 volume");
    names(&[(0, b"LUKS\xba\xbe\0\x02")], "a LUKS2 volume");
    for kib in [16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096_u64] {
        names(&[(kib << 10, b"SKUL\xba\xbe")], "a LUKS2 volume");
    }
    // 1.1, 1.2, 1.0 and 0.90.
    for byte in [0, 4_096, BYTES - 8_192, BYTES - (64 << 10), BYTES - (128 << 10)] {
        names(&[(byte, &0xa92b_4efc_u32.to_le_bytes())], "a member of a Linux RAID (md)");
    }
    names(&[(BYTES - (64 << 10), &0xa92b_4efc_u32.to_be_bytes())], "a member of a Linux RAID (md)");
    for byte in [512, 4_096, BYTES - 512, BYTES - 4_096] {
        names(&[(byte, b"EFI PART")], "a GPT partition table");
    }
    names(&[(450, &[0x83]), (510, b"\x55\xaa")], "an MBR partition table");
    names(&[(3, b"NTFS    "), (510, b"\x55\xaa")], "an NTFS file system");
    names(&[(3, b"EXFAT   "), (510, b"\x55\xaa")], "an exFAT file system");
    names(&[(54, b"FAT16   ")], "a FAT file system");
    names(&[(82, b"FAT32   ")], "a FAT file system");
    names(&[(0, b"hsqs")], "a squashfs file system");
    names(&[(32_769, b"CD001")], "an ISO 9660 file system");
    for block in [0, 1, 32, 33] {
        names(&[(block * BLOCK_BYTES_U64, b"SHOALSB\n")], "a Shoal store");
    }
}

#[test]
fn refusal_lists_all_signatures_in_device_order() {
    let content =
        found(&[(BYTES - 512, b"EFI PART"), (0x1_0040, b"_BHRfS_M"), (450, &[0xee]), (510, b"\x55\xaa")]);
    let expected = format!(
        "it is not blank: it holds an MBR partition table (byte 510), a btrfs file system (byte 65600), \
         a GPT partition table (byte {})",
        BYTES - 512
    );
    assert_eq!((content.to_string(), content.first_byte), (expected, Some(450)));
    let content = found(&[(8_192, b"Dear Ann,")]);
    assert_eq!(content.to_string(), "it is not blank: it holds data (the first at byte 8192)");
}

#[test]
fn zeros_are_blank() {
    let content = look_at(&in_memory(BLOCKS));
    assert!(content.is_blank(), "{content}");
    assert!(content.blocks_read >= 2 * DENSE_BLOCKS + SPREAD_PLACES * PLACE_BLOCKS, "{content}");
}

/// One byte, in any block of the first and the last 16 MiB.
#[test]
fn one_byte_at_the_start_or_the_end_is_found() {
    let dice = SeededEntropy::new(1);
    let borders = [0, DENSE_BLOCKS - 1, BLOCKS - DENSE_BLOCKS, BLOCKS - 1];
    let starts = (0..20).map(|_| dice.below(DENSE_BLOCKS));
    let ends = (0..20).map(|_| BLOCKS - 1 - dice.below(DENSE_BLOCKS));
    for block in borders.into_iter().chain(starts).chain(ends) {
        let byte = block * BLOCK_BYTES_U64 + dice.below(BLOCK_BYTES_U64);
        assert_eq!(found(&[(byte, &[1])]).first_byte, Some(byte));
    }
}

/// One byte, in any block of devices that are small enough to be read whole.
#[test]
fn small_devices_are_read_whole() {
    let dice = SeededEntropy::new(2);
    for blocks in [
        0,
        1,
        255,
        257,
        DENSE_BLOCKS,
        DENSE_BLOCKS + 1,
        2 * DENSE_BLOCKS,
        2 * DENSE_BLOCKS + SPREAD_PLACES * PLACE_BLOCKS,
    ] {
        let device = in_memory(blocks);
        let content = look_at(&device);
        assert!(content.is_blank() && content.blocks_read >= blocks, "{blocks} blocks: {content}");
        let places = (0..10).map(|_| dice.below(blocks)).chain([blocks.saturating_sub(1), blocks / 2]);
        for block in places.filter(|&block| block < blocks) {
            let device = in_memory(blocks);
            write(&device, block * BLOCK_BYTES_U64 + 4_095, &[1]);
            assert_eq!(look_at(&device).first_byte, Some(block * BLOCK_BYTES_U64 + 4_095), "{blocks} blocks");
        }
    }
}

/// Each part has one place, which moves from check to check: no regular layout escapes.
#[test]
fn the_places_between_are_random_and_everywhere() {
    let draw = |start, end, seed| spread(start, end, &SeededEntropy::new(seed)).collect::<Vec<Run>>();
    let (start, end) = (DENSE_BLOCKS, BLOCKS - DENSE_BLOCKS);
    let part = (end - start) / SPREAD_PLACES;
    let draws = [draw(start, end, 0), draw(start, end, 1)];
    for places in &draws {
        assert_eq!(places.len() as u64, SPREAD_PLACES);
        for (number, place) in (0..).zip(places) {
            let from = start + number * part;
            let is_in = (from..from + part + SPREAD_PLACES).contains(&place.block);
            assert!(is_in && u64::from(place.blocks) == PLACE_BLOCKS, "place {place} of part {number}");
        }
    }
    let same = draws[0].iter().zip(&draws[1]).filter(|(one, other)| one == other).count();
    assert!(same < 40, "{same} places of {SPREAD_PLACES} were drawn twice");
    // All places in a part come up: here it has 20 blocks.
    let offsets: std::collections::HashSet<u64> =
        (0..200).map(|seed| draw(0, 20 * SPREAD_PLACES, seed)[7].block - 140).collect();
    assert_eq!(offsets, (0..5).collect());
    assert_eq!(draw(5, 40, 0), [Run::new(5, 11), Run::new(16, 12), Run::new(28, 12)]);
    assert!(draw(5, 5, 0).is_empty());
}

/// A hundredth of a device is missed once in 10^17 looks.
#[test]
fn data_in_the_middle_are_found() {
    let blocks = 1 << 18;
    let device = in_memory(blocks);
    let first = 100_000;
    for at in (first..first + blocks / 100).step_by(61) {
        let bytes = vec![7; 61 * BLOCK_BYTES];
        block_on(device.write(at, IoBuf::copied_from(&bytes))).ok().unwrap();
    }
    assert!(!look_at(&device).is_blank());
}

fn bytes_in(path: &std::path::Path, bytes: &[u8]) -> Content {
    std::fs::write(path, bytes).unwrap();
    look_at(&crate::open(path, &crate::FileOptions::default()).unwrap())
}

/// `shoal format` destroyed files whose data were shorter than a block, or after the last whole one.
#[test]
fn every_byte_of_a_file_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let with = |bytes: usize, at: usize| {
        let mut all = vec![0; bytes];
        all[at] = 7;
        all
    };
    let cases =
        [(12, 0), (12, 11), (4_096 + 4_095, 4_096), (4_096 + 4_095, 8_190), (200_011, 200_010), (4_097, 0)];
    for (bytes, at) in cases {
        let content = bytes_in(&path, &with(bytes, at));
        assert_eq!(content.first_byte, Some(at as u64), "byte {at} of {bytes}");
    }
    for bytes in [0, 1, 4_095, 4_096, 4_097, 200_011] {
        let content = bytes_in(&path, &vec![0; bytes]);
        assert!(content.is_blank(), "{bytes} zeros: {content}");
    }
    assert!(bytes_in(&path, b"hsqs").to_string().contains("squashfs"), "a short end has signatures, too");
}

/// One byte anywhere in a large file with holes: a sample of places would miss it.
#[test]
fn a_large_file_is_read_whole_except_for_its_holes() {
    const LENGTH: u64 = 64 << 30;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let dice = SeededEntropy::new(3);
    for _ in 0..10 {
        let byte = (16 << 20) + dice.below(LENGTH - (32 << 20));
        let file = std::fs::File::create(&path).unwrap();
        if let Err(error) = file.set_len(LENGTH + 5) {
            println!("no file of 64 GiB here: {error}");
            return;
        }
        let read_only = crate::FileOptions { read_only: true, ..crate::FileOptions::default() };
        assert!(look_at(&crate::open(&path, &read_only).unwrap()).is_blank());
        std::os::unix::fs::FileExt::write_all_at(&file, &[1], byte).unwrap();
        drop(file);
        let content = look_at(&crate::open(&path, &read_only).unwrap());
        assert_eq!(content.first_byte, Some(byte));
        assert!(content.blocks_read < 1 << 20, "holes are not read: {} blocks", content.blocks_read);
    }
}
