//! The manifest of a value with more runs or checksums than its entry holds (`docs/format/object.md`).

use shoal_base::Run;
use shoal_base::checksum::crc32c;
use shoal_base::codec::{Reader, Truncated};
use shoal_space_manager::RUNS_MAX;

const MAGIC: u32 = 0x464E_4D53; // "SMNF"
const FIXED_BYTES: usize = 12;

/// The places of a value's units, and their checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The runs, in the order of the bytes.
    pub runs: Vec<Run>,
    /// The checksum of each unit.
    pub checksums: Vec<u32>,
}

/// Bytes of a manifest.
pub(crate) const fn manifest_bytes(runs: usize, units: usize) -> usize {
    FIXED_BYTES + 12 * runs + 4 * units
}

impl Manifest {
    /// The manifest's bytes and their checksum, which the entry holds.
    pub fn encode(&self) -> (Vec<u8>, u32) {
        let mut out = Vec::with_capacity(manifest_bytes(self.runs.len(), self.checksums.len()));
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.checksums.len() as u32).to_le_bytes());
        for run in &self.runs {
            out.extend_from_slice(&run.block.to_le_bytes());
            out.extend_from_slice(&run.blocks.to_le_bytes());
        }
        for checksum in &self.checksums {
            out.extend_from_slice(&checksum.to_le_bytes());
        }
        let bytes = manifest_bytes(self.runs.len(), self.checksums.len());
        assert_eq!(out.len(), bytes, "a manifest has the length that its reader expects");
        let crc = crc32c(&out);
        (out, crc)
    }

    /// The manifest in `bytes`, whose checksum was verified.
    ///
    /// # Errors
    /// [`Truncated`] if the bytes are no manifest.
    pub fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let magic = reader.u32()?;
        let (runs, units) = (reader.u32()? as usize, reader.u32()? as usize);
        let right_length = runs <= RUNS_MAX && manifest_bytes(runs, units) == bytes.len();
        if magic != MAGIC || !right_length {
            return Err(Truncated);
        }
        let runs = (0..runs)
            .map(|_| {
                let run = Run::new(reader.u64()?, reader.u32()?);
                let can_be = run.blocks > 0 && run.block.checked_add(u64::from(run.blocks)).is_some();
                if can_be { Ok(run) } else { Err(Truncated) }
            })
            .collect::<Result<_, _>>()?;
        let checksums = (0..units).map(|_| reader.u32()).collect::<Result<_, _>>()?;
        Ok(Self { runs, checksums })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_checks_its_length() {
        let manifest = Manifest {
            runs: vec![Run::new(7, 16), Run::new(1 << 40, 3)],
            checksums: vec![1, 2, 3, u32::MAX],
        };
        let (bytes, _) = manifest.encode();
        assert_eq!(bytes.len(), manifest_bytes(2, 4));
        assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        for cut in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn manifests_that_no_writer_makes_are_refused() {
        let decode = |runs: &[Run]| {
            let manifest = Manifest { runs: runs.to_vec(), checksums: vec![1] };
            Manifest::decode(&manifest.encode().0).map(|found| assert_eq!(found, manifest))
        };
        assert_eq!(decode(&[Run::new(u64::MAX - 3, 3)]), Ok(()));
        assert_eq!(decode(&[Run::new(u64::MAX - 3, 4)]), Err(Truncated), "the end of a run overflows");
        assert_eq!(decode(&[Run::new(7, 1), Run::new(9, 0)]), Err(Truncated), "an empty run");
        assert_eq!(decode(&vec![Run::new(7, 1); RUNS_MAX]), Ok(()));
        assert_eq!(decode(&vec![Run::new(7, 1); RUNS_MAX + 1]), Err(Truncated), "too many runs");
        let (mut bytes, _) = Manifest { runs: Vec::new(), checksums: vec![1] }.encode();
        bytes[0] ^= 1;
        assert_eq!(Manifest::decode(&bytes), Err(Truncated), "another magic");
    }
}
