//! The manifest of a value that was joined from parts (`docs/format/object.md`): its segments are the parts, in their order, and the
//! metadata if it is stored before the value. Units start anew with each segment, so no value is copied.

use shoal_base::checksum::crc32c;
use shoal_base::codec::{Reader, Truncated};
use shoal_base::limits::{VALUE_BYTES_MAX, VALUE_UNIT_BYTES};
use shoal_base::{BLOCK_BYTES_U64, Run, blocks_for};
use shoal_common::upload::{ObjectPart, PARTS_MAX};
use smallvec::SmallVec;

const JOINED_MAGIC: u32 = 0x324E_4D53; // "SMN2"
const FIXED_BYTES: usize = 24;
const SEGMENT_BYTES: usize = 16;

/// Segments at most: the parts, and the metadata.
const SEGMENTS_MAX: usize = PARTS_MAX as usize + 1;
/// Runs of all segments at most.
const RUNS_MAX: usize = 1 << 16;
/// Units of all segments at most.
const UNITS_MAX: usize = VALUE_BYTES_MAX as usize / VALUE_UNIT_BYTES + SEGMENTS_MAX;
/// Most bytes of the note of a segment.
pub const NOTE_BYTES_MAX: usize = 48;
/// Bytes of a joined manifest at most.
pub(crate) const JOINED_BYTES_MAX: usize =
    joined_bytes(SEGMENTS_MAX, RUNS_MAX, UNITS_MAX, SEGMENTS_MAX * NOTE_BYTES_MAX);

const fn joined_bytes(segments: usize, runs: usize, units: usize, notes: usize) -> usize {
    FIXED_BYTES + SEGMENT_BYTES * segments + 12 * runs + 4 * units + notes
}

/// A part of a joined value, or the metadata before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestSegment {
    /// The number of the part; 0 for the metadata.
    pub number: u16,
    /// Stored bytes.
    pub bytes: u64,
    /// Byte of the first run at which they start.
    pub offset: u16,
    /// The number of its runs.
    pub runs: usize,
    /// The checksum attribute of the part.
    pub note: SmallVec<[u8; 16]>,
}

impl ManifestSegment {
    fn units(&self) -> u64 {
        self.bytes.div_ceil(VALUE_UNIT_BYTES as u64)
    }
}

/// The segments of a value, their runs and the checksums of their units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinedManifest {
    segments: Vec<ManifestSegment>,
    runs: Vec<Run>,
    checksums: Vec<u32>,
}

impl JoinedManifest {
    /// Adds the next segment, whose runs hold `bytes` stored bytes from byte `offset` of the first one on. [`check`](Self::check) the
    /// manifest after the last one.
    pub fn push(
        &mut self,
        (number, note): (u16, &[u8]),
        (bytes, offset): (u64, u16),
        runs: &[Run],
        checksums: &[u32],
    ) {
        let segment =
            ManifestSegment { number, bytes, offset, runs: runs.len(), note: SmallVec::from_slice(note) };
        self.segments.push(segment);
        self.runs.extend_from_slice(runs);
        self.checksums.extend_from_slice(checksums);
    }

    /// Adds the metadata before the parts.
    pub fn put_in_front(&mut self, bytes: u64, runs: &[Run], checksums: &[u32]) {
        self.segments.insert(0, ManifestSegment { bytes, runs: runs.len(), ..ManifestSegment::default() });
        self.runs.splice(0..0, runs.iter().copied());
        self.checksums.splice(0..0, checksums.iter().copied());
    }

    /// The segments.
    #[must_use]
    pub fn segments(&self) -> &[ManifestSegment] {
        &self.segments
    }

    /// The runs of all segments, in their order.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The checksums of all units, in their order.
    #[must_use]
    pub fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    /// The runs of the metadata: no part had them.
    #[must_use]
    pub fn runs_in_front(&self) -> &[Run] {
        let front = self.segments.first().filter(|segment| segment.number == 0);
        &self.runs[..front.map_or(0, |segment| segment.runs)]
    }

    /// Stored bytes of all segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// The parts of the value.
    #[must_use]
    pub fn parts(&self) -> Vec<ObjectPart> {
        let mut first = 0;
        let parts = self.segments.iter().filter(|segment| segment.number > 0);
        let part = |segment: &ManifestSegment| {
            let start = first;
            first += segment.bytes;
            let checksum = segment.note.to_vec();
            ObjectPart { number: segment.number, first: start, bytes: segment.bytes, checksum }
        };
        parts.map(part).collect()
    }

