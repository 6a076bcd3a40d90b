//! [`SnapshotWriter`]: an image as pieces of bytes, one after the other. Format: `docs/format/space.md`.

use std::ops::Range;

use shoal_base::BLOCK_BYTES;

use super::format::{
    FLAG_INCOMPLETE, GROUP_HEAD_BYTES, GROUP_RUN_BYTES, KIND_BITMAP, KIND_RUNS, PIECE_HEADER_BYTES,
    PIECE_MAGIC, PIECE_VERSION, SNAPSHOT_PIECE_BYTES_MAX, begin, seal,
};
use super::{DeviceIdentity, FreeImage};
use crate::group::GroupRuns;

/// One piece of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPiece {
    /// Its number, from 0.
    pub sequence: u32,
    /// The blocks of the groups that it covers, which are lost with it.
    pub blocks: Range<u64>,
    /// Its bytes: whole device blocks, at most [`SNAPSHOT_PIECE_BYTES_MAX`].
    pub bytes: Vec<u8>,
}

/// Iterator over the pieces of a snapshot; their number is known from the start (`len()`).
pub struct SnapshotWriter<'a> {
    image: &'a FreeImage,
    device: DeviceIdentity,
    superblock: u64,
    /// For each piece the first group after it.
    ends: Vec<usize>,
    next: usize,
}

impl FreeImage {
    /// A snapshot of the image as pieces of bytes, for the space root of superblock `superblock`.
    #[must_use]
    pub fn snapshot(&self, device: DeviceIdentity, superblock: u64) -> SnapshotWriter<'_> {
        SnapshotWriter::new(self, device, superblock)
    }
}

impl<'a> SnapshotWriter<'a> {
    fn new(image: &'a FreeImage, device: DeviceIdentity, superblock: u64) -> Self {
        let groups = image.geometry().groups();
        let mut ends = Vec::new();
        let mut bytes = PIECE_HEADER_BYTES;
        for group in 0..groups {
            let record = record_bytes(image, group);
            if bytes + record > SNAPSHOT_PIECE_BYTES_MAX {
                ends.push(group);
                bytes = PIECE_HEADER_BYTES;
            }
            bytes += record;
        }
        ends.push(groups);
        Self { image, device, superblock, ends, next: 0 }
    }

    fn piece(&self, sequence: usize) -> SnapshotPiece {
        let first = if sequence == 0 { 0 } else { self.ends[sequence - 1] };
        let groups = first..self.ends[sequence];
        let geometry = self.image.geometry();
        let mut bytes = begin(PIECE_MAGIC, PIECE_VERSION, [geometry.group_shift() as u8, 0], &self.device);
        bytes.extend_from_slice(&self.superblock.to_le_bytes());
        let records = groups.clone().filter(|&group| record_bytes(self.image, group) > 0).count();
        for number in [sequence, self.ends.len(), groups.start, groups.end, geometry.groups(), records] {
            bytes.extend_from_slice(&u32_of(number).to_le_bytes());
        }
        assert_eq!(bytes.len(), PIECE_HEADER_BYTES, "the header of a piece");
        for group in groups.clone() {
            put_record(&mut bytes, self.image, group);
        }
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        assert!(bytes.len() <= SNAPSHOT_PIECE_BYTES_MAX, "piece {sequence} has {} bytes", bytes.len());
        seal(&mut bytes);
        let block_of = |group: usize| ((group as u64) << geometry.group_shift()).min(geometry.blocks_max());
        SnapshotPiece {
            sequence: u32_of(sequence),
            blocks: block_of(groups.start)..block_of(groups.end),
            bytes,
        }
    }
}

