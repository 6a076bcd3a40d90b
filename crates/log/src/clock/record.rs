//! A superblock's record of time (`docs/format/superblock.md`): store time and the clocks that showed it, and the wall
//! clock's lead before each step back (R18; `expiry.rs` has the rules).

use shoal_base::Lsn;
use shoal_base::codec::{Reader, Truncated};

use crate::format::{CLOCK_MAX_NS, COUNTER_MAX};

/// Steps back of the wall clock that are remembered separately.
pub(crate) const WALL_MARKS_MAX: usize = 8;
/// Bytes of the record, with its room for marks.
pub const CLOCK_RECORD_BYTES: usize = 48 + 16 * WALL_MARKS_MAX;

/// A step back of the wall clock: readers before it may have seen objects expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallMark {
    /// The latest time that the wall clock showed before the step, in nanoseconds since the Unix epoch.
    pub wall_ns: u64,
    /// The newest record at the step: versions up to it whose absolute deadline is not after `wall_ns` stay absent.
    pub lsn: Lsn,
}

/// The time at one moment, as a superblock stores it; all in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockRecord {
    /// Store time.
    pub store_ns: u64,
    /// The wall clock at that moment, since the Unix epoch.
    pub wall_ns: u64,
    /// The boot-time clock at that moment.
    pub boot_ns: u64,
    /// The id of the boot that `boot_ns` belongs to; zeros if it is unknown.
    pub boot_id: [u8; 16],
    /// Steps back of the wall clock: later marks have a smaller wall time and a larger number.
    pub marks: Vec<WallMark>,
}

impl ClockRecord {
    /// The record's bytes.
    pub fn encode(&self) -> [u8; CLOCK_RECORD_BYTES] {
        assert!(self.marks.len() <= WALL_MARKS_MAX, "the marks fit");
        let mut bytes = Vec::with_capacity(CLOCK_RECORD_BYTES);
        for field in [self.store_ns, self.wall_ns, self.boot_ns] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&self.boot_id);
        bytes.extend_from_slice(&(self.marks.len() as u64).to_le_bytes());
        for mark in &self.marks {
            bytes.extend_from_slice(&mark.wall_ns.to_le_bytes());
            bytes.extend_from_slice(&mark.lsn.0.to_le_bytes());
        }
        let mut out = [0; CLOCK_RECORD_BYTES];
        out[..bytes.len()].copy_from_slice(&bytes);
        out
    }

    /// The reverse of [`encode`](Self::encode).
    ///
    /// # Errors
    /// [`Truncated`], also if there are more marks than fit.
    pub fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let (store_ns, wall_ns, boot_ns) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let mut boot_id = [0; 16];
        boot_id.copy_from_slice(reader.bytes(16)?);
        let count = reader.u64()?;
        if count > WALL_MARKS_MAX as u64 {
            return Err(Truncated);
        }
        let marks = (0..count)
            .map(|_| Ok(WallMark { wall_ns: reader.u64()?, lsn: Lsn(reader.u64()?) }))
            .collect::<Result<_, _>>()?;
        Ok(Self { store_ns, wall_ns, boot_ns, boot_id, marks })
    }

    /// Returns true if the fields are possible.
    pub fn is_sensible(&self) -> bool {
        let ordered = |pair: &[WallMark]| pair[1].wall_ns < pair[0].wall_ns && pair[0].lsn < pair[1].lsn;
        [self.store_ns, self.wall_ns, self.boot_ns].iter().all(|&ns| ns <= CLOCK_MAX_NS)
            && self.marks.iter().all(|mark| mark.wall_ns <= CLOCK_MAX_NS && mark.lsn.0 <= COUNTER_MAX)
            && self.marks.windows(2).all(ordered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_impossible_ones_are_refused() {
        let mark = |wall_ns, lsn| WallMark { wall_ns, lsn: Lsn(lsn) };
        let record = ClockRecord {
            store_ns: 1,
            wall_ns: 2,
            boot_ns: 3,
            boot_id: [4; 16],
            marks: vec![mark(9, 5), mark(8, 6)],
        };
        assert_eq!(ClockRecord::decode(&record.encode()), Ok(record.clone()));
        assert!(record.is_sensible());
        for marks in [vec![mark(8, 5), mark(9, 6)], vec![mark(9, 6), mark(8, 6)], vec![mark(u64::MAX, 5)]] {
            assert!(!ClockRecord { marks, ..record.clone() }.is_sensible());
        }
        assert!(!ClockRecord { store_ns: u64::MAX, ..record.clone() }.is_sensible());
        let mut bytes = record.encode();
        bytes[40] = WALL_MARKS_MAX as u8 + 1;
        assert!(ClockRecord::decode(&bytes).is_err());
        for cut in 0..80 {
            assert!(ClockRecord::decode(&record.encode()[..cut]).is_err());
        }
    }
}
