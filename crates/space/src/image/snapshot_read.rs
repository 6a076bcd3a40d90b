//! [`SnapshotReader`]: pieces of a snapshot back into an image. Format: `docs/format/space.md`.
//!
//! A piece is checked completely before anything of it counts. A missing or damaged piece costs only the
//! groups that it covered (R19). Its header cannot be trusted then, so they are the gaps between the other
//! pieces: the pieces of a snapshot cover all groups without gaps.

use std::collections::BTreeMap;
use std::ops::Range;

use shoal_base::codec::Reader;
use shoal_base::{BLOCK_BYTES, Run};

use super::format::{
    FLAG_INCOMPLETE, GROUP_HEAD_BYTES, GROUP_RUN_BYTES, GROUP_SHIFTS, KIND_BITMAP, KIND_RUNS, PIECE_MAGIC,
    PIECE_VERSION, SNAPSHOT_PIECE_BYTES_MAX, open,
};
use super::{DeviceIdentity, FreeImage, ImageError};
use crate::span::Span;

/// Groups of the snapshot whose free space is not known because no piece that covers them was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostGroups {
    /// Their numbers, in the snapshot's size of groups; in the image's if no piece was read.
    pub groups: Range<u32>,
    /// Their blocks.
    pub blocks: Range<u64>,
}

/// Builds an image from the pieces of one snapshot, in any order.
pub struct SnapshotReader {
    image: FreeImage,
    device: DeviceIdentity,
    superblock: u64,
    pieces: u32,
    /// The shift and number of groups that the pieces name: all the same.
    groups: Option<(u32, u32)>,
    /// The groups that the accepted pieces cover: first group, first group after them.
    covered: BTreeMap<u32, u32>,
}

impl SnapshotReader {
    /// A reader for the snapshot of superblock `superblock` in `pieces` pieces, into `image`, a new one. Its size and
    /// its groups may differ from the snapshot's: the device may have grown since.
    ///
    /// # Panics
    /// If something is free in `image` already.
    #[must_use]
    pub fn new(image: FreeImage, device: DeviceIdentity, superblock: u64, pieces: u32) -> Self {
        assert_eq!(image.free_blocks(), 0, "a snapshot is read into a new image");
        Self { image, device, superblock, pieces, groups: None, covered: BTreeMap::new() }
    }

    /// Reads piece number `sequence`; ignores bytes after its end. Never panics and reserves only the image's own
    /// runs.
    ///
    /// # Errors
    /// The piece differs from the written one; nothing of it counts, and [`Self::finish`] returns the blocks
    /// that it covered.
    pub fn piece(&mut self, sequence: u32, bytes: &[u8]) -> Result<(), ImageError> {
        let piece = Piece::parse(bytes, &self.device)?;
        if piece.superblock != self.superblock || piece.sequence != sequence || piece.pieces != self.pieces {
            return Err(ImageError::Unexpected {
                what: "the superblock, the sequence or the number of pieces",
            });
        }
        if self.groups.is_some_and(|groups| groups != (piece.group_shift, piece.groups_all)) {
            return Err(ImageError::Unexpected { what: "the groups differ from another piece's" });
        }
        let before = self.covered.range(..piece.groups.end).next_back();
        if before.is_some_and(|(_, &end)| end > piece.groups.start) {
            return Err(ImageError::Unexpected { what: "another piece covered the same groups" });
        }
        piece.check(&self.image)?;
        self.groups = Some((piece.group_shift, piece.groups_all));
        self.covered.insert(piece.groups.start, piece.groups.end);
        for record in piece.records() {
            let record = record?;
            if record.is_incomplete {
                self.image.mark_incomplete(piece.blocks_of(record.group..record.group + 1));
            }
            for span in record.spans() {
                let freed = self.image.free(piece.run(record.group, span));
                assert!(freed.is_ok(), "a checked piece does not fit the image: {freed:?}");
            }
        }
        Ok(())
    }

