//! Several puts as one step (`MultiPut` with `atomic`).

use shoal_api::v1;
use shoal_base::codec::{Reader, Truncated};
use shoal_engine::{Change, Decision, Error, Lsn, Object, Outcome, ReadLevel, TransactOptions};

use super::batch::Batch;
use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;

/// All puts as one step: done as a whole or not at all, also over a crash.
pub(crate) async fn write_batch(
    admitted: &Authenticated<()>,
    batch: &Batch<()>,
) -> Result<Vec<v1::MultiPutResult>, Failure> {
    let store = admitted.to_write(batch.bucket_name()?)?;
    let (mut keys, mut rules, mut changes) = (Vec::new(), Vec::new(), Vec::new());
    for item in &batch.items {
        let key = batch.key(item)?;
        let item: v1::MultiPutItem = batch.whole(item)?;
        let end = (item.ttl_ns, item.expire_time_ns);
        let options = convert::put_options(item.rules, item.metadata, item.modified_ns, end)?;
        keys.push((key, if options.rules.is_empty() { ReadLevel::Nothing } else { ReadLevel::Version }));
        rules.push(options.rules);
        changes.push(Change::PutWith { value: item.value.into(), options: Box::new(options) });
    }
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let decide = |objects: &[Option<Object>]| {
        let current = |object: &Option<Object>| object.as_ref().map(|object| object.info.version);
        let rejected = rules.iter().zip(objects).position(|(rules, object)| rules.reject(current(object)));
        match rejected {
            None => Decision::Do(changes.clone(), Verdict { items: rules.len(), rejected: None }),
            Some(at) => {
                let rejected = Some((at, objects.get(at).and_then(current)));
                let nothing = changes.iter().map(|_| Change::NoChange).collect();
                Decision::Do(nothing, Verdict { items: rules.len(), rejected })
            }
        }
    };
    let encode: &(dyn Fn(&Verdict) -> Vec<u8> + Sync) = &Verdict::encode;
    let request = admitted.identity().map(|identity| (identity, encode));
    let failed = |error| Failure::of(&error);
    let options = TransactOptions { request, ..TransactOptions::default() };
    let (verdict, last) = match store.transact(&keys, &options, decide).await.map_err(failed)? {
        Outcome::Before { version, answer } => {
            let kept = answer.and_then(|answer| Verdict::decode(&answer).ok());
            let kept = kept.filter(|kept| kept.items == keys.len()).ok_or_else(not_repeated)?;
            (kept, version)
        }
        done => done.done().durable().await.map_err(failed)?,
    };
    if let Some((at, current)) = verdict.rejected {
        let error = Error::ConditionFailed { current };
        return Err(Failure::of_write(&error, &rules.get(at).copied().unwrap_or_default()));
    }
    // The records of a step are numbered one behind the other.
    let before = last.0.checked_sub(keys.len() as u64).ok_or_else(not_repeated)?;
    let result = |version| v1::MultiPutResult { status: Some(v1::KeyStatus::default()), version };
    Ok((before..last.0).map(|before| result(before + 1)).collect())
}

/// The identity is that of an earlier write, and this is not a repetition of it.
fn not_repeated() -> Failure {
    Failure::invalid("another write had this session and sequence: a repetition must be the same write")
}

/// The outcome of a write batch of puts, as it is kept for a repetition (`docs/format/object.md`).
struct Verdict {
    items: usize,
    /// The first item whose condition did not hold, and the present version of its object.
    rejected: Option<(usize, Option<Lsn>)>,
}

impl Verdict {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.rejected.is_some())];
        bytes.extend_from_slice(&(self.items as u32).to_le_bytes());
        if let Some((at, current)) = self.rejected {
            bytes.extend_from_slice(&(at as u32).to_le_bytes());
            bytes.extend_from_slice(&current.unwrap_or(Lsn::NONE).0.to_le_bytes());
        }
        bytes
    }

    /// # Errors
    /// [`Truncated`] where it is the answer of another kind of write.
    fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let (is_rejected, items) = (reader.u8()?, reader.u32()? as usize);
        let rejected = match is_rejected {
            0 => None,
            1 => {
                let (at, current) = (reader.u32()? as usize, Lsn(reader.u64()?));
                Some((at, Some(current).filter(|&current| current != Lsn::NONE)))
            }
            _ => return Err(Truncated),
        };
        if reader.is_empty() { Ok(Self { items, rejected }) } else { Err(Truncated) }
    }
}
