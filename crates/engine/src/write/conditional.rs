//! A conditional write of one key with a request id: both its success and its rejection happen once (R17).

use shoal_base::Lsn;
use shoal_base::codec::{Reader, Truncated};
use shoal_base::task::Boxed;

use crate::common::error::{Error, Result};
use crate::common::key::ObjectKey;
use crate::common::object::{Object, RejectRules};
use crate::store::Store;
use crate::write::change::{Change, ReadLevel};
use crate::write::dedup::RequestId;
use crate::write::pending::Pending;
use crate::write::transact::{Decision, Outcome, TransactOptions};

impl Store {
    /// Writes where `rules` allow it, once; gives the place of the write, or the version that it had before.
    ///
    /// Apart from other writes, so that their futures are not as large as a transaction.
    pub(crate) fn write_with_request_id<'a>(
        &'a self,
        request: RequestId,
        key: &'a ObjectKey,
        rules: RejectRules,
        change: Change,
    ) -> Boxed<'a, Result<Pending>> {
        Box::pin(async move {
            let level = if rules.is_empty() { ReadLevel::Nothing } else { ReadLevel::Version };
            let decide = |objects: &[Option<Object>]| {
                let current = objects.first().and_then(Option::as_ref).map(|object| object.info.version);
                let rejected = rules.reject(current);
                let change = if rejected { Change::NoChange } else { change.clone() };
                Decision::Do(vec![change], Verdict { rejected, current })
            };
            let options =
                TransactOptions { request: Some((request, &Verdict::encode)), ..Default::default() };
            match self.transact(&[(key.clone(), level)], &options, decide).await? {
                Outcome::Done(mut done) => {
                    let Verdict { rejected, current } = done.answer;
                    match done.pending.pop() {
                        Some(written) if !rejected => Ok(written.with_before(current)),
                        result => {
                            // That it was rejected is kept, too.
                            if let Some(result) = result {
                                result.durable().await?;
                            }
                            Err(Error::ConditionFailed { current })
                        }
                    }
                }
                Outcome::Before { version, answer } => {
                    let verdict = answer.and_then(|answer| Verdict::decode(&answer).ok());
                    let other =
                        || Error::Invalid("another kind of write had this session and sequence".into());
                    let Verdict { rejected, current } = verdict.ok_or_else(other)?;
                    if rejected {
                        return Err(Error::ConditionFailed { current });
                    }
                    Ok(Pending::done(self.clone(), version).with_before(current))
                }
                Outcome::Left(_) | Outcome::Changed => unreachable!("nothing is watched, and nothing left"),
            }
        })
    }
}

/// The state found before a conditional write, and its rejection.
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
}
