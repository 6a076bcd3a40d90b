//! Strings that are numbers, and are counted up and down.

use shoal_engine::{Change, Look, Object};

use super::{Call, NOT_AN_INTEGER};
use crate::answer::{Answer, Outcome};
use crate::face::new_value;
use crate::number;

const OVERFLOW: &str = "ERR increment or decrement would overflow";
const NOT_A_FLOAT: &str = "ERR value is not a valid float";

pub(super) async fn incr(call: Call) -> Outcome {
    add(call, 1).await
}

pub(super) async fn decr(call: Call) -> Outcome {
    add(call, -1).await
}

pub(super) async fn incrby(call: Call) -> Outcome {
    let amount = call.integer(2)?;
    add(call, amount).await
}

pub(super) async fn decrby(call: Call) -> Outcome {
    let amount = call.integer(2)?.checked_neg().ok_or("ERR decrement would overflow")?;
    add(call, amount).await
}

/// The integer that an object is; zero where there is none.
fn integer_of(object: Option<&Object>) -> Option<i64> {
    match object {
        None => Some(0),
        Some(object) => object.value.contiguous(0, object.value.len()).ok().and_then(|text| {
            // Longer ones are none, and need not be looked at.
            (text.len() <= 20).then(|| shoal_resp::parse_integer(&text))?
        }),
    }
}

async fn add(call: Call, amount: i64) -> Outcome {
    let key = call.face.key(call.word(1))?;
    call.face
        .update(&key, Look::Value, |object| {
            let Some(before) = integer_of(object) else {
                return (Change::Keep, Answer::error(NOT_AN_INTEGER));
            };
            match before.checked_add(amount) {
                Some(sum) => (new_value(object, sum.to_string().into_bytes()), Answer::Integer(sum)),
                None => (Change::Keep, Answer::error(OVERFLOW)),
            }
        })
        .await
}

pub(super) async fn incrbyfloat(call: Call) -> Outcome {
    let amount = number::parse(call.word(2)).ok_or(NOT_A_FLOAT)?;
    let key = call.face.key(call.word(1))?;
    call.face
        .update(&key, Look::Value, |object| {
            let text = object.map_or_else(|| b"0".to_vec(), |object| object.value.to_vec());
            let Some(before) = number::parse(&text) else {
                return (Change::Keep, Answer::error(NOT_A_FLOAT));
            };
            match before.add(amount) {
                Some(sum) => {
                    let text = sum.to_text();
                    (new_value(object, text.clone().into_bytes()), Answer::string(text))
                }
                None => (Change::Keep, Answer::error("ERR increment would produce NaN or Infinity")),
            }
        })
        .await
}
