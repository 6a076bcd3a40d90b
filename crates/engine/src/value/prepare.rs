//! A value on its way in: into its record, or into aligned memory for extents of its own.
//!
//! The one copy that a put makes is here: from the received chunks into the memory that goes to the device, with the checksums of
//! the units formed on the way.

use std::sync::Arc;

use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::{BLOCK_BYTES, Crc32c, Run, blocks_for};
use shoal_buffer::Buffer;
use shoal_device::{Device, IoBuf, memory::Guarded};
use smallvec::SmallVec;

use super::manifest::{Manifest, manifest_bytes};
use crate::entry::{Entry, Home, INLINE_RUNS_MAX, LEAF_ENTRY_BYTES_MAX, Meta, meta_fits_inline};
use crate::log::commit::ValueWrite;
use crate::options::Tuning;
use crate::packed::packs;
use crate::space::Extents;

/// Bytes of an entry besides key, metadata and inline value, at most: version, flags, times and lengths.
const ENTRY_FIXED_BYTES: usize = 8 + 1 + 8 + 8 + 10 + 5;

/// Values up to so many times the length that rides in the log may do so because of what they waste otherwise ...
const WASTEFUL_LENGTHS: usize = 2;
/// ... which is at least this share of their length.
const WASTEFUL_SHARE: usize = 16;

/// Where a value goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Into its record, and to its leaf at the apply.
    Leaf,
    /// Into its record, and to extents at the apply.
    Log,
    /// To extents of its own at once.
    Extents,
}

/// Chooses the way of a value.
pub(crate) fn way_of(key_bytes: usize, meta_bytes: usize, value_bytes: usize, tuning: &Tuning) -> Way {
    let entry_bytes = ENTRY_FIXED_BYTES + key_bytes + meta_bytes + value_bytes;
    let in_leaf = meta_fits_inline(key_bytes, meta_bytes)
        && entry_bytes <= LEAF_ENTRY_BYTES_MAX
        && value_bytes <= tuning.leaf_value_bytes_max;
    if in_leaf {
        Way::Leaf
    } else if meta_bytes + value_bytes <= tuning.log_value_bytes_max
        || is_wasteful(key_bytes, meta_bytes, value_bytes, tuning)
    {
        Way::Log
    } else {
        Way::Extents
    }
}

/// Whether a value that is a little too long for the log would lose so much in blocks of its own that it rides there all
/// the same, and goes home packed: it is written twice, and takes a sixteenth less room.
fn is_wasteful(key_bytes: usize, meta_bytes: usize, value_bytes: usize, tuning: &Tuning) -> bool {
    let in_front = if meta_fits_inline(key_bytes, meta_bytes) { 0 } else { meta_bytes };
    let stored = in_front + value_bytes;
    let waste = stored.next_multiple_of(BLOCK_BYTES) - stored;
    stored <= WASTEFUL_LENGTHS * tuning.log_value_bytes_max
        && waste >= stored / WASTEFUL_SHARE
        && packs(key_bytes, stored)
}

/// Whether an inline body goes into its leaf; otherwise the apply gives it extents.
pub(crate) fn fits_leaf(key_bytes: usize, body_bytes: usize, entry: &Entry, tuning: &Tuning) -> bool {
    matches!(entry.meta, Meta::Inline(_))
        && 8 + key_bytes + body_bytes <= LEAF_ENTRY_BYTES_MAX
        && entry.value_bytes <= tuning.leaf_value_bytes_max as u64
}

/// Lays `meta` and `value` out over the runs of `extents`, the last `manifest_blocks` of which are for a manifest: gives the
/// home, and the writes that bring the bytes there.
pub(crate) fn lay_out(
    device: &Device,
    meta: &[u8],
    value: &Buffer,
    data: &Arc<Extents>,
    manifest: Option<&Arc<Extents>>,
) -> (Home, Vec<ValueWrite>) {
    let stored = (meta.len() + value.len()) as u64;
    let mut filler = Filler::new(data.runs());
    filler.take(meta);
    for chunk in value.chunks() {
        filler.take(chunk);
    }
    assert_eq!(filler.taken, stored, "all bytes are laid out");
    let (bufs, checksums) = filler.finish();
    let mut writes: Vec<ValueWrite> = data
        .runs()
        .iter()
        .zip(bufs)
        .map(|(run, memory)| device.write(run.block, Guarded { memory, guard: data.clone() }))
        .collect();
    let home = home_of(device, data.runs(), 0, checksums, manifest, &mut writes);
    (home, writes)
}