    /// The image, and the groups that no piece covered: incomplete in the image, without free blocks.
    #[must_use]
    pub fn finish(mut self) -> (FreeImage, Vec<LostGroups>) {
        let own = (self.image.group_blocks().ilog2(), self.image.geometry().groups() as u32);
        let (shift, groups) = self.groups.unwrap_or(own);
        let mut lost = Vec::new();
        let mut next = 0;
        for (first, end) in self.covered.into_iter().chain([(groups, groups)]) {
            if next < first {
                lost.push(LostGroups { groups: next..first, blocks: blocks_of(next..first, shift) });
            }
            next = end;
        }
        for lost in &lost {
            self.image.mark_incomplete(lost.blocks.clone());
        }
        (self.image, lost)
    }
}

fn blocks_of(groups: Range<u32>, shift: u32) -> Range<u64> {
    u64::from(groups.start) << shift..u64::from(groups.end) << shift
}

/// The number of the superblock that publishes the snapshot of a piece, and the snapshot's number of pieces; `None` if `bytes` does
/// not start with a whole piece. Accepts any device: this recognises a new layout.
#[must_use]
pub fn published_piece(bytes: &[u8]) -> Option<(u64, u32)> {
    let device: DeviceIdentity = bytes.get(16..32)?.try_into().ok()?;
    let piece = Piece::parse(bytes, &device).ok()?;
    Some((piece.superblock, piece.pieces))
}

/// A piece whose checksum and header are right.
struct Piece<'a> {
    group_shift: u32,
    superblock: u64,
    sequence: u32,
    pieces: u32,
    groups: Range<u32>,
    groups_all: u32,
    records: u32,
    body: Reader<'a>,
}

impl<'a> Piece<'a> {
    fn parse(bytes: &'a [u8], device: &DeviceIdentity) -> Result<Self, ImageError> {
        let start = open(bytes, PIECE_MAGIC, PIECE_VERSION, device, SNAPSHOT_PIECE_BYTES_MAX)?;
        let [shift, reserved] = start.own;
        if reserved != 0 || !start.bytes.is_multiple_of(BLOCK_BYTES) || !GROUP_SHIFTS.contains(&shift) {
            return Err(ImageError::Damaged { what: "the header of the piece" });
        }
        let mut reader = start.rest;
        let superblock = reader.u64()?;
        let (sequence, pieces) = (reader.u32()?, reader.u32()?);
        let groups = reader.u32()?..reader.u32()?;
        let (groups_all, records) = (reader.u32()?, reader.u32()?);
        if groups.is_empty() || groups.end > groups_all || sequence >= pieces {
            return Err(ImageError::Damaged { what: "the groups of the piece" });
        }
        let group_shift = u32::from(shift);
        Ok(Self { group_shift, superblock, sequence, pieces, groups, groups_all, records, body: reader })
    }

    /// Checks every record: order, place, shape, and that its runs are within the image.
    fn check(&self, image: &FreeImage) -> Result<(), ImageError> {
        let mut next_group = self.groups.start;
        let mut records = self.records();
        for record in records.by_ref() {
            let record = record?;
            if record.group < next_group || record.group >= self.groups.end {
                return Err(ImageError::Damaged { what: "the order of the groups" });
            }
            next_group = record.group + 1;
            record.check(1 << self.group_shift)?;
            for span in record.spans() {
                let outside = ImageError::Damaged { what: "a run after the end of the space" };
                image.check_free(self.run(record.group, span)).map_err(|_| outside)?;
            }
        }
        if records.body.rest().iter().any(|&byte| byte != 0) {
            return Err(ImageError::Damaged { what: "bytes after the last group" });
        }
        Ok(())
    }

    fn records(&self) -> Records<'a> {
        Records { body: self.body, left: self.records, bitmap_bytes: 1 << (self.group_shift - 3) }
    }

    fn blocks_of(&self, groups: Range<u32>) -> Range<u64> {
        blocks_of(groups, self.group_shift)
    }

    fn run(&self, group: u32, span: Span) -> Run {
        Run::new((u64::from(group) << self.group_shift) + u64::from(span.start), span.blocks)
    }
}

/// Iterator over the records of a piece; stops after the first error.
struct Records<'a> {
    body: Reader<'a>,
    left: u32,
    bitmap_bytes: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let record = self.read();
        if record.is_err() {
            self.left = 0;
        }
        Some(record)
    }
}