impl Iterator for SnapshotWriter<'_> {
    type Item = SnapshotPiece;

    fn next(&mut self) -> Option<SnapshotPiece> {
        if self.next == self.ends.len() {
            return None;
        }
        let piece = self.piece(self.next);
        self.next += 1;
        Some(piece)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.ends.len() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for SnapshotWriter<'_> {}

/// Most pieces of a snapshot of a space of `blocks_max` blocks, none of them free from block `blocks` on. Groups after it may be
/// incomplete.
#[must_use]
pub fn snapshot_pieces_max(blocks: u64, blocks_max: u64, group_blocks: u32) -> u64 {
    let group = u64::from(group_blocks);
    let groups = blocks.div_ceil(group);
    let behind = blocks_max.div_ceil(group).saturating_sub(groups);
    let room = (SNAPSHOT_PIECE_BYTES_MAX - PIECE_HEADER_BYTES) as u64;
    let head = GROUP_HEAD_BYTES as u64;
    groups.div_ceil(room / (head + group / 8)) + behind.div_ceil(room / head)
}

/// Bytes of a group's record; 0 if nothing is free and the group is complete.
fn record_bytes(image: &FreeImage, group: usize) -> usize {
    let (runs, is_incomplete) = image.group(group);
    if runs.len() == 0 && !is_incomplete {
        return 0;
    }
    GROUP_HEAD_BYTES + (runs.len() * GROUP_RUN_BYTES).min(bitmap_bytes(image))
}

fn bitmap_bytes(image: &FreeImage) -> usize {
    image.group_blocks() as usize / 8
}

fn put_record(out: &mut Vec<u8>, image: &FreeImage, group: usize) {
    let (runs, is_incomplete) = image.group(group);
    if record_bytes(image, group) == 0 {
        return;
    }
    let is_bitmap = runs.len() * GROUP_RUN_BYTES > bitmap_bytes(image);
    let count = runs.len();
    assert!(count <= image.group_blocks() as usize / 2, "{count} runs in one group");
    out.extend_from_slice(&u32_of(group).to_le_bytes());
    out.extend_from_slice(&(count as u16).to_le_bytes());
    out.push(if is_bitmap { KIND_BITMAP } else { KIND_RUNS });
    out.push(if is_incomplete { FLAG_INCOMPLETE } else { 0 });
    if is_bitmap {
        put_bitmap(out, runs, bitmap_bytes(image));
    } else {
        runs.iter().for_each(|span| out.extend_from_slice(&span.pack().to_le_bytes()));
    }
}

fn put_bitmap(out: &mut Vec<u8>, runs: &GroupRuns, bytes: usize) {
    let start = out.len();
    out.resize(start + bytes, 0);
    for span in runs.iter() {
        for block in span.start..span.end() {
            out[start + block as usize / 8] |= 1 << (block % 8);
        }
    }
}

fn u32_of(number: usize) -> u32 {
    let Ok(number) = u32::try_from(number) else { panic!("{number} groups or pieces") };
    number
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shoal_base::Run;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn snapshot_piece_count_is_bounded(
            shift in 4_u32..=16,
            blocks in 1_u64..60_000,
            behind in 0_u64..1_000_000,
            step in 1_u64..4,
            lost in any::<bool>(),
        ) {
            let group = 1 << shift;
            let blocks_max = (blocks + behind).min(u64::from(group) * 40_000);
            let blocks = blocks.min(blocks_max);
            let mut image = FreeImage::new(blocks_max, group);
            for block in (0..blocks).step_by(step as usize) {
                image.free(Run::new(block, 1)).unwrap();
            }
            if lost {
                image.mark_incomplete(0..blocks_max);
            }
            let pieces = image.snapshot([0; 16], 1).len() as u64;
            let most = snapshot_pieces_max(blocks, blocks_max, group);
            prop_assert!(pieces <= most, "{pieces} pieces, at most {most}");
        }
    }

    /// All groups of the largest size are bitmaps: the bound is exact.
    #[test]
    fn the_bound_is_close() {
        const BLOCKS: u64 = 1 << 20;
        let mut image = FreeImage::new(BLOCKS, 1 << 16);
        (0..BLOCKS).step_by(2).for_each(|block| image.free(Run::new(block, 1)).unwrap());
        let pieces = image.snapshot([0; 16], 1).len() as u64;
        assert_eq!(snapshot_pieces_max(BLOCKS, BLOCKS, 1 << 16), pieces);
    }
}
