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

use crate::entry::End;
use crate::error::Result;
use crate::key::ObjectKey;
use crate::object::{Expiry, Metadata, Object, PutOptions, PutResult, RejectRules};
use crate::store::{Inner, Store};
use crate::together::Together;
use crate::update::{Change, Look};
use crate::{DeleteResult, Error};

/// Results that are kept of a session in a tablet: a session must not have more writes under way.
pub const RESULTS_KEPT: u64 = 64;

/// How long a result is kept, in nanoseconds, where nothing overwrites it: half an hour, as RAMCloud's leases. A repetition
/// that comes later is taken for a new write.
pub const RESULT_LIFE_NS: u64 = 30 * 60 * 1_000_000_000;

/// As writes say it.
const RESULT_EXPIRY: Expiry = Expiry::After(Duration::from_nanos(RESULT_LIFE_NS));

/// The longest answer that is kept, in bytes. That a longer one was given is kept, too.
pub const RESULT_BYTES_MAX: usize = 512;

/// Who a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The session, a number that nobody else chose: at random.
    pub session: u64,
    /// The number of the write in its session; grows, and is the same when the write is repeated.
    pub sequence: u64,
}

/// What became of a write with an identity.
#[derive(Debug)]
pub enum Once<T> {
    /// It was done now.
    Now(Together<T>),
    /// It had been done before, and is durable.
    Before {
        /// The version of the last object that it wrote, or of its result where it wrote none.
        version: Lsn,
        /// What was kept of its answer; none where that was too long.
        answer: Option<Bytes>,
    },
}

/// The result of a write, as it is kept (`docs/format/object.md`).
pub(crate) struct Slot {
    pub sequence: u64,
    /// Records in front of this one in its step.
    pub writes: u32,
    pub answer: Option<Bytes>,
}

impl Slot {
    pub(crate) fn new(identity: Identity, writes: u32, answer: Vec<u8>) -> Self {
        let answer = (answer.len() <= RESULT_BYTES_MAX).then(|| answer.into());
        Self { sequence: identity.sequence, writes, answer }
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
        End::Store(self.expiry.store_ns().saturating_add(RESULT_LIFE_NS))
    }

    /// Where the result of a write lies whose first key is `key`.
    pub(crate) fn slot_key(&self, key: &ObjectKey, identity: Identity) -> ObjectKey {
        let tablet = self.tablet_of(key);
        // A hash tag of the tablet: about as many tries as there are tablets. One that covers no slot there is not.
        let tag = (0_u32..)
            .map(|number| number.to_string())
            .find(|tag| (tablet.slot_first..=tablet.slot_last).contains(&hash_slot(tag.as_bytes())))
            .unwrap_or_default();
        let place = (identity.sequence % RESULTS_KEPT) as u8;
        let name = [b"result{", tag.as_bytes(), b"}", &identity.session.to_be_bytes(), &[place]].concat();
        ObjectKey::system(&name)
    }
}

impl Store {
    /// As [`Store::update_together`], done once: where a write of this identity was done before, nothing is done, and what
    /// `keep` had kept of its answer is given again. A decision that changes nothing counts as done, too. At least one key
    /// must be named, and a repetition must name the same first one.
    ///
    /// # Errors
    /// As [`Store::update_together`]; [`Error::Unknown`] where the session is [`RESULTS_KEPT`] writes further already.
    pub async fn update_once<T>(
        &self,
        identity: Identity,
        keys: &[(ObjectKey, Look)],
        decide: impl FnMut(&[Option<Object>]) -> (Vec<Change>, T),
        keep: impl Fn(&T) -> Vec<u8> + Sync,
    ) -> Result<Once<T>> {
        if keys.is_empty() {
            return Err(Error::Invalid("a write with an identity names at least one key".into()));
        }
        self.together(keys, decide, Some((identity, &keep))).await
    }

    /// As [`Store::put`], done once.
    ///
    /// # Errors
    /// As [`Store::put`] and [`Store::update_once`].
    pub async fn put_once(
        &self,
        identity: Identity,
        key: &ObjectKey,
        value: shoal_buffer::Buffer,
        options: PutOptions,
    ) -> Result<PutResult> {
        let rules = options.rules;
        let change = Change::PutWith { value, options: Box::new(options) };
        let (version, _) = self.write_once(identity, key, rules, change).await?;
        Ok(PutResult { version })
    }

    /// As [`Store::delete`], done once.
    ///
    /// # Errors
    /// As [`Store::delete`] and [`Store::update_once`].
    pub async fn delete_once(
        &self,
        identity: Identity,
        key: &ObjectKey,
        rules: RejectRules,
    ) -> Result<DeleteResult> {
        let (version, deleted) = self.write_once(identity, key, rules, Change::Delete).await?;
        Ok(DeleteResult { deleted, version })
    }

    /// Writes where `rules` allow it; the version, and the one before where the rules had it looked up.
    pub(crate) async fn write_once(
        &self,
        identity: Identity,
        key: &ObjectKey,
        rules: RejectRules,
        change: Change,
    ) -> Result<(Lsn, Option<Lsn>)> {
        let look = if rules.is_empty() { Look::Nothing } else { Look::Version };
        let decide = |objects: &[Option<Object>]| {
            let current = objects.first().and_then(Option::as_ref).map(|object| object.info.version);
            if rules.reject(current) {
                (vec![Change::Keep], Verdict { rejected: true, current })
            } else {
                (vec![change.clone()], Verdict { rejected: false, current })
            }
        };
        match self.update_once(identity, &[(key.clone(), look)], decide, Verdict::encode).await? {
            Once::Now(Together { answer, pending }) => {
                let mut version = Lsn::NONE;
                for pending in pending {
                    version = pending.durable().await?;
                }
                answer.result(version)
            }
            Once::Before { version, answer } => {
                let verdict = answer.and_then(|answer| Verdict::decode(&answer).ok());
                let other = || Error::Invalid("another kind of write had this session and sequence".into());
                verdict.ok_or_else(other)?.result(version)
            }
        }
    }
}

/// What was found before a conditional write, and whether it was rejected for it.
struct Verdict {
    rejected: bool,
    current: Option<Lsn>,
}

impl Verdict {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.rejected)];
        bytes.extend_from_slice(&self.current.unwrap_or(Lsn::NONE).0.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let rejected = reader.u8()? != 0;
        let current = Some(Lsn(reader.u64()?)).filter(|&version| version != Lsn::NONE);
        if reader.is_empty() { Ok(Self { rejected, current }) } else { Err(Truncated) }
    }

    fn result(self, version: Lsn) -> Result<(Lsn, Option<Lsn>)> {
        let Self { rejected, current } = self;
        if rejected { Err(Error::ConditionFailed { current }) } else { Ok((version, current)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_understood_or_refused() {
        let head = [&7_u64.to_le_bytes()[..], &2_u32.to_le_bytes()].concat();
        let decode = |rest: &[u8]| {
            let slot = Slot::decode(&[&head[..], rest].concat())?;
            Ok((slot.sequence, slot.writes, slot.answer.map(|answer| answer.to_vec())))
        };
        assert_eq!(decode(&[0]), Ok((7, 2, None)));
        assert_eq!(decode(b"\x01abc"), Ok((7, 2, Some(b"abc".to_vec()))));
        assert_eq!(decode(b"\x02abc"), Err(Truncated), "of a later version, or damaged");
        assert_eq!(decode(&[]), Err(Truncated));
    }
}
