//! Retries: a write that says who it is, is done once, however often it is sent (R17).
//!
//! A session numbers its writes. The result of each lies in an object of the store's own bucket, in the tablet of the write's
//! first key, and is written in the same step as the write itself: after a crash both are there or neither. A session has
//! [`RESULTS_KEPT`] such objects in a tablet, used in turn, so a newer write overwrites the result of an old one; what nobody
//! used for [`RESULT_LIFE_NS`] expires. It takes no memory besides.

use std::time::Duration;

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_base::codec::{Reader, Truncated};
use shoal_base::slot::hash_slot;

use crate::common::error::{Error, Result};
use crate::common::key::ObjectKey;
use crate::common::object::{End, Expiry, Metadata};
use crate::read::get::is_unreadable;
use crate::store::Inner;
use crate::testing::injected_bug::{Bug, injected};
use crate::write::append::Seen;
use crate::write::change::{Change, ReadLevel};

/// Results that are kept of a session in a tablet: a session must not have more writes under way.
pub const RESULTS_KEPT: u64 = 64;

/// How long a result is kept, in nanoseconds, where nothing overwrites it: half an hour, as RAMCloud's leases. A repetition
/// that comes later is taken for a new write.
pub const RESULT_LIFE_NS: u64 = 30 * 60 * 1_000_000_000;

/// As writes say it.
const RESULT_EXPIRY: Expiry = Expiry::After(Duration::from_nanos(RESULT_LIFE_NS));

/// The longest answer that is kept, in bytes. That a longer one was given is kept, too.
pub const RESULT_BYTES_MAX: usize = 512;

/// What a request to write is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// The session, a number that nobody else chose: at random.
    pub session: u64,
    /// The number of the write in its session; grows, and is the same when the write is repeated.
    pub sequence: u64,
}

/// The result of a write, as it is kept (`docs/format/object.md`).
pub(crate) struct ResultSlot {
    pub sequence: u64,
    /// Records in front of this one in its step.
    pub writes: u32,
    pub answer: Option<Bytes>,
}

impl ResultSlot {
    pub(crate) fn new(request: RequestId, writes: u32, answer: Vec<u8>) -> Self {
        let answer = (answer.len() <= RESULT_BYTES_MAX).then(|| answer.into());
        Self { sequence: request.sequence, writes, answer }
    }

    /// The change that keeps it for [`RESULT_LIFE_NS`].
    pub(crate) fn change(&self) -> Change {
        let mut bytes = Vec::with_capacity(13 + self.answer.as_ref().map_or(0, Bytes::len));
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.writes.to_le_bytes());
        bytes.push(u8::from(self.answer.is_some()));
        bytes.extend_from_slice(self.answer.as_deref().unwrap_or_default());
        Change::Put { value: bytes.into(), metadata: Metadata::default(), expiry: RESULT_EXPIRY }
    }

    /// # Errors
    /// [`Truncated`] where it is none.
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

    /// The version of the last object that the step wrote, where `version` is this result's own.
    pub(crate) fn version_of_last(&self, version: Lsn) -> Lsn {
        Lsn(version.0 - u64::from(self.writes > 0))
    }
}

impl Inner {
    /// About when a result that is written now is over.
    pub(crate) fn end_of_result(&self) -> End {
        End::Store(self.log.expiry.store_ns().saturating_add(RESULT_LIFE_NS))
    }

    /// Where the result of a write lies whose first key is `key`.
    pub(crate) fn result_key(&self, key: &ObjectKey, request: RequestId) -> ObjectKey {
        let tablet = self.tablets.of(key);
        // A hash tag of the tablet: about as many tries as there are tablets. One that covers no slot there is not.
        let tag = (0_u32..)
            .map(|number| number.to_string())
            .find(|tag| (tablet.slot_first..=tablet.slot_last).contains(&hash_slot(tag.as_bytes())))
            .unwrap_or_default();
        let place = (request.sequence % RESULTS_KEPT) as u8;
        let name = [b"result{", tag.as_bytes(), b"}", &request.session.to_be_bytes(), &[place]].concat();
        ObjectKey::system(&name)
    }

    pub(crate) async fn look_at_result(&self, key: &ObjectKey) -> Result<(Seen, Option<(Lsn, ResultSlot)>)> {
        let tablet = self.tablets.of(key);
        let (seen, found) = match self.look(tablet, key, ReadLevel::Value).await {
            // Where a result was lost with its page nobody knows whether there is one, and to refuse would refuse all writes that a
            // place there is for. A repetition of a write that old is taken for a new one, as one after the life of its result is.
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

    /// What a write of this request did before, if there was one; durable when it returns.
    pub(crate) async fn result_before(
        &self,
        request: RequestId,
        seen: &Seen,
        slot: Option<(Lsn, ResultSlot)>,
    ) -> Result<Option<(Lsn, Option<Bytes>)>> {
        let Some((version, slot)) = slot else { return Ok(None) };
        if slot.sequence < request.sequence || injected(Bug::RetriesForgotten) {
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
