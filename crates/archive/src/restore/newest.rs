//! The newest archived write: the last slot of the last log, found by a few GETs.

use shoal_base::Lsn;

use super::slots::head_of;
use super::{ArchiveReader, NearMoment, RestoreError};
use crate::format::{LogSlot, RecordLog, SegmentHeader, SlotHead};

impl ArchiveReader {
    /// The newest moment that is archived.
    ///
    /// # Errors
    /// As the bucket; a damaged slot.
    pub async fn newest(&self) -> Result<NearMoment, RestoreError> {
        let mut newest = NearMoment { version: Lsn::NONE, wall_ns: 0 };
        for base in &self.record.bases {
            newest = NearMoment::of(base);
        }
        for log in &self.record.logs {
            newest.version = newest.version.max(log.last_lsn);
        }
        let last = self.record.logs.iter().rev();
        for log in last {
            if let Some(header) = self.last_slot(log).await? {
                let (version, wall_ns) = (header.end.last_lsn, header.end.wall_ns);
                return Ok(NearMoment {
                    version: newest.version.max(version),
                    wall_ns: newest.wall_ns.max(wall_ns),
                });
            }
        }
        Ok(newest)
    }

    /// The header of the last slot of `log`; `None` if it has none.
    ///
    /// # Errors
    /// As the bucket; a damaged slot.
    pub async fn last_slot(&self, log: &RecordLog) -> Result<Option<SegmentHeader>, RestoreError> {
        let known = self.record.bases.iter().filter(|base| base.log == log.id).map(|base| base.seq);
        let mut below = known.max().unwrap_or(0).max(log.first);
        if let Some(end) = log.end {
            return match end > log.first {
                true => self.segment(LogSlot { log: log.id, seq: end - 1 }).await,
                false => Ok(None),
            };
        }
        // The first slot that does not exist, between `below` and `above`.
        let mut step = 1;
        while self.segment(LogSlot { log: log.id, seq: below + step - 1 }).await?.is_some() {
            below += step;
            step *= 2;
        }
        let mut above = below + step - 1;
        while below < above {
            let middle = below + (above - below) / 2;
            match self.segment(LogSlot { log: log.id, seq: middle }).await?.is_some() {
                true => below = middle + 1,
                false => above = middle,
            }
        }
        match below > log.first {
            true => self.segment(LogSlot { log: log.id, seq: below - 1 }).await,
            false => Ok(None),
        }
    }

    /// The header of a slot; `None` if it does not exist or is a tombstone.
    pub(crate) async fn segment(&self, slot: LogSlot) -> Result<Option<SegmentHeader>, RestoreError> {
        let head = head_of(&self.bucket, &self.record.volume, slot).await?;
        Ok(head.and_then(|(head, _)| match head {
            SlotHead::Segment(header) => Some(header),
            SlotHead::Tombstone(_) => None,
        }))
    }
}
