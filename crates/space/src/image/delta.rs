//! [`Delta`]: the changes of one superblock to the free space, and its bytes. Format: `docs/format/space.md`.

use shoal_base::Run;
use shoal_base::codec::{Reader, put_varint};

use super::format::{DELTA_HEADER_BYTES, DELTA_MAGIC, DELTA_RUN_BYTES_MIN, DELTA_VERSION, begin, open, seal};
use super::{DeviceIdentity, ImageError};
use crate::SpaceError;
use crate::geometry::Merged;

/// The runs that one superblock took from the free space and returned to it.
///
/// Both lists are ascending, no two runs of a list touch or overlap, and no block is in both lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    superblock: u64,
    taken: Vec<Run>,
    freed: Vec<Run>,
}

impl Delta {
    /// The delta of superblock number `superblock`. The runs may come in any order. A block that is both taken and
    /// freed is unchanged for the image: it drops out of both lists.
    ///
    /// # Errors
    /// A block twice in `taken` is [`SpaceError::NotFree`], twice in `freed` [`SpaceError::AlreadyFree`]; an empty
    /// run, or one past the last block number, is [`SpaceError::Outside`].
    pub fn new(superblock: u64, taken: &[Run], freed: &[Run]) -> Result<Self, SpaceError> {
        let taken = sorted(taken).map_err(|error| match error {
            SpaceError::AlreadyFree { run, overlap } => SpaceError::NotFree { run, overlap },
            other => other,
        })?;
        let freed = sorted(freed)?;
        Ok(Self { superblock, taken: without(&taken, &freed), freed: without(&freed, &taken) })
    }

    /// The number of the superblock that publishes it.
    #[must_use]
    pub fn superblock(&self) -> u64 {
        self.superblock
    }

    /// The runs that are no longer free.
    #[must_use]
    pub fn taken(&self) -> &[Run] {
        &self.taken
    }

    /// The runs that became free.
    #[must_use]
    pub fn freed(&self) -> &[Run] {
        &self.freed
    }

