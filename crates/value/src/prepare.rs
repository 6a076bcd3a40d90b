//! Prepares a value for its write: in its record, or in aligned memory for its own extents.
//!
//! A put copies its value once, here: from the received chunks into the memory that the device writes, forming the
//! checksums of the units on the way. If the value is not too large and has one run, that memory is frames of the pool,
//! and the value is resident when it is durable. A value that was received into such frames (the engine's `ReceiveBuffer`)
//! is not copied at all.

use std::sync::Arc;

use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::{BLOCK_BYTES, Crc32c, Run, blocks_for};
use shoal_buffer::Buffer;
use shoal_common::options::Tuning;
use shoal_device::{Device, IoBuf, memory::Guarded};
use shoal_log::{Kept, ValueWrite};
use shoal_pool::{Filled, Fresh, Pool, WriteMemory};
use shoal_space_manager::Extents;
use smallvec::SmallVec;

use crate::entry::{Entry, Home, INLINE_RUNS_MAX, LEAF_ENTRY_BYTES_MAX, Meta, meta_fits_inline};
use crate::manifest::{Manifest, manifest_bytes};
use crate::packed::packs;

/// Most bytes of an entry besides key, metadata and inline value: version, flags, times and lengths.
const ENTRY_FIXED_BYTES: usize = 8 + 1 + 8 + 8 + 10 + 5;

/// Values up to this many times the log's limit ride in the log if their own blocks would waste ...
const WASTEFUL_LENGTHS: usize = 2;
/// ... at least this share of their length.
const WASTEFUL_SHARE: usize = 16;

/// The first place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Into its record, and to its leaf at the apply.
    Leaf,
    /// Into its record, and to extents at the apply.
    Log,
    /// To its own extents at once.
    Extents,
}

/// Chooses the placement of a value.
#[inline]
pub fn placement_of(key_bytes: usize, meta_bytes: usize, value_bytes: usize, tuning: &Tuning) -> Placement {
    let entry_bytes = ENTRY_FIXED_BYTES + key_bytes + meta_bytes + value_bytes;
    let in_leaf = meta_fits_inline(key_bytes, meta_bytes)
        && entry_bytes <= LEAF_ENTRY_BYTES_MAX
        && value_bytes <= tuning.leaf_value_bytes_max;
    if in_leaf {
        Placement::Leaf
    } else if meta_bytes + value_bytes <= tuning.log_value_bytes_max
        || is_wasteful(key_bytes, meta_bytes, value_bytes, tuning)
    {
        Placement::Log
    } else {
        Placement::Extents
    }
}

/// Returns true if a value slightly above the log's limit would waste a sixteenth of its length in its own blocks. It
/// rides in the log and is packed later: it is written twice, and takes less space.
#[inline]
fn is_wasteful(key_bytes: usize, meta_bytes: usize, value_bytes: usize, tuning: &Tuning) -> bool {
    let in_front = if meta_fits_inline(key_bytes, meta_bytes) { 0 } else { meta_bytes };
    let stored = in_front + value_bytes;
    let waste = stored.next_multiple_of(BLOCK_BYTES) - stored;
    stored <= WASTEFUL_LENGTHS * tuning.log_value_bytes_max
        && waste >= stored / WASTEFUL_SHARE
        && packs(key_bytes, stored)
}

/// Returns true if an inline body goes into its leaf; otherwise the apply allocates extents for it.
#[inline]
pub fn fits_leaf(key_bytes: usize, body_bytes: usize, entry: &Entry, tuning: &Tuning) -> bool {
    matches!(entry.meta, Meta::Inline(_))
        && 8 + key_bytes + body_bytes <= LEAF_ENTRY_BYTES_MAX
        && entry.value_bytes <= tuning.leaf_value_bytes_max as u64
}

/// The bytes of a value before they are written.
#[derive(Clone, Copy)]
pub enum ValueContent<'a> {
    /// As they were received.
    Buffer(&'a Buffer),
    /// In frames that may go to the device as they are: the value's bytes, then zeros.
    Filled {
        /// The frames.
        frames: &'a Filled,
        /// Bytes of the value in them.
        value_bytes: usize,
        /// The checksum of each unit.
        checksums: &'a [u32],
    },
}

impl<'a> From<&'a Buffer> for ValueContent<'a> {
    #[inline]
    fn from(value: &'a Buffer) -> Self {
        Self::Buffer(value)
    }
}

impl<'a> ValueContent<'a> {
    /// Bytes of the value.
    #[inline]
    pub fn byte_count(self) -> usize {
        match self {
            Self::Buffer(value) => value.len(),
            Self::Filled { value_bytes, .. } => value_bytes,
        }
    }