    /// The manifest's bytes and their checksum, which the entry holds.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, u32) {
        let notes: usize = self.segments.iter().map(|segment| segment.note.len()).sum();
        let bytes = joined_bytes(self.segments.len(), self.runs.len(), self.checksums.len(), notes);
        let mut out = Vec::with_capacity(bytes);
        let counts = [self.segments.len(), self.runs.len(), self.checksums.len(), notes, 0];
        out.extend_from_slice(&JOINED_MAGIC.to_le_bytes());
        counts.iter().for_each(|&count| out.extend_from_slice(&(count as u32).to_le_bytes()));
        for segment in &self.segments {
            out.extend_from_slice(&segment.bytes.to_le_bytes());
            for field in [segment.runs as u16, segment.number, segment.offset] {
                out.extend_from_slice(&field.to_le_bytes());
            }
            out.extend_from_slice(&[segment.note.len() as u8, 0]);
        }
        for run in &self.runs {
            out.extend_from_slice(&run.block.to_le_bytes());
            out.extend_from_slice(&run.blocks.to_le_bytes());
        }
        self.checksums.iter().for_each(|checksum| out.extend_from_slice(&checksum.to_le_bytes()));
        self.segments.iter().for_each(|segment| out.extend_from_slice(&segment.note));
        assert_eq!(out.len(), bytes, "a manifest has the length that its reader expects");
        let crc = crc32c(&out);
        (out, crc)
    }

    /// Returns true if `bytes` start as a joined manifest does.
    pub(crate) fn is_start_of(bytes: &[u8]) -> bool {
        Reader::new(bytes).u32() == Ok(JOINED_MAGIC)
    }

    /// The manifest in `bytes`, whose checksum was verified.
    ///
    /// # Errors
    /// [`Truncated`] if the bytes are no joined manifest.
    pub fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let magic = reader.u32()?;
        let mut counts = [0; 5];
        for count in &mut counts {
            *count = reader.u32()? as usize;
        }
        let [segments, runs, units, notes, zero] = counts;
        let are_possible = segments <= SEGMENTS_MAX
            && runs <= RUNS_MAX
            && units <= UNITS_MAX
            && notes <= SEGMENTS_MAX * NOTE_BYTES_MAX;
        if magic != JOINED_MAGIC
            || zero != 0
            || !are_possible
            || bytes.len() != joined_bytes(segments, runs, units, notes)
        {
            return Err(Truncated);
        }
        let mut note_bytes = Vec::with_capacity(segments);
        let mut manifest = Self::default();
        for _ in 0..segments {
            let (bytes, runs) = (reader.u64()?, usize::from(reader.u16()?));
            let (number, offset) = (reader.u16()?, reader.u16()?);
            note_bytes.push(usize::from(reader.u8()?));
            if reader.u8()? != 0 {
                return Err(Truncated);
            }
            manifest.segments.push(ManifestSegment { number, bytes, offset, runs, note: SmallVec::new() });
        }
        for _ in 0..runs {
            manifest.runs.push(Run::new(reader.u64()?, reader.u32()?));
        }
        for _ in 0..units {
            manifest.checksums.push(reader.u32()?);
        }
        for (segment, bytes) in manifest.segments.iter_mut().zip(note_bytes) {
            segment.note = SmallVec::from_slice(reader.bytes(bytes)?);
        }
        if !reader.is_empty() {
            return Err(Truncated);
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks that the numbers ascend, that each segment has room in its runs and a checksum for each unit, and that the counts of the
    /// whole are within their limits.
    ///
    /// # Errors
    /// [`Truncated`] if a manifest cannot be like this.
    pub fn check(&self) -> Result<(), Truncated> {
        let ascends = self.segments.is_sorted_by(|one, next| one.number < next.number);
        let last = self.segments.last().map_or(0, |segment| segment.number);
        let (mut runs, mut units, mut bytes) = (&self.runs[..], 0, 0_u64);
        for segment in &self.segments {
            let (own, rest) = runs.split_at_checked(segment.runs).ok_or(Truncated)?;
            runs = rest;
            let can_be = |run: &Run| run.blocks > 0 && run.block.checked_add(u64::from(run.blocks)).is_some();
            let room: u64 = own.iter().map(|run| u64::from(run.blocks)).sum();
            let needed = if own.is_empty() && segment.bytes == 0 {
                0
            } else {
                blocks_for(u64::from(segment.offset) + segment.bytes.min(VALUE_BYTES_MAX)).max(1)
            };
            let fits = segment.bytes <= VALUE_BYTES_MAX
                && u64::from(segment.offset) < BLOCK_BYTES_U64
                && segment.note.len() <= NOTE_BYTES_MAX
                && u16::try_from(segment.runs).is_ok()
                && room >= needed
                && own.iter().all(can_be);
            if !fits {
                return Err(Truncated);
            }
            units += segment.units();
            bytes += segment.bytes;
        }
        let is_whole =
            runs.is_empty() && units == self.checksums.len() as u64 && bytes <= VALUE_BYTES_MAX + (1 << 16);
        let is_bounded = self.segments.len() <= SEGMENTS_MAX
            && self.runs.len() <= RUNS_MAX
            && self.checksums.len() <= UNITS_MAX
            && last <= PARTS_MAX;
        if ascends && is_whole && is_bounded { Ok(()) } else { Err(Truncated) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn joined() -> JoinedManifest {
        let mut manifest = JoinedManifest::default();
        manifest.push((1, b"note"), (70_000, 0), &[Run::new(100, 16), Run::new(9, 2)], &[1, 2]);
        manifest.push((3, b""), (5_000, 9), &[Run::new(200, 2)], &[3]);
        manifest.push((9, b"x"), (0, 0), &[], &[]);
        manifest.put_in_front(300, &[Run::new(50, 1)], &[7]);
        manifest.check().unwrap();
        manifest
    }

    #[test]
    fn round_trips_and_checks_its_length() {
        let manifest = joined();
        let (bytes, crc) = manifest.encode();
        assert_eq!((bytes.len(), crc), (24 + 4 * 16 + 4 * 12 + 4 * 4 + 5, crc32c(&bytes)));
        assert_eq!(JoinedManifest::decode(&bytes), Ok(manifest.clone()));
        assert_eq!((manifest.runs_in_front(), manifest.bytes()), (&[Run::new(50, 1)][..], 75_300));
        let parts: Vec<_> =
            manifest.parts().into_iter().map(|part| (part.number, part.first, part.bytes)).collect();
        assert_eq!(parts, [(1, 0, 70_000), (3, 70_000, 5_000), (9, 75_000, 0)]);
        for cut in 0..bytes.len() {
            assert!(JoinedManifest::decode(&bytes[..cut]).is_err());
        }
        const { assert!(JOINED_BYTES_MAX <= 2 << 20) };
    }

    #[test]
    fn manifests_that_no_writer_makes_are_refused() {
        let push = |change: &dyn Fn(&mut JoinedManifest)| {
            let mut manifest = joined();
            change(&mut manifest);
            JoinedManifest::decode(&manifest.encode().0)
        };
        assert!(push(&|_| {}).is_ok());
        let cases: [&dyn Fn(&mut JoinedManifest); 9] = [
            &|it| it.segments[2].number = 1,
            &|it| it.segments[3].number = 10_001,
            &|it| it.segments[1].bytes = 18 * 4_096 + 1,
            &|it| it.segments[2].offset = 4_096,
            &|it| it.runs[1].blocks = 0,
            &|it| it.runs[1].block = u64::MAX,
            &|it| it.runs.push(Run::new(1, 1)),
            &|it| it.checksums.push(1),
            &|it| it.segments[3].bytes = u64::MAX,
        ];
        for (case, change) in cases.iter().enumerate() {
            assert_eq!(push(change), Err(Truncated), "case {case}");
        }
        let (mut bytes, _) = joined().encode();
        bytes[0] ^= 1;
        assert_eq!(JoinedManifest::decode(&bytes), Err(Truncated), "another magic");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(flips in proptest::collection::vec((0..157_usize, any::<u8>()), 1..4)) {
            let (mut bytes, _) = joined().encode();
            flips.iter().for_each(|&(at, byte)| bytes[at] = byte);
            prop_assert_eq!(bytes.len(), 157);
            if let Ok(manifest) = JoinedManifest::decode(&bytes) {
                prop_assert_eq!(manifest.encode().0, bytes);
            }
        }
    }
}
