//! Versions, which Redis does not have: compare and set without a transaction.
//!
//! `SHOAL.GETV key` answers `[version, value]`, or null. `SHOAL.CAS key version value [EX seconds | PX milliseconds |
//! EXAT seconds | PXAT milliseconds]` stores the value where the key has just this version, and 0 means that it must
//! not exist; it answers the new version, or null where the key has another one. Versions only grow and are never used
//! twice.

use shoal_engine::{ByteRange, Change, Error, Expiry, Look, Lsn, Object, PutOptions, RejectRules, Updated};

use super::expiry::{Unit, expiry_of};
use super::{Call, SYNTAX, integer};
use crate::answer::{Answer, Finished, Outcome};
use crate::face::set_value;

pub(super) async fn getv(call: Call) -> Outcome {
    let key = call.face.key(call.word(1))?;
    if let Some(working) = call.face.working() {
        let object = working.see(&key, Look::Whole)?;
        let answer = object.map(|object| {
            Answer::Array(vec![working.version_of(&key, &object), Answer::Value(Box::new(object.value))])
        });
        return Ok(answer.unwrap_or(Answer::Null).into());
    }
    let object = if call.newest {
        // The version of a write in flight is not known yet.
        let keep = |object: Option<&Object>| (Change::Keep, object.map(|object| object.info.version));
        let Updated { pending, .. } = call.face.store.update(&key, Look::Version, keep).await?;
        if let Some(pending) = pending {
            pending.durable().await?;
        }
        call.face.store.get(&key, ByteRange::ALL).await?
    } else {
        call.face.store.get(&key, ByteRange::ALL).await?
    };
    Ok(object
        .map_or(Answer::Null, |object| {
            let version = Answer::Integer(object.info.version.0 as i64);
            Answer::Array(vec![version, Answer::Value(Box::new(object.value))])
        })
        .into())
}

pub(super) async fn cas(call: Call) -> Outcome {
    let version = u64::try_from(call.integer(2)?).map_err(|_| "ERR a version is at least 0")?;
    let expiry = match call.rest(4) {
        [] => Expiry::Never,
        [unit, amount] => {
            let unit = Unit::of_word(unit).ok_or(SYNTAX)?;
            expiry_of(&call, unit, integer(amount)?)?
        }
        _ => return Err(SYNTAX.into()),
    };
    let key = call.face.key(call.word(1))?;
    let rules = match version {
        0 => RejectRules { if_exists: true, ..RejectRules::default() },
        version => RejectRules { if_version_not: Some(Lsn(version)), ..RejectRules::default() },
    };
    let options = PutOptions { rules, expiry, ..PutOptions::default() };
    if call.face.is_one_step() {
        let value = call.word(3);
        let keys = [(key, Look::Version)];
        let decide = |objects: &[Option<Object>]| {
            let current = objects.first().and_then(Option::as_ref).map(|object| object.info.version);
            match rules.reject(current) {
                true => (vec![Change::Keep], Answer::Null),
                false => (vec![set_value(value, expiry)], Answer::Version),
            }
        };
        return call.face.update_together(&keys, decide).await;
    }
    match call.face.store.begin_put(&key, call.word(3).clone().into(), options).await {
        Ok(pending) => Ok(Finished::after(Answer::Version, [pending])),
        Err(Error::ConditionFailed { .. }) => Ok(Answer::Null.into()),
        Err(error) => Err(error.into()),
    }
}