    /// Calls `show` with each piece, in order.
    pub fn each(self, mut show: impl FnMut(&'a [u8])) {
        match self {
            Self::Buffer(value) => value.chunks().for_each(show),
            Self::Filled { frames, value_bytes, .. } => {
                let mut left = value_bytes;
                for piece in frames.units().flatten() {
                    let count = left.min(piece.len());
                    show(&piece[..count]);
                    left -= count;
                }
            }
        }
    }
}

/// A value laid out over its extents.
pub struct LaidOut {
    /// The place of the value, for its entry.
    pub home: Home,
    /// The writes that bring its bytes there.
    pub writes: Vec<ValueWrite>,
    /// The frames that may stay in the pool once the value is durable.
    pub kept: Option<Kept>,
    /// Bytes that were copied for the value.
    pub copied: usize,
}

/// Lays `meta` and `value` out over the runs of `extents`; `manifest` is for a manifest. A value that has one run and
/// is not too large goes into frames of the pool.
pub fn lay_out(
    (device, pool): (&Device, &Pool),
    meta: &[u8],
    value: ValueContent<'_>,
    data: &Arc<Extents>,
    manifest: Option<&Arc<Extents>>,
) -> LaidOut {
    let stored = meta.len() + value.byte_count();
    let room: u64 = data.runs().iter().map(|run| u64::from(run.blocks)).sum();
    assert!(room >= blocks_for(stored as u64), "the extents have room for the value (R7)");
    let guarded = |memory| Guarded { memory, guard: data.clone() };
    let (mut writes, checksums, kept, copied): (Vec<ValueWrite>, _, _, _) = match data.runs() {
        &[run] if let Some((frames, checksums, copied)) = in_frames(pool, run, meta, value) => {
            let write = device.write(run.block, guarded(frames.memory()));
            let kept = Kept::new(frames, run.block, stored, checksums.clone());
            (vec![write], checksums, Some(kept), copied)
        }
        runs => {
            let mut filler = Filler::new(runs);
            filler.take(meta);
            value.each(|chunk| filler.take(chunk));
            assert_eq!(filler.taken, stored as u64, "all bytes are laid out");
            let (bufs, checksums) = filler.finish();
            let write =
                |(run, memory): (&Run, IoBuf)| device.write(run.block, guarded(WriteMemory::Own(memory)));
            (runs.iter().zip(bufs).map(write).collect(), checksums, None, stored)
        }
    };
    let home = home_of(device, data.runs(), 0, checksums, manifest, &mut writes);
    LaidOut { home, writes, kept, copied }
}

/// The value in frames, the checksums of its units, and the number of copied bytes; `None` if the pool has no frames
/// for it.
fn in_frames(
    pool: &Pool,
    run: Run,
    meta: &[u8],
    value: ValueContent<'_>,
) -> Option<(Filled, Vec<u32>, usize)> {
    let stored = meta.len() + value.byte_count();
    if let (ValueContent::Filled { frames, checksums, .. }, []) = (value, meta) {
        assert_eq!(frames.byte_count(), run.blocks as usize * BLOCK_BYTES, "the frames are of this value");
        return Some((frames.clone(), checksums.to_vec(), 0));
    }
    let mut frames = pool.fresh(run.blocks as usize)?;
    let mut sources: SmallVec<[&[u8]; 8]> = SmallVec::from_slice(&[meta]);
    value.each(|chunk| sources.push(chunk));
    let checksums = fill(&mut frames, sources.into_iter());
    Some((frames.filled(), checksums, stored))
}

/// Fills frames with `sources` and zeros after them; returns the checksums of the units.
fn fill<'a>(frames: &mut Fresh, mut sources: impl Iterator<Item = &'a [u8]>) -> Vec<u32> {
    let mut rest: &[u8] = &[];
    let mut checksums = Vec::new();
    for unit in frames.units_mut() {
        let mut checksum = Crc32c::new();
        for mut piece in unit {
            while !piece.is_empty() {
                if rest.is_empty() {
                    let Some(next) = sources.next() else { break };
                    rest = next;
                    continue;
                }
                let count = rest.len().min(piece.len());
                let (now, later) = rest.split_at(count);
                let (room, behind) = piece.split_at_mut(count);
                room.copy_from_slice(now);
                checksum.update(now);
                (rest, piece) = (later, behind);
            }
            piece.fill(0);
        }
        checksums.push(checksum.finish());
    }
    assert!(rest.is_empty() && sources.next().is_none(), "the value fits in its frames");
    checksums
}

/// Forms the checksums of the units of a value from its bytes in order.
#[derive(Debug, Default)]
pub struct UnitChecksums {
    ended: Vec<u32>,
    unit: Crc32c,
    /// Bytes of the unit that is not whole.
    unit_bytes: usize,
}

impl UnitChecksums {
    /// Adds the next bytes of the value.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(VALUE_UNIT_BYTES - self.unit_bytes));
            self.unit.update(now);
            self.unit_bytes += now.len();
            if self.unit_bytes == VALUE_UNIT_BYTES {
                self.end_unit();
            }
            bytes = later;
        }
    }

    fn end_unit(&mut self) {
        assert!((1..=VALUE_UNIT_BYTES).contains(&self.unit_bytes), "a checksum is of a unit");
        self.ended.push(std::mem::take(&mut self.unit).finish());
        self.unit_bytes = 0;
    }

    /// The checksum of each unit; the last unit may be a short one.
    pub fn finish(mut self) -> Vec<u32> {
        if self.unit_bytes > 0 {
            self.end_unit();
        }
        self.ended
    }
}

