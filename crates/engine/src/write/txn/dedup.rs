//! Dedup: a write with a request id is done once, however often it is sent (R17).
//!
//! A session numbers its writes. The result of each is an object of the store's own bucket, in the tablet of the
//! write's first key, and is written in the same write batch as the write itself: after a crash both are there or
//! neither. A session has [`RESULTS_KEPT`] such objects in a tablet and uses them in turn, so a newer write overwrites
//! the result of an old one. An unused result expires after [`RESULT_LIFE_NS`]. Results take no memory besides.

use std::time::Duration;

use bytes::Bytes;
use shoal_base::codec::{Reader, Truncated};
use shoal_base::slot::hash_slot;
use shoal_base::{Lsn, RequestId};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::{ObjectKey, is_result, system_key};
use shoal_common::object::{EndTime, Expiry, Metadata};

use crate::read::get::is_unreadable;
use crate::store::Inner;
use crate::write::append::Seen;
use crate::write::change::{Change, ReadLevel};

/// Results of a session that a tablet keeps: a session must not have more writes in flight.
pub const RESULTS_KEPT: u64 = 64;

/// The life of a result in nanoseconds, unless a newer one overwrites it: half an hour, as RAMCloud's leases. A later
/// repetition counts as a new write.
pub const RESULT_LIFE_NS: u64 = 30 * 60 * 1_000_000_000;

/// The life of a result, as writes set it.
const RESULT_EXPIRY: Expiry = Expiry::After(Duration::from_nanos(RESULT_LIFE_NS));

/// Bytes of the longest answer that is kept. Of a longer one only its existence is kept.
pub const RESULT_BYTES_MAX: usize = 512;

/// The stored result of a write (`docs/format/object.md`).
pub(crate) struct ResultSlot {
    pub sequence: u64,
    /// Records before this one in its write batch.
    pub writes: u32,
    pub answer: Option<Bytes>,
}

impl ResultSlot {
    pub(crate) fn new(request: RequestId, writes: u32, answer: Vec<u8>) -> Self {
        let answer = (answer.len() <= RESULT_BYTES_MAX).then(|| answer.into());
        Self { sequence: request.sequence, writes, answer }
    }

    /// The change that stores the result for [`RESULT_LIFE_NS`].
    pub(crate) fn change(&self) -> Change {
        let mut bytes = Vec::with_capacity(13 + self.answer.as_ref().map_or(0, Bytes::len));
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.writes.to_le_bytes());
        bytes.push(u8::from(self.answer.is_some()));
        bytes.extend_from_slice(self.answer.as_deref().unwrap_or_default());
        Change::Put { value: bytes.into(), metadata: Metadata::default(), expiry: RESULT_EXPIRY }
    }

    /// # Errors
    /// [`Truncated`] if the bytes are no result.
    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let (sequence, writes) = (reader.u64()?, reader.u32()?);
        let answer = match reader.u8()? {
            0 => None,
            1 => Some(Bytes::copy_from_slice(reader.rest())),
            _ => return Err(Truncated),
        };
        Ok(Self { sequence, writes, answer })
    }

    /// The version of the last object that the write batch wrote. `version` is that of this result.
    pub(crate) fn version_of_last(&self, version: Lsn) -> Lsn {
        Lsn(version.0 - u64::from(self.writes > 0))
    }
}

impl Inner {
    /// The approximate deadline of a result that is written now.
    pub(crate) fn end_of_result(&self) -> EndTime {
        EndTime::Store(self.log.expiry.store_ns().saturating_add(RESULT_LIFE_NS))
    }

    /// The key of the result of a write whose first key is `key`.
    pub(crate) fn result_key(&self, key: &ObjectKey, request: RequestId) -> ObjectKey {
        let tablet = self.tablets.of(key);
        // A hash tag of the tablet; finding one takes about as many tries as there are tablets. Every tablet covers a
        // slot.
        let tag = (0_u32..)
            .map(|number| number.to_string())
            .find(|tag| (tablet.slot_first..=tablet.slot_last).contains(&hash_slot(tag.as_bytes())))
            .unwrap_or_default();
        let place = (request.sequence % RESULTS_KEPT) as u8;
        let name = [b"result{", tag.as_bytes(), b"}", &request.session.to_be_bytes(), &[place]].concat();
        let result = system_key(&name);
        debug_assert_eq!(self.tablets.of(&result).id, tablet.id, "a result is stored beside its write (R17)");
        debug_assert!(is_result(result.encoded()), "results are counted by their prefix");
        result
    }

    pub(crate) async fn look_at_result(&self, key: &ObjectKey) -> Result<(Seen, Option<(Lsn, ResultSlot)>)> {
        let tablet = self.tablets.of(key);
        let (seen, found) = match self.look(tablet, key, ReadLevel::Value).await {
            // If a result was lost with its page, its existence is unknown, and a refusal would refuse all writes of
            // that result slot. A repetition of such an old write counts as a new one, like a repetition after the life
            // of its result.
            Err(error) if is_unreadable(&error) => {
                let (seen, found) = self.look(tablet, key, ReadLevel::Existence).await?;
                (seen, found.filter(|found| found.version != Lsn::NONE))
            }
            looked => looked?,
        };
        let Some(found) = found else { return Ok((seen, None)) };
        let value = self.object_for(&found, ReadLevel::Value).await?.value;
        let slot = ResultSlot::decode(&value.to_vec())
            .map_err(|_| Error::Corrupt { what: "the result of an earlier write".into(), block: 0 })?;
        Ok((seen, Some((found.version, slot))))
    }

    /// The outcome of an earlier write with this request, if there was one; durable on return.
    pub(crate) async fn result_before(
        &self,
        request: RequestId,
        seen: &Seen,
        slot: Option<(Lsn, ResultSlot)>,
    ) -> Result<Option<(Lsn, Option<Bytes>)>> {
        let Some((version, slot)) = slot else { return Ok(None) };
        if slot.sequence < request.sequence || injected(Bug::OutcomesForgotten) {
            return Ok(None);
        }
        if slot.sequence > request.sequence {
            return Err(Error::Unknown(format!(
                "write {} of session {:016x} is too long ago: its result is not kept any more",
                request.sequence, request.session
            )));
        }
        let version = match &seen.record {
            Some(record) => self.log.committer.drive_until(record).await?,
            None => version,
        };
        let version = slot.version_of_last(version);
        Ok(Some((version, slot.answer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_understood_or_refused() {
        let head = [&7_u64.to_le_bytes()[..], &2_u32.to_le_bytes()].concat();
        let decode = |rest: &[u8]| {
            let slot = ResultSlot::decode(&[&head[..], rest].concat())?;
            Ok((slot.sequence, slot.writes, slot.answer.map(|answer| answer.to_vec())))
        };
        assert_eq!(decode(&[0]), Ok((7, 2, None)));
        assert_eq!(decode(b"\x01abc"), Ok((7, 2, Some(b"abc".to_vec()))));
        assert_eq!(decode(b"\x02abc"), Err(Truncated), "of a later version, or damaged");
        assert_eq!(decode(&[]), Err(Truncated));
    }
}
