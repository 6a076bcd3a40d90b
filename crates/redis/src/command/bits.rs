//! Single bits of strings. The first bit is the highest one of the first byte.

use shoal_engine::{Change, Look};

use super::strings::{bit, bit_offset, part};
use super::{Call, SYNTAX, is};
use crate::answer::{Answer, Finished, Outcome};
use crate::face::new_value;

pub(super) async fn getbit(call: Call) -> Outcome {
    let offset = bit_offset(call.word(2))?;
    let key = call.face.key(call.word(1))?;
    let (object, pending) = call.face.read(&key, call.newest).await?;
    let byte = object.and_then(|object| object.value.peek(offset / 8).first().copied()).unwrap_or(0);
    Ok(Finished::after(Answer::flag(byte & (0x80 >> (offset % 8)) != 0), pending))
}

pub(super) async fn setbit(call: Call) -> Outcome {
    let (offset, on) = (bit_offset(call.word(2))?, bit(call.word(3))?);
    let key = call.face.key(call.word(1))?;
    let (at, mask) = (offset / 8, 0x80_u8 >> (offset % 8));
    call.face
        .update(&key, Look::Value, |object| {
            let mut value = object.map(|object| object.value.to_vec()).unwrap_or_default();
            let (grows, mut before) = (at >= value.len(), false);
            value.resize(value.len().max(at + 1), 0);
            if let Some(byte) = value.get_mut(at) {
                before = *byte & mask != 0;
                *byte = if on { *byte | mask } else { *byte & !mask };
            }
            let change = if grows || before != on { new_value(object, value) } else { Change::Keep };
            (change, Answer::flag(before))
        })
        .await
}

pub(super) async fn bitcount(call: Call) -> Outcome {
    let range = match call.rest(2) {
        [] => None,
        [_, _] => Some((call.integer(2)?, call.integer(3)?)),
        [_, _, unit] if is(unit, "byte") => Some((call.integer(2)?, call.integer(3)?)),
        _ => return Err(SYNTAX.into()),
    };
    let key = call.face.key(call.word(1))?;
    let (object, pending) = call.face.read(&key, call.newest).await?;
    let count = object.map_or(0, |object| {
        let value = object.value;
        let (start, end) = range.unwrap_or((0, -1));
        let Some(range) = part(start, end, value.len() as u64) else { return 0 };
        let (first, bytes) = range.within(value.len() as u64);
        let wanted = value.range(first as usize, bytes as usize).unwrap_or_default();
        wanted.chunks().flatten().map(|byte| i64::from(byte.count_ones())).sum()
    });
    Ok(Finished::after(Answer::Integer(count), pending))
}
