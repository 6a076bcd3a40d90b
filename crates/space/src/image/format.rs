//! The constants of the formats in `docs/format/space.md`, and the common start of both formats.
//!
//! Bytes 0..16 of a delta and of a snapshot piece have the same meaning: checksum of everything after it, magic,
//! version, two bytes specific to the format, length. So one function checks them.

use shoal_base::checksum::crc32c;
use shoal_base::codec::Reader;

use super::{DeviceIdentity, ImageError};

/// The bytes of a delta after its checksum: "SHsd".
pub(crate) const DELTA_MAGIC: [u8; 4] = *b"SHsd";
/// Version of deltas that is written and read.
pub(crate) const DELTA_VERSION: u16 = 1;
/// Bytes of a delta's header.
pub const DELTA_HEADER_BYTES: usize = 56;
/// A run in a delta takes at least two bytes; checked before memory is reserved.
pub(crate) const DELTA_RUN_BYTES_MIN: usize = 2;

/// The bytes of a snapshot piece after its checksum: "SHsp".
pub(crate) const PIECE_MAGIC: [u8; 4] = *b"SHsp";
/// Version of snapshot pieces that is written and read.
pub(crate) const PIECE_VERSION: u16 = 1;
/// Bytes of a piece's header.
pub(crate) const PIECE_HEADER_BYTES: usize = 64;
/// Most bytes of a snapshot piece; each is a multiple of 4 KiB.
pub const SNAPSHOT_PIECE_BYTES_MAX: usize = 64 << 10;

/// Bytes of the head of a group's record in a piece.
pub(crate) const GROUP_HEAD_BYTES: usize = 8;
/// Bytes of a run in a group's record.
pub(crate) const GROUP_RUN_BYTES: usize = 4;
/// The group's runs follow, 4 bytes each.
pub(crate) const KIND_RUNS: u8 = 0;
/// The group's bitmap follows, one bit per block, set if the block is free.
pub(crate) const KIND_BITMAP: u8 = 1;
/// The group may have free blocks that the image does not know.
pub(crate) const FLAG_INCOMPLETE: u8 = 1;

/// Smallest and largest group that a piece may have, as powers of two.
pub(crate) const GROUP_SHIFTS: std::ops::RangeInclusive<u8> = 4..=16;

const _: () = assert!(1 << *GROUP_SHIFTS.start() as u32 == crate::GROUP_BLOCKS_MIN);
const _: () = assert!(1 << *GROUP_SHIFTS.end() as u32 == crate::GROUP_BLOCKS_MAX);
const _: () = assert!(
    PIECE_HEADER_BYTES + GROUP_HEAD_BYTES + crate::GROUP_BLOCKS_MAX as usize / 8 <= SNAPSHOT_PIECE_BYTES_MAX,
    "the largest record of a group fits in one piece"
);

/// The two bytes after the version, and the rest, of bytes with a valid start.
pub(crate) struct Start<'a> {
    /// Bytes 10 and 11.
    pub(crate) own: [u8; 2],
    /// Bytes 32 up to the length.
    pub(crate) rest: Reader<'a>,
    /// The length.
    pub(crate) bytes: usize,
}

/// The start of a structure; [`seal`] completes it.
pub(crate) fn begin(magic: [u8; 4], version: u16, own: [u8; 2], device: &DeviceIdentity) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&magic);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&own);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(device);
    out
}