impl<'a> Records<'a> {
    fn read(&mut self) -> Result<Record<'a>, ImageError> {
        let mut head = Reader::new(self.body.bytes(GROUP_HEAD_BYTES)?);
        let (group, count, kind, flags) = (head.u32()?, head.u16()?, head.u8()?, head.u8()?);
        if flags & !FLAG_INCOMPLETE != 0 {
            return Err(ImageError::Damaged { what: "the flags of a group" });
        }
        let is_incomplete = flags & FLAG_INCOMPLETE != 0;
        let bytes = match kind {
            KIND_RUNS => usize::from(count) * GROUP_RUN_BYTES,
            KIND_BITMAP => self.bitmap_bytes,
            _ => return Err(ImageError::Damaged { what: "the kind of a group" }),
        };
        let is_bitmap = kind == KIND_BITMAP;
        Ok(Record { group, count, is_bitmap, is_incomplete, bytes: self.body.bytes(bytes)? })
    }
}

/// The free runs of one group, as stored in a piece.
struct Record<'a> {
    group: u32,
    count: u16,
    is_bitmap: bool,
    is_incomplete: bool,
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    fn spans(&self) -> Spans<'a> {
        if self.is_bitmap {
            Spans::Bitmap { bytes: self.bytes, block: 0 }
        } else {
            Spans::Runs(Reader::new(self.bytes))
        }
    }

    /// Checks for ascending runs that do not touch, within the group, in the announced number, in the smaller
    /// form.
    fn check(&self, group_blocks: u32) -> Result<(), ImageError> {
        let wrong = ImageError::Damaged { what: "the runs of a group" };
        let mut least = 0;
        let mut count = 0;
        for span in self.spans() {
            if span.start < least || span.end() > group_blocks {
                return Err(wrong);
            }
            least = span.end() + 1;
            count += 1;
        }
        let is_smaller = (count * GROUP_RUN_BYTES > group_blocks as usize / 8) == self.is_bitmap;
        let says_something = count > 0 || self.is_incomplete;
        if count == usize::from(self.count) && is_smaller && says_something { Ok(()) } else { Err(wrong) }
    }
}

/// Iterator over the runs of a record.
enum Spans<'a> {
    Runs(Reader<'a>),
    Bitmap { bytes: &'a [u8], block: u32 },
}

impl Iterator for Spans<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        match self {
            Self::Runs(runs) => runs.u32().ok().map(Span::unpack),
            Self::Bitmap { bytes, block } => {
                let start = next_bit(bytes, *block, true)?;
                let end = next_bit(bytes, start, false).unwrap_or(bytes.len() as u32 * 8);
                *block = end;
                Some(Span { start, blocks: end - start })
            }
        }
    }
}