/// The home of bytes in `runs` with these checksums, in the entry or in a manifest, whose write is added to `writes`.
pub(crate) fn home_of(
    device: &Device,
    runs: &[Run],
    offset: u16,
    checksums: Vec<u32>,
    manifest: Option<&Arc<Extents>>,
    writes: &mut Vec<ValueWrite>,
) -> Home {
    let Some(extents) = manifest else {
        assert!(runs.len() <= INLINE_RUNS_MAX && checksums.len() <= INLINE_RUNS_MAX, "the entry has room");
        let checksums = SmallVec::from_vec(checksums);
        return Home::Extents { offset, runs: SmallVec::from_slice(runs), checksums };
    };
    let (bytes, checksum) = Manifest { runs: runs.to_vec(), checksums }.encode();
    let mut at = 0;
    for run in extents.runs() {
        let end = (at + run.blocks as usize * BLOCK_BYTES).min(bytes.len());
        let mut memory = IoBuf::new(run.blocks as usize);
        memory[..end - at].copy_from_slice(&bytes[at..end]);
        writes.push(device.write(run.block, Guarded { memory, guard: extents.clone() }));
        at = end;
    }
    assert_eq!(at, bytes.len(), "the manifest fits in its runs");
    Home::Manifest { runs: SmallVec::from_slice(extents.runs()), bytes: bytes.len() as u32, checksum }
}

/// Blocks of a manifest for a value of so many runs and units.
pub(crate) fn manifest_blocks(runs: usize, units: usize) -> u64 {
    if runs > INLINE_RUNS_MAX || units > INLINE_RUNS_MAX {
        blocks_for(manifest_bytes(runs, units) as u64)
    } else {
        0
    }
}

/// Fills the memory of several runs one after the other and forms the checksum of every unit.
pub(crate) struct Filler {
    bufs: Vec<IoBuf>,
    current: usize,
    at: usize,
    taken: u64,
    unit: Crc32c,
    unit_bytes: usize,
    checksums: Vec<u32>,
}

impl Filler {
    pub(crate) fn new(runs: &[Run]) -> Self {
        Self {
            bufs: runs.iter().map(|run| IoBuf::unfilled(run.blocks as usize)).collect(),
            current: 0,
            at: 0,
            taken: 0,
            unit: Crc32c::new(),
            unit_bytes: 0,
            checksums: Vec::new(),
        }
    }

    /// Copies `bytes` behind what was taken before.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.at == self.bufs[self.current].len() {
                self.current += 1;
                self.at = 0;
            }
            let buf = &mut self.bufs[self.current];
            let count = bytes.len().min(buf.len() - self.at).min(VALUE_UNIT_BYTES - self.unit_bytes);
            let (now, later) = bytes.split_at(count);
            buf[self.at..self.at + count].copy_from_slice(now);
            self.at += count;
            self.taken += count as u64;
            self.unit.update(now);
            self.unit_bytes += count;
            if self.unit_bytes == VALUE_UNIT_BYTES {
                self.end_unit();
            }
            bytes = later;
        }
    }

    fn end_unit(&mut self) {
        self.checksums.push(std::mem::take(&mut self.unit).finish());
        self.unit_bytes = 0;
    }

    /// The filled memory, a buffer a run, and the checksums of the units.
    pub(crate) fn finish(mut self) -> (Vec<IoBuf>, Vec<u32>) {
        if self.unit_bytes > 0 {
            self.end_unit();
        }
        // The memory was used before: what is behind the last byte must not reach the device.
        for buf in self.bufs.iter_mut().skip(self.current) {
            buf[std::mem::take(&mut self.at)..].fill(0);
        }
        (self.bufs, self.checksums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_a_value_is_that_of_its_length_and_its_waste() {
        let tuning = Tuning::default();
        let way = |bytes| way_of(30, 0, bytes, &tuning);
        assert_eq!(way(1_000), Way::Leaf);
        assert_eq!(way(1_025), Way::Log);
        assert_eq!(way(16 << 10), Way::Log);
        // Five blocks for a little more than four.
        assert_eq!(way((16 << 10) + 1), Way::Log);
        assert_eq!(way(20 << 10), Way::Extents);
        assert_eq!(way((20 << 10) - 1_300), Way::Log);
        assert_eq!(way((20 << 10) - 1_100), Way::Extents);
        assert_eq!(way((28 << 10) + 1), Way::Log);
        assert_eq!(way(32 << 10), Way::Extents);
        assert_eq!(way((32 << 10) + 1), Way::Extents);
    }
}