/// Fills in the length and the checksum.
pub(crate) fn seal(out: &mut [u8]) {
    let Ok(length) = u32::try_from(out.len()) else { panic!("{} bytes in one structure", out.len()) };
    out[12..16].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c(&out[4..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Checks the start of a structure, its length (at most `bytes_max`) and its checksum. Never panics.
pub(crate) fn open<'a>(
    bytes: &'a [u8],
    magic: [u8; 4],
    version: u16,
    device: &DeviceIdentity,
    bytes_max: usize,
) -> Result<Start<'a>, ImageError> {
    let mut reader = Reader::new(bytes);
    let crc = reader.u32()?;
    let checked = reader.rest();
    if reader.bytes(4)? != magic {
        return Err(ImageError::Damaged { what: "the magic bytes" });
    }
    let found = reader.u16()?;
    let own = [reader.u8()?, reader.u8()?];
    let length = reader.u32()? as usize;
    if length > bytes_max || length > bytes.len() {
        return Err(ImageError::Damaged { what: "the length" });
    }
    let checked = checked.get(..length.saturating_sub(4)).unwrap_or(checked);
    if crc32c(checked) != crc {
        return Err(ImageError::Damaged { what: "the checksum" });
    }
    if found != version {
        return Err(ImageError::Version { found });
    }
    if reader.bytes(16)? != device {
        return Err(ImageError::Foreign);
    }
    let rest = checked.get(28..).ok_or(ImageError::Damaged { what: "the length" })?;
    Ok(Start { own, rest: Reader::new(rest), bytes: length })
}

#[cfg(test)]
mod tests {
    use shoal_base::Run;

    use super::*;
    use crate::image::{Delta, FreeImage};

    const DEVICE: DeviceIdentity = *b"an identity: 16 ";
    const DOC: &str = include_str!("../../../../docs/format/space.md");

    /// The rows of the table below a heading of the document: (offset, bytes, field).
    fn rows(heading: &str) -> Vec<(usize, usize, &'static str)> {
        let section = DOC.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
        let cells = |line: &'static str| line.split('|').map(str::trim).collect::<Vec<_>>();
        let row = |cells: Vec<&'static str>| Some((cells[1].parse().ok()?, cells[2].parse().ok()?, cells[3]));
        section.lines().filter(|line| line.starts_with('|')).filter_map(|line| row(cells(line))).collect()
    }

    /// Compares the bytes with the document's fields in order, without gaps.
    fn compare(heading: &str, bytes: &[u8], fields: &[(&str, &[u8])]) {
        let mut offset = 0;
        let rows = rows(heading);
        assert_eq!(rows.len(), fields.len(), "{heading}: {rows:?}");
        for (row, (field, value)) in rows.iter().zip(fields) {
            assert_eq!((row.0, row.1, row.2), (offset, value.len(), *field), "{heading}");
            assert_eq!(bytes[offset..offset + row.1], **value, "{heading}: {field}");
            offset += row.1;
        }
        assert!(DOC.contains(&format!("From byte {offset} on")), "{heading}: what follows byte {offset}");
    }

    #[test]
    fn delta_matches_document() {
        let taken = [Run::new(300, 7), Run::new(310, 1)];
        let bytes = Delta::new(0x1122_3344_5566, &taken, &[Run::new(5, 128)]).unwrap().encode(&DEVICE);
        let crc = crc32c(&bytes[4..]).to_le_bytes();
        let length = (bytes.len() as u32).to_le_bytes();
        compare(
            "Delta, version 1",
            &bytes,
            &[
                ("crc", &crc),
                ("magic", b"SHsd"),
                ("version", &[1, 0]),
                ("flags", &[0, 0]),
                ("length", &length),
                ("device", &DEVICE),
                ("superblock", &0x1122_3344_5566_u64.to_le_bytes()),
                ("taken", &[2, 0, 0, 0]),
                ("freed", &[1, 0, 0, 0]),
                ("reserved", &[0; 8]),
            ],
        );
        assert_eq!(bytes[DELTA_HEADER_BYTES..], [0xAC, 0x02, 7, 3, 1, 5, 0x80, 0x01], "gaps and lengths");
    }

    #[test]
    fn snapshot_piece_matches_document() {
        let mut image = FreeImage::new(200, 32);
        for run in [Run::new(65, 2), Run::new(96, 1), Run::new(98, 1), Run::new(127, 1)] {
            image.free(run).unwrap();
        }
        image.mark_incomplete(97..98);
        let pieces: Vec<_> = image.snapshot(DEVICE, 0x0807_0605).collect();
        assert_eq!(pieces.len(), 1);
        let bytes = &pieces[0].bytes;
        let crc = crc32c(&bytes[4..]).to_le_bytes();
        compare(
            "Snapshot piece, version 1",
            bytes,
            &[
                ("crc", &crc),
                ("magic", b"SHsp"),
                ("version", &[1, 0]),
                ("group_shift", &[5]),
                ("flags", &[0]),
                ("length", &4096_u32.to_le_bytes()),
                ("device", &DEVICE),
                ("superblock", &0x0807_0605_u64.to_le_bytes()),
                ("sequence", &[0; 4]),
                ("pieces", &[1, 0, 0, 0]),
                ("first_group", &[0; 4]),
                ("end_group", &[7, 0, 0, 0]),
                ("groups", &[7, 0, 0, 0]),
                ("records", &[2, 0, 0, 0]),
            ],
        );
        // Group 2: blocks 1 and 2 as one run of 4 bytes. Group 3: blocks 0, 2 and 31 as a bitmap of 4 bytes.
        let records = &bytes[PIECE_HEADER_BYTES..];
        let head: [(&str, &[u8]); 4] =
            [("group", &[2, 0, 0, 0]), ("runs", &[1, 0]), ("kind", &[KIND_RUNS]), ("flags", &[0])];
        compare("Group record", records, &head);
        assert_eq!(records[GROUP_HEAD_BYTES..][..GROUP_RUN_BYTES], [1, 0, 1, 0]);
        let head: [(&str, &[u8]); 4] = [
            ("group", &[3, 0, 0, 0]),
            ("runs", &[3, 0]),
            ("kind", &[KIND_BITMAP]),
            ("flags", &[FLAG_INCOMPLETE]),
        ];
        compare("Group record", &records[12..], &head);
        assert_eq!(records[12 + GROUP_HEAD_BYTES..][..4], [0b0000_0101, 0, 0, 0b1000_0000]);
        assert!(records[24..].iter().all(|&byte| byte == 0), "zeros up to the end");
    }
}
