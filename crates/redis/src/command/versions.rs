//! Versions, an extension to Redis: compare and set without a transaction.
//!
//! `SHOAL.GETV key` answers `[version, value]`, or null.
//! `SHOAL.CAS key version value [EX seconds | PX milliseconds | EXAT seconds | PXAT milliseconds]` stores the value if the key
//! has exactly this version, and 0 means that it must not exist; it answers the new version, or null if the key has another
//! one. Versions only grow and are never used twice.

use shoal_buffer::Buffer;
use shoal_engine::{Change, Error, Expiry, Lsn, Object, PutOptions, ReadLevel, RejectRules};

use super::call::{Call, Finished, Outcome, SYNTAX, Scope, integer};
use super::expiry::{Unit, expiry_of};
use super::write::set_value;
use crate::answer::Answer;

pub(super) async fn getv(call: Call) -> Outcome {
    let key = call.key(1)?;
    let both = |version: Answer, value: Buffer| Answer::Array(vec![version, Answer::value(Some(value))]);
    let answer = match &call.scope {
        Scope::Transaction(working) => working
            .see(&key, ReadLevel::Whole)?
            .map(|object| both(working.version_of(&key, &object), object.value)),
        _ => call
            .read_version(&key)
            .await?
            .map(|object| both(Answer::Integer(object.info.version.0 as i64), object.value)),
    };
    Ok(answer.unwrap_or(Answer::Null).into())
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
    let rules = match version {
        0 => RejectRules { if_exists: true, ..RejectRules::default() },
        version => RejectRules { if_version_not: Some(Lsn(version)), ..RejectRules::default() },
    };
    let value = call.word(3);
    if call.is_one_batch() {
        let mut decide =
            |object: Option<&Object>| match rules.reject(object.map(|object| object.info.version)) {
                true => (Change::NoChange, Answer::Null),
                false => (set_value(value, expiry), Answer::Version),
            };
        return call.update(ReadLevel::Version, &mut decide).await;
    }
    match call.queue_put(value, PutOptions { rules, expiry, ..PutOptions::default() }).await {
        Ok(pending) => Ok(Finished::after(Answer::Version, [pending])),
        Err(Error::ConditionFailed { .. }) => Ok(Answer::Null.into()),
        Err(error) => Err(error.into()),
    }
}