    /// The delta in bytes, for the device with this identity. The caller pads them to blocks.
    #[must_use]
    pub fn encode(&self, device: &DeviceIdentity) -> Vec<u8> {
        let mut out = begin(DELTA_MAGIC, DELTA_VERSION, [0, 0], device);
        out.extend_from_slice(&self.superblock.to_le_bytes());
        for runs in [&self.taken, &self.freed] {
            let Ok(count) = u32::try_from(runs.len()) else { panic!("{} runs in one delta", runs.len()) };
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.extend_from_slice(&[0; 8]);
        assert_eq!(out.len(), DELTA_HEADER_BYTES, "the header of a delta");
        for runs in [&self.taken, &self.freed] {
            let mut end = 0;
            for run in runs {
                put_varint(&mut out, run.block - end);
                put_varint(&mut out, u64::from(run.blocks));
                end = run.end();
            }
        }
        seal(&mut out);
        out
    }

    /// Reads the delta at the start of `bytes` and returns it with its length in bytes; ignores the bytes after it (padding).
    /// Never panics, and never reserves more than 8 times the size of `bytes`.
    ///
    /// # Errors
    /// Every kind of [`ImageError`] except `Unexpected`: the caller checks the superblock number.
    pub fn decode(bytes: &[u8], device: &DeviceIdentity) -> Result<(Self, usize), ImageError> {
        let start = open(bytes, DELTA_MAGIC, DELTA_VERSION, device, bytes.len())?;
        let mut reader = start.rest;
        let superblock = reader.u64()?;
        let counts = [reader.u32()?, reader.u32()?];
        if start.own != [0, 0] || reader.u64()? != 0 {
            return Err(ImageError::Damaged { what: "a reserved field is not zero" });
        }
        let taken = read_runs(&mut reader, counts[0])?;
        let freed = read_runs(&mut reader, counts[1])?;
        if !reader.is_empty() {
            return Err(ImageError::Damaged { what: "bytes after the last run" });
        }
        if without(&taken, &freed) != taken {
            return Err(ImageError::Damaged { what: "a block is taken and freed" });
        }
        Ok((Self { superblock, taken, freed }, start.bytes))
    }
}

/// The runs in ascending order with touching ones merged.
pub(crate) fn sorted(runs: &[Run]) -> Result<Vec<Run>, SpaceError> {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable();
    let mut end = 0;
    for &run in &sorted {
        let behind = run.block.checked_add(u64::from(run.blocks));
        let Some(run_end) = behind.filter(|_| run.blocks > 0) else {
            return Err(SpaceError::Outside { run, blocks_max: u64::MAX });
        };
        if run.block < end {
            let overlap = Run::new(run.block, (end.min(run_end) - run.block) as u32);
            return Err(SpaceError::AlreadyFree { run, overlap });
        }
        end = run_end;
    }
    Ok(Merged::new(sorted.into_iter()).collect())
}

/// The parts of `runs` that are not in `others`; both ascending and without overlaps.
pub(crate) fn without(runs: &[Run], others: &[Run]) -> Vec<Run> {
    let mut out = Vec::with_capacity(runs.len());
    let mut others = others.iter().copied().peekable();
    for &run in runs {
        let mut block = run.block;
        while others.next_if(|other| other.end() <= run.block).is_some() {}
        while let Some(other) = others.peek().filter(|other| other.block < run.end()) {
            if block < other.block {
                out.push(Run::new(block, (other.block - block) as u32));
            }
            block = other.end().min(run.end());
            if other.end() > run.end() {
                break;
            }
            others.next();
        }
        if block < run.end() {
            out.push(Run::new(block, (run.end() - block) as u32));
        }
    }
    out
}

/// `count` runs, each as its gap to the previous run and its length.
fn read_runs(reader: &mut Reader<'_>, count: u32) -> Result<Vec<Run>, ImageError> {
    let wrong = ImageError::Damaged { what: "a run" };
    let count = count as usize;
    if count > reader.rest().len() / DELTA_RUN_BYTES_MIN {
        return Err(ImageError::Damaged { what: "the number of runs" });
    }
    let mut runs = Vec::with_capacity(count);
    let mut end = 0_u64;
    for index in 0..count {
        let gap = reader.varint()?;
        let blocks = u32::try_from(reader.varint()?).map_err(|_| wrong)?;
        let block = end.checked_add(gap).ok_or(wrong)?;
        // Merged runs touch only if their sum would overflow a length.
        let touches = index > 0 && gap == 0;
        let fits = |last: &Run| last.blocks.checked_add(blocks).is_some();
        if blocks == 0 || (touches && runs.last().is_some_and(fits)) {
            return Err(wrong);
        }
        end = block.checked_add(u64::from(blocks)).ok_or(wrong)?;
        runs.push(Run::new(block, blocks));
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEVICE: DeviceIdentity = *b"0123456789abcdef";

    fn runs(pairs: &[(u64, u32)]) -> Vec<Run> {
        pairs.iter().map(|&(block, blocks)| Run::new(block, blocks)).collect()
    }

    #[test]
    fn lists_are_sorted_merged_and_cancelled() {
        let taken = runs(&[(50, 10), (10, 5), (15, 5), (30, 10)]);
        let freed = runs(&[(12, 2), (35, 20), (100, 1)]);
        let delta = Delta::new(7, &taken, &freed).unwrap();
        assert_eq!(delta.taken(), runs(&[(10, 2), (14, 6), (30, 5), (55, 5)]));
        assert_eq!(delta.freed(), runs(&[(40, 10), (100, 1)]));
        let same = Delta::new(7, &taken, &taken).unwrap();
        assert!(same.taken().is_empty() && same.freed().is_empty());
    }

    #[test]
    fn a_block_that_is_twice_in_a_list_is_refused() {
        let twice = runs(&[(10, 5), (14, 5)]);
        let (run, overlap) = (Run::new(14, 5), Run::new(14, 1));
        assert_eq!(Delta::new(1, &twice, &[]), Err(SpaceError::NotFree { run, overlap }));
        assert_eq!(Delta::new(1, &[], &twice), Err(SpaceError::AlreadyFree { run, overlap }));
        assert!(Delta::new(1, &runs(&[(u64::MAX, 2)]), &[]).is_err());
        assert!(Delta::new(1, &runs(&[(3, 0)]), &[]).is_err());
    }

    #[test]
    fn golden_bytes_of_version_1() {
        // Bytes that a release wrote stay readable: never change these, add a version.
        let delta = Delta::new(0x0102_0304, &runs(&[(5, 1), (300, 1000)]), &runs(&[(7, 16)])).unwrap();
        let bytes = delta.encode(&DEVICE);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, include_str!("../../testdata/delta_v1.hex").trim());
    }

    #[test]
    fn every_flipped_bit_and_truncation_is_detected() {
        let delta = Delta::new(9, &runs(&[(5, 1), (300, 1000)]), &runs(&[(7, 16)])).unwrap();
        let bytes = delta.encode(&DEVICE);
        for cut in 0..bytes.len() {
            assert!(Delta::decode(&bytes[..cut], &DEVICE).is_err(), "cut at {cut}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Delta::decode(&bad, &DEVICE), Err(ImageError::Damaged { .. })), "bit {bit}");
        }
        assert_eq!(Delta::decode(&bytes, b"another device!!"), Err(ImageError::Foreign));
    }

    /// Bytes with a valid checksum and the test's contents.
    fn sealed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let delta = Delta::new(9, &runs(&[(5, 1)]), &runs(&[(0, 3)])).unwrap();
        let mut bytes = delta.encode(&DEVICE);
        change(&mut bytes);
        seal(&mut bytes);
        bytes
    }

    #[test]
    fn contents_that_no_writer_makes_are_damage_even_with_a_valid_checksum() {
        let damaged = |bytes: &[u8]| matches!(Delta::decode(bytes, &DEVICE), Err(ImageError::Damaged { .. }));
        assert!(Delta::decode(&sealed(|_| ()), &DEVICE).is_ok());
        assert!(damaged(&sealed(|bytes| bytes[40] = 200)), "more runs than bytes");
        assert!(damaged(&sealed(|bytes| bytes[43] = 255)), "far more runs than bytes");
        assert!(damaged(&sealed(|bytes| bytes[10] = 1)), "reserved");
        assert!(damaged(&sealed(|bytes| bytes[48] = 1)), "reserved");
        assert!(damaged(&sealed(|bytes| bytes.push(0))), "bytes behind the runs");
        assert!(damaged(&sealed(|bytes| bytes[57] = 0)), "an empty run");
        assert!(damaged(&sealed(|bytes| bytes[56] = 2)), "taken and freed");
        assert!(damaged(&sealed(|bytes| (bytes[40], bytes[44]) = (2, 0))), "runs that touch");
        let version = sealed(|bytes| bytes[8] = 2);
        assert_eq!(Delta::decode(&version, &DEVICE), Err(ImageError::Version { found: 2 }));
    }

    fn disjoint_runs() -> impl Strategy<Value = Vec<Run>> {
        prop::collection::vec((0_u64..1 << 30, 1_u32..=u32::MAX), 0..60).prop_map(|pairs| {
            let mut end = 0;
            let place = |(gap, blocks): (u64, u32)| {
                let run = Run::new(end + gap, blocks);
                end = run.end();
                run
            };
            pairs.into_iter().map(place).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn round_trips_with_padding(superblock: u64, mut taken in disjoint_runs(), freed in disjoint_runs()) {
            taken.reverse();
            let delta = Delta::new(superblock, &taken, &freed).unwrap();
            let mut bytes = delta.encode(&DEVICE);
            let length = bytes.len();
            bytes.resize(length.next_multiple_of(4096), 0xEE);
            prop_assert_eq!(Delta::decode(&bytes, &DEVICE), Ok((delta, length)));
        }

        #[test]
        fn without_is_the_difference_block_by_block(
            runs in prop::collection::vec((0_u64..5, 1_u32..6), 0..20),
            others in prop::collection::vec((0_u64..5, 1_u32..6), 0..20),
        ) {
            let place = |pairs: Vec<(u64, u32)>| {
                let mut end = 0;
                pairs.into_iter().map(|(gap, blocks)| { let run = Run::new(end + gap, blocks); end = run.end(); run })
                    .collect::<Vec<_>>()
            };
            let blocks = |runs: &[Run]| runs.iter().flat_map(|run| run.block..run.end()).collect::<Vec<_>>();
            let (runs, others) = (place(runs), place(others));
            let removed = blocks(&others);
            let expected: Vec<u64> = blocks(&runs).into_iter().filter(|block| !removed.contains(block)).collect();
            prop_assert_eq!(blocks(&without(&runs, &others)), expected);
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), is_sealed: bool) {
            let mut bytes = bytes;
            if is_sealed && bytes.len() >= DELTA_HEADER_BYTES {
                // A valid start, so that the runs are reached.
                bytes[..32].copy_from_slice(&begin(DELTA_MAGIC, DELTA_VERSION, [0, 0], &DEVICE)[..32]);
                bytes[48..56].fill(0);
                bytes[40] %= 16; bytes[41..44].fill(0); bytes[44] %= 16; bytes[45..48].fill(0);
                seal(&mut bytes);
            }
            if let Ok((delta, length)) = Delta::decode(&bytes, &DEVICE) {
                prop_assert_eq!(length, bytes.len());
                prop_assert!(delta.taken().len() + delta.freed().len() <= bytes.len() / DELTA_RUN_BYTES_MIN);
            }
        }
    }
}
