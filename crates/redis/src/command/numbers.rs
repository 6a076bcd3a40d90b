//! Strings that are numbers, and are counted up and down.

use shoal_engine::{Change, Object, ReadLevel};

use super::call::{Call, NOT_AN_INTEGER, Outcome};
use super::write::new_value;
use crate::answer::Answer;
use crate::decimal;

const NOT_A_FLOAT: &str = "ERR value is not a valid float";

pub(super) async fn incrby(call: Call) -> Outcome {
    let amount = call.integer(2)?;
    count(call, amount).await
}

pub(super) async fn decrby(call: Call) -> Outcome {
    let amount = call.integer(2)?.checked_neg().ok_or("ERR decrement would overflow")?;
    count(call, amount).await
}

/// The integer value of an object; zero if there is none.
fn integer_of(object: Option<&Object>) -> Option<i64> {
    match object {
        None => Some(0),
        // Longer strings are not integers, and need not be parsed.
        Some(object) if object.value.len() > 20 => None,
        Some(object) => shoal_resp::parse_integer(&object.value.contiguous(0, object.value.len()).ok()?),
    }
}

pub(super) async fn count(call: Call, amount: i64) -> Outcome {
    call.update(ReadLevel::Value, &mut |object| {
        let Some(before) = integer_of(object) else {
            return (Change::NoChange, Answer::error(NOT_AN_INTEGER));
        };
        match before.checked_add(amount) {
            Some(sum) => (new_value(object, sum.to_string().into_bytes()), Answer::Integer(sum)),
            None => (Change::NoChange, Answer::error("ERR increment or decrement would overflow")),
        }
    })
    .await
}

pub(super) async fn incrbyfloat(call: Call) -> Outcome {
    let amount = decimal::parse(call.word(2)).ok_or(NOT_A_FLOAT)?;
    call.update(ReadLevel::Value, &mut |object| {
        let text = object.map_or_else(|| b"0".to_vec(), |object| object.value.to_vec());
        let Some(before) = decimal::parse(&text) else {
            return (Change::NoChange, Answer::error(NOT_A_FLOAT));
        };
        match before.add(amount) {
            Some(sum) => {
                let text = sum.to_text();
                (new_value(object, text.clone().into_bytes()), Answer::string(text))
            }
            None => (Change::NoChange, Answer::error("ERR increment would produce NaN or Infinity")),
        }
    })
    .await
}