/// The home of bytes in `runs` with these checksums: in the entry, or in a manifest, whose write is added to `writes`.
pub fn home_of(
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
    write_manifest(device, Manifest { runs: runs.to_vec(), checksums }.encode(), extents, writes)
}

/// The home of a value whose manifest is these bytes with their checksum; the writes of the manifest are added to `writes`.
pub fn write_manifest(
    device: &Device,
    (bytes, checksum): (Vec<u8>, u32),
    extents: &Arc<Extents>,
    writes: &mut Vec<ValueWrite>,
) -> Home {
    let mut at = 0;
    for run in extents.runs() {
        let end = (at + run.blocks as usize * BLOCK_BYTES).min(bytes.len());
        let mut memory = IoBuf::new(run.blocks as usize);
        memory[..end - at].copy_from_slice(&bytes[at..end]);
        let memory = WriteMemory::Own(memory);
        writes.push(device.write(run.block, Guarded { memory, guard: extents.clone() }));
        at = end;
    }
    assert_eq!(at, bytes.len(), "the manifest fits in its runs");
    Home::Manifest { runs: SmallVec::from_slice(extents.runs()), bytes: bytes.len() as u32, checksum }
}

/// Blocks of a manifest for a value with this many runs and units.
#[inline]
pub fn manifest_blocks(runs: usize, units: usize) -> u64 {
    if runs > INLINE_RUNS_MAX || units > INLINE_RUNS_MAX {
        blocks_for(manifest_bytes(runs, units) as u64)
    } else {
        0
    }
}

/// Fills the memory of several runs, one after the other, and forms the checksum of every unit.
pub struct Filler {
    bufs: Vec<IoBuf>,
    current: usize,
    at: usize,
    taken: u64,
    checksums: UnitChecksums,
}

impl Filler {
    /// Memory for `runs`, without bytes.
    pub fn new(runs: &[Run]) -> Self {
        Self {
            bufs: runs.iter().map(|run| IoBuf::unfilled(run.blocks as usize)).collect(),
            current: 0,
            at: 0,
            taken: 0,
            checksums: UnitChecksums::default(),
        }
    }

    /// Appends `bytes`.
    pub fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.at == self.bufs[self.current].len() {
                self.current += 1;
                self.at = 0;
            }
            let buf = &mut self.bufs[self.current];
            // A piece is copied and summed while it is in the processor's cache.
            let count = bytes.len().min(buf.len() - self.at).min(VALUE_UNIT_BYTES);
            let (now, later) = bytes.split_at(count);
            buf[self.at..self.at + count].copy_from_slice(now);
            self.at += count;
            self.taken += count as u64;
            self.checksums.update(now);
            bytes = later;
        }
    }

    /// Bytes that were appended.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The filled memory, one buffer for each run up to the last byte's block, and the checksums of the units.
    pub fn finish(mut self) -> (Vec<IoBuf>, Vec<u32>) {
        self.bufs.truncate(self.current + 1);
        if let Some(buf) = self.bufs.get_mut(self.current) {
            buf.shorten(self.at.div_ceil(BLOCK_BYTES));
            // The memory was used before: bytes after the value's last byte must not reach the device.
            buf[self.at..].fill(0);
        }
        (self.bufs, self.checksums.finish())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shoal_base::checksum::crc32c;
    use shoal_testkit::bytes::patterned;

    use super::*;

    proptest! {
        /// Pieces of any length result in the checksums of the units.
        #[test]
        fn cuts_do_not_change_checksums(bytes in 0..200_000_usize, cut in 1..100_000_usize) {
            let value = patterned(bytes, cut);
            let mut checksums = UnitChecksums::default();
            value.chunks(cut).for_each(|piece| checksums.update(piece));
            let expected: Vec<u32> = value.chunks(VALUE_UNIT_BYTES).map(crc32c).collect();
            prop_assert_eq!(checksums.finish(), expected);
        }
    }

    #[test]
    fn the_way_of_a_value_is_that_of_its_length_and_its_waste() {
        let tuning = Tuning::default();
        let way = |bytes| placement_of(30, 0, bytes, &tuning);
        assert_eq!(way(1_000), Placement::Leaf);
        assert_eq!(way(1_025), Placement::Log);
        assert_eq!(way(16 << 10), Placement::Log);
        // Five blocks for a little more than four.
        assert_eq!(way((16 << 10) + 1), Placement::Log);
        assert_eq!(way(20 << 10), Placement::Extents);
        assert_eq!(way((20 << 10) - 1_300), Placement::Log);
        assert_eq!(way((20 << 10) - 1_100), Placement::Extents);
        assert_eq!(way((28 << 10) + 1), Placement::Log);
        assert_eq!(way(32 << 10), Placement::Extents);
        assert_eq!(way((32 << 10) + 1), Placement::Extents);
    }
}