/// The first bit at or after `from` that is set, or not set.
fn next_bit(bytes: &[u8], from: u32, is_set: bool) -> Option<u32> {
    let flip = if is_set { 0 } else { 0xFF };
    let first = from as usize / 8;
    let mut mask = 0xFF_u8 << (from % 8);
    for (index, &byte) in bytes.iter().enumerate().skip(first) {
        let bits = (byte ^ flip) & mask;
        if bits != 0 {
            return Some(index as u32 * 8 + bits.trailing_zeros());
        }
        mask = 0xFF;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::format::{PIECE_HEADER_BYTES, seal};
    use super::*;

    const DEVICE: DeviceIdentity = *b"0123456789abcdef";

    fn image(blocks_max: u64, group_blocks: u32, runs: &[(u64, u32)]) -> FreeImage {
        let mut image = FreeImage::new(blocks_max, group_blocks);
        runs.iter().for_each(|&(block, blocks)| image.free(Run::new(block, blocks)).unwrap());
        image
    }

    /// An image of `groups` groups of 65,536 blocks with `runs` runs each, spread over the group.
    fn shredded(groups: u64, runs: u64) -> FreeImage {
        let mut image = FreeImage::new(groups << 16, 1 << 16);
        for run in 0..groups * runs {
            let start = ((run / runs) << 16) + run % runs * (65_536 / runs);
            image.free(Run::new(start, 1 + (run % 2) as u32)).unwrap();
        }
        image
    }

    fn pieces(image: &FreeImage) -> Vec<Vec<u8>> {
        image.snapshot(DEVICE, 5).map(|piece| piece.bytes).collect()
    }

    fn read_into(image: FreeImage, pieces: &[Vec<u8>]) -> (FreeImage, Vec<LostGroups>, usize) {
        let mut reader = SnapshotReader::new(image, DEVICE, 5, pieces.len() as u32);
        let results = pieces.iter().enumerate().map(|(sequence, bytes)| reader.piece(sequence as u32, bytes));
        let bad = results.filter(|result| result.is_err()).count();
        let (image, lost) = reader.finish();
        (image, lost, bad)
    }

    fn read(like: &FreeImage, pieces: &[Vec<u8>]) -> (FreeImage, Vec<LostGroups>, usize) {
        read_into(FreeImage::new(like.blocks_max(), like.group_blocks()), pieces)
    }

    #[test]
    fn full_empty_and_fragmented_images_round_trip() {
        for image in [
            image(1000, 16, &[]),
            image(1000, 16, &[(0, 1000)]),
            image(1000, 16, &[(0, 1), (2, 1), (4, 1), (999, 1)]),
            image(100_000, 65_536, &[(5, 70_000)]),
            shredded(40, 2047),
            shredded(40, 2048),
            shredded(40, 2049),
            shredded(9, 20_000),
        ] {
            let pieces = pieces(&image);
            assert_eq!(pieces.len(), image.snapshot(DEVICE, 5).len());
            assert!(
                pieces.iter().all(|piece| piece.len() <= SNAPSHOT_PIECE_BYTES_MAX && piece.len() % 4096 == 0)
            );
            assert_eq!(read(&image, &pieces), (image, vec![], 0));
        }
    }

    #[test]
    fn a_group_takes_the_smaller_of_both_forms() {
        let bytes =
            |runs| shredded(1, runs).snapshot(DEVICE, 5).map(|piece| piece.bytes.len()).sum::<usize>();
        assert_eq!(bytes(10), 4096);
        assert_eq!(bytes(2048), 12_288, "2,048 runs of 4 bytes, as large as a bitmap");
        assert_eq!(bytes(30_000), 12_288, "a bitmap");
    }

    #[test]
    fn pieces_are_filled_to_their_last_byte_and_no_further() {
        // 12 bytes a group: 5,456 of them and the header are exactly 64 KiB.
        let mut image = FreeImage::new(6000 * 64, 64);
        (0..6000).for_each(|group| image.free(Run::new(group * 64, 1)).unwrap());
        let blocks: Vec<_> = image.snapshot(DEVICE, 5).map(|piece| piece.blocks).collect();
        assert_eq!(blocks, [0..5456 * 64, 5456 * 64..6000 * 64]);
        assert_eq!(read(&image, &pieces(&image)), (image, vec![], 0));
    }

    #[test]
    fn bad_piece_loses_only_its_groups() {
        let image = shredded(30, 2000);
        let expected: Vec<_> = image.snapshot(DEVICE, 5).collect();
        assert!(expected.len() >= 4, "{} pieces", expected.len());
        for bad in 0..expected.len() {
            let mut pieces = pieces(&image);
            pieces[bad][4090] ^= 1;
            let (read, lost, count) = read(&image, &pieces);
            assert_eq!(count, 1);
            let lost: Vec<_> = lost.into_iter().map(|lost| lost.blocks).collect();
            let range = expected[bad].blocks.clone();
            assert_eq!(lost, std::slice::from_ref(&range));
            let kept: Vec<Run> = image.runs().filter(|run| !range.contains(&run.block)).collect();
            assert_eq!(read.runs().collect::<Vec<_>>(), kept);
            assert_eq!(read.incomplete().map(|run| run.block..run.end()).collect::<Vec<_>>(), [range]);
        }
    }

    #[test]
    fn without_any_piece_nothing_is_known() {
        let image = image(1000, 16, &[(0, 500)]);
        let (read, lost, _) = read(&image, &[vec![0; 4096]]);
        assert_eq!(lost, [LostGroups { groups: 0..63, blocks: 0..1008 }]);
        assert_eq!(read.free_blocks(), 0);
        assert_eq!(read.incomplete().collect::<Vec<_>>(), [Run::new(0, 1000)]);
    }

    #[test]
    fn incomplete_groups_stay_incomplete_through_a_snapshot() {
        let mut image = image(1000, 16, &[(0, 40)]);
        image.mark_incomplete(20..21);
        image.mark_incomplete(500..501);
        assert_eq!(read(&image, &pieces(&image)), (image, vec![], 0));
    }

    #[test]
    fn a_snapshot_of_other_groups_is_read_after_the_device_grew() {
        let small = image(1000, 16, &[(3, 40), (990, 10)]);
        let (grown, lost, bad) = read_into(FreeImage::new(5000, 64), &pieces(&small));
        assert_eq!((lost, bad), (vec![], 0));
        assert_eq!(grown.runs().collect::<Vec<_>>(), [Run::new(3, 40), Run::new(990, 10)]);
        let (shrunk, lost, bad) = read_into(FreeImage::new(995, 64), &pieces(&small));
        assert_eq!((shrunk.free_blocks(), lost.len(), bad), (0, 1, 1), "a run reaches behind the end");
    }

    #[test]
    fn pieces_of_another_snapshot_device_or_place_are_refused() {
        let image = shredded(30, 2000);
        let pieces = pieces(&image);
        let count = pieces.len() as u32;
        let empty = || FreeImage::new(30 << 16, 1 << 16);
        let unexpected = |result| matches!(result, Err(ImageError::Unexpected { .. }));
        assert!(unexpected(SnapshotReader::new(empty(), DEVICE, 6, count).piece(0, &pieces[0])));
        assert!(unexpected(SnapshotReader::new(empty(), DEVICE, 5, count + 1).piece(0, &pieces[0])));
        assert!(unexpected(SnapshotReader::new(empty(), DEVICE, 5, count).piece(1, &pieces[0])));
        let mut twice = SnapshotReader::new(empty(), DEVICE, 5, count);
        twice.piece(0, &pieces[0]).unwrap();
        assert!(unexpected(twice.piece(0, &pieces[0])));
        // The same snapshot's number, over groups of another size.
        let other: Vec<_> = shredded(30, 2000).snapshot(DEVICE, 5).map(|piece| piece.bytes).collect();
        let mut other = other[1].clone();
        other[10] = 15;
        seal(&mut other);
        let mut mixed = SnapshotReader::new(empty(), DEVICE, 5, count);
        mixed.piece(0, &pieces[0]).unwrap();
        let differs = ImageError::Unexpected { what: "the groups differ from another piece's" };
        assert_eq!(mixed.piece(1, &other), Err(differs));
        let foreign = SnapshotReader::new(empty(), [1; 16], 5, count).piece(0, &pieces[0]);
        assert_eq!(foreign, Err(ImageError::Foreign));
    }

    #[test]
    fn every_flipped_bit_and_truncation_is_detected() {
        let image = image(1000, 16, &[(0, 1), (2, 1), (4, 1), (40, 3), (999, 1)]);
        let piece = pieces(&image).remove(0);
        let read = |bytes: &[u8]| SnapshotReader::new(FreeImage::new(1000, 16), DEVICE, 5, 1).piece(0, bytes);
        assert_eq!(read(&piece), Ok(()));
        for cut in 0..piece.len() {
            assert!(read(&piece[..cut]).is_err(), "cut at {cut}");
        }
        for bit in 0..piece.len() * 8 {
            let mut bad = piece.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(read(&bad), Err(ImageError::Damaged { .. })), "bit {bit}");
        }
    }

    #[test]
    fn contents_that_no_writer_makes_are_damage_even_with_a_valid_checksum() {
        // Group 0: runs 1+2 and 8+4 as a bitmap (two bytes); group 2: a whole run.
        let image = image(1000, 16, &[(1, 2), (8, 4), (32, 16)]);
        let piece = pieces(&image).remove(0);
        let read = |change: &dyn Fn(&mut [u8])| {
            let mut bytes = piece.clone();
            change(&mut bytes);
            seal(&mut bytes);
            SnapshotReader::new(FreeImage::new(1000, 16), DEVICE, 5, 1).piece(0, &bytes)
        };
        let first = PIECE_HEADER_BYTES;
        assert_eq!(read(&|_| ()), Ok(()));
        assert_eq!(piece[first + 8..first + 10], [0b0000_0110, 0b0000_1111]);
        let changes: [(&str, usize, u8); 12] = [
            ("a group shift of 3", 10, 3),
            ("a reserved byte", 11, 1),
            ("no groups", 52, 0),
            ("more groups than there are", 52, 64),
            ("a record less", 60, 1),
            ("a record more", 60, 3),
            ("a group behind the next", first, 2),
            ("another number of runs", first + 4, 3),
            ("an unknown kind", first + 6, 2),
            ("an unknown flag", first + 7, 2),
            ("bytes after the last group", piece.len() - 1, 1),
            ("a third run", first + 8, 0b0100_0110),
        ];
        for (what, at, byte) in changes {
            let result = read(&|bytes| bytes[at] = byte);
            assert!(matches!(result, Err(ImageError::Damaged { .. })), "{what}: {result:?}");
        }
        assert_eq!(read(&|bytes| bytes[8] = 9), Err(ImageError::Version { found: 9 }));
        let image = self::image(1000, 128, &[(0, 1), (2, 1)]);
        let mut touching = pieces(&image).remove(0);
        assert_eq!(touching[first + 8..first + 16], [0, 0, 0, 0, 0, 0, 2, 0]);
        touching[first + 14] = 1;
        seal(&mut touching);
        let result = SnapshotReader::new(FreeImage::new(1000, 128), DEVICE, 5, 1).piece(0, &touching);
        assert!(matches!(result, Err(ImageError::Damaged { .. })), "runs that touch: {result:?}");
    }

    #[test]
    fn golden_bytes_of_version_1() {
        // Bytes that a release wrote stay readable: never change these, add a version. Zeros at the end are cut.
        let mut image = image(100, 16, &[(1, 2), (8, 4), (32, 20), (99, 1)]);
        image.mark_incomplete(70..71);
        let piece = pieces(&image).remove(0);
        let used = piece.iter().rposition(|&byte| byte != 0).unwrap() + 1;
        let hex: String = piece[..used].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, include_str!("../../testdata/snapshot_piece_v1.hex").trim());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn random_images_round_trip(
            group_shift in 4_u32..=16,
            steps in prop::collection::vec((1_u64..400, 1_u32..300), 0..400),
            lost in prop::collection::vec(0_u64..100_000, 0..4),
        ) {
            let mut image = FreeImage::new(100_000, 1 << group_shift);
            let mut end = 0;
            for (gap, blocks) in steps {
                let run = Run::new(end + gap, blocks);
                if run.end() > 100_000 { break; }
                image.free(run).unwrap();
                end = run.end();
            }
            lost.iter().for_each(|&block| image.mark_incomplete(block..block + 1));
            let (read, lost, bad) = read(&image, &pieces(&image));
            prop_assert_eq!((lost.len(), bad), (0, 0));
            prop_assert_eq!(read, image);
        }

        #[test]
        fn random_bodies_with_valid_checksums_never_panic(
            header in prop::collection::vec((0_usize..PIECE_HEADER_BYTES, any::<u8>()), 0..6),
            body in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 0..200),
        ) {
            let image = image(1000, 16, &[(1, 2), (8, 4), (32, 16)]);
            let mut bytes = pieces(&image).remove(0);
            bytes[PIECE_HEADER_BYTES..][..body.len()].copy_from_slice(&body);
            header.iter().for_each(|&(at, byte)| bytes[at] = byte);
            seal(&mut bytes);
            let mut reader = SnapshotReader::new(FreeImage::new(1000, 16), DEVICE, 5, 1);
            let result = reader.piece(0, &bytes);
            let (read, lost) = reader.finish();
            if result.is_err() {
                prop_assert_eq!(read.free_blocks(), 0, "nothing of a bad piece counts");
                prop_assert_eq!(lost.len(), 1);
            }
            let raw = SnapshotReader::new(FreeImage::new(1000, 16), DEVICE, 5, 1).piece(0, &body);
            prop_assert!(raw.is_err());
        }
    }
}
