//! Single bits of strings, and operations on all of them. The first bit is the highest one of the first byte.

use std::collections::HashSet;

use bytes::Bytes;
use shoal_engine::{Change, Expiry, Object, ReadLevel};

use super::call::{Call, Outcome, SYNTAX, integer, is};
use super::strings::{VALUE_BYTES_MAX, bytes_of};
use super::write::{new_value, set_value};
use crate::answer::{Answer, Failed};

/// The longest string of Redis: a bit up to this length may be read, and is 0 after the end of a string.
pub(super) const READ_BYTES_MAX: usize = 512 << 20;

/// The offset of a bit in a string of up to `bytes_max` bytes.
fn bit_offset(word: &[u8], bytes_max: usize) -> Result<usize, Failed> {
    const WRONG: &str = "ERR bit offset is not an integer or out of range";
    let offset = integer(word).ok().and_then(|offset| usize::try_from(offset).ok());
    offset.filter(|offset| offset / 8 < bytes_max).ok_or(WRONG.into())
}

pub(super) async fn getbit(call: Call) -> Outcome {
    let offset = bit_offset(call.word(2), READ_BYTES_MAX)?;
    call.answer_object(|object| {
        let byte = object.and_then(|object| object.value.peek(offset / 8).first().copied()).unwrap_or(0);
        Answer::flag(byte & (0x80 >> (offset % 8)) != 0)
    })
    .await
}

pub(super) async fn setbit(call: Call) -> Outcome {
    let offset = bit_offset(call.word(2), VALUE_BYTES_MAX)?;
    let on = match &call.word(3)[..] {
        b"0" => false,
        b"1" => true,
        _ => return Err("ERR bit is not an integer or out of range".into()),
    };
    let (at, mask) = (offset / 8, 0x80_u8 >> (offset % 8));
    call.update(ReadLevel::Value, &mut |object| {
        let mut value = bytes_of(object);
        let (grows, mut before) = (at >= value.len(), false);
        value.resize(value.len().max(at + 1), 0);
        if let Some(byte) = value.get_mut(at) {
            before = *byte & mask != 0;
            *byte = if on { *byte | mask } else { *byte & !mask };
        }
        let change = if grows || before != on { new_value(object, value) } else { Change::NoChange };
        (change, Answer::flag(before))
    })
    .await
}

/// A range of bits of a string: from the first to the last, both included, in bytes or in bits; negative ones count from the
/// end.
#[derive(Clone, Copy)]
struct Part {
    start: i64,
    end: i64,
    in_bits: bool,
}

impl Part {
    const WHOLE: Self = Self { start: 0, end: -1, in_bits: false };

    /// Parses the range: no words, a start (if `end_is_optional`), start and end, or these with a unit.
    fn parse(words: &[Bytes], end_is_optional: bool) -> Result<Self, Failed> {
        let (start, end, unit) = match words {
            [] => return Ok(Self::WHOLE),
            [start] if end_is_optional => return Ok(Self { start: integer(start)?, ..Self::WHOLE }),
            [start, end] => (start, end, None),
            [start, end, unit] => (start, end, Some(unit)),
            _ => return Err(SYNTAX.into()),
        };
        let (start, end) = (integer(start)?, integer(end)?);
        let in_bits = unit.is_some_and(|unit| is(unit, "bit"));
        if unit.is_some_and(|unit| !in_bits && !is(unit, "byte")) {
            return Err(SYNTAX.into());
        }
        Ok(Self { start, end, in_bits })
    }

    /// Returns true if both positions count from the end of the string, and the last one is before the first. Then BITCOUNT
    /// finds nothing, even if both are before the start; BITPOS looks at the first byte, as Redis does.
    fn is_reversed(self) -> bool {
        self.start < 0 && self.end < 0 && self.start > self.end
    }

    /// The first bit and the one after the last, of a string of `bytes` bytes; `None` if the range is empty.
    fn within(self, bytes: usize) -> Option<(usize, usize)> {
        let scale = if self.in_bits { 1 } else { 8 };
        let total = (bytes * 8 / scale) as i64;
        let from_start = |place: i64| if place < 0 { place.saturating_add(total).max(0) } else { place };
        let (first, last) = (from_start(self.start), from_start(self.end).min(total - 1));
        let place = |unit: i64| usize::try_from(unit).ok().map(|unit| unit * scale);
        if first > last { None } else { Some((place(first)?, place(last)? + scale)) }
    }
}

/// The bits from `first` to `end` of `value`, byte by byte: the position of the byte's first bit, the byte, and the mask of the
/// bits in the range.
fn masked(value: &[u8], first: usize, end: usize) -> impl Iterator<Item = (usize, u8, u8)> + '_ {
    let bytes = value.get(first / 8..end.div_ceil(8)).unwrap_or_default();
    bytes.iter().zip(first / 8..).map(move |(&byte, at)| {
        let at = at * 8;
        let before = 0xFF_u8.checked_shr(first.saturating_sub(at) as u32).unwrap_or(0);
        let behind = 0xFF_u8.checked_shl((at + 8).saturating_sub(end) as u32).unwrap_or(0);
        (at, byte, before & behind)
    })
}

pub(super) async fn bitcount(call: Call) -> Outcome {
    let part = Part::parse(call.rest(2), false)?;
    call.answer_object(|object| {
        let value = bytes_of(object.as_ref());
        let count = |(first, end)| {
            masked(&value, first, end).map(|(_, byte, mask)| i64::from((byte & mask).count_ones())).sum()
        };
        let place = part.within(value.len()).filter(|_| !part.is_reversed());
        Answer::Integer(place.map_or(0, count))
    })
    .await
}

pub(super) async fn bitpos(call: Call) -> Outcome {
    let wanted = match call.integer(2)? {
        0 => false,
        1 => true,
        _ => return Err("ERR The bit argument must be 1 or 0.".into()),
    };
    let part = Part::parse(call.rest(3), true)?;
    let has_end = call.words.len() > 4;
    call.answer_object(|object| {
        Answer::Integer(match object {
            Some(object) => position(&object.value.to_vec(), wanted, part, has_end),
            // A missing string has an unlimited number of 0 bits.
            None if wanted => -1,
            None => 0,
        })
    })
    .await
}

/// The position of the first such bit, or -1. If the range has no explicit end, all bits after the string are 0.
fn position(value: &[u8], wanted: bool, part: Part, has_end: bool) -> i64 {
    let Some((first, end)) = part.within(value.len()) else { return -1 };
    let found = masked(value, first, end).find_map(|(at, byte, mask)| {
        let bits = if wanted { byte & mask } else { !byte & mask };
        (bits != 0).then(|| at + bits.leading_zeros() as usize)
    });
    match found {
        Some(place) => place as i64,
        None if !wanted && !has_end => value.len() as i64 * 8,
        None => -1,
    }
}

/// The operation of BITOP on the bits of its strings.
#[derive(Clone, Copy, PartialEq)]
enum Operation {
    And,
    Or,
    Xor,
    Not,
}

pub(super) async fn bitop(call: Call) -> Outcome {
    let named =
        [("and", Operation::And), ("or", Operation::Or), ("xor", Operation::Xor), ("not", Operation::Not)];
    let operation = named.iter().find(|(name, _)| is(call.word(1), name)).ok_or(SYNTAX)?.1;
    if operation == Operation::Not && call.words.len() != 4 {
        return Err("ERR BITOP NOT must be called with a single source key.".into());
    }
    let keys = call.rest(2).iter().map(|word| call.frontend.key(word)).collect::<Result<Vec<_>, _>>()?;
    // Checked before any read: all values are in memory at the same time.
    let (mut bytes, mut looked) = (0, HashSet::new());
    for key in keys.iter().skip(1) {
        bytes += key.encoded().len() as u64;
        if looked.insert(key.encoded()) {
            bytes += call.head(key, false).await?.0.map_or(0, |info| info.bytes);
        }
        let most = call.frontend.options.limits.reply_bytes_max;
        if bytes > most as u64 {
            return Err(format!("ERR the strings have more than {most} bytes together").into());
        }
    }
    let looks: Vec<_> = keys
        .into_iter()
        .enumerate()
        .map(|(at, key)| (key, if at == 0 { ReadLevel::Info } else { ReadLevel::Value }))
        .collect();
    call.update_batch(&looks, &mut |objects| {
        let (target, sources) = objects.split_first().map_or((&None, objects), |split| split);
        let result = combine(operation, sources);
        let bytes = result.len() as i64;
        let change = match (result.is_empty(), target) {
            (true, None) => Change::NoChange,
            (true, Some(_)) => Change::Delete,
            (false, _) => set_value(&result.into(), Expiry::Never),
        };
        let kept = sources.iter().map(|_| Change::NoChange);
        (std::iter::once(change).chain(kept).collect(), Answer::Integer(bytes))
    })
    .await
}

/// The strings combined bit by bit; shorter and missing ones are padded with zeros.
fn combine(operation: Operation, sources: &[Option<Object>]) -> Vec<u8> {
    let bytes = sources.iter().flatten().map(|object| object.value.len()).max().unwrap_or(0);
    let mut values = sources.iter().map(|object| {
        let mut value = bytes_of(object.as_ref());
        value.resize(bytes, 0);
        value
    });
    let Some(mut result) = values.next() else { return Vec::new() };
    if operation == Operation::Not {
        result.iter_mut().for_each(|byte| *byte = !*byte);
    }
    for value in values {
        for (byte, other) in result.iter_mut().zip(value) {
            match operation {
                Operation::And => *byte &= other,
                Operation::Or => *byte |= other,
                Operation::Xor | Operation::Not => *byte ^= other,
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: i64, end: i64, in_bits: bool) -> Part {
        Part { start, end, in_bits }
    }

    #[test]
    fn parts_are_in_bytes_or_bits() {
        assert_eq!(Part::WHOLE.within(3), Some((0, 24)));
        assert_eq!(Part::WHOLE.within(0), None);
        assert_eq!(part(1, 1, false).within(3), Some((8, 16)));
        assert_eq!(part(-2, 100, false).within(3), Some((8, 24)));
        assert_eq!(part(2, 1, false).within(3), None);
        assert_eq!(part(5, 9, true).within(2), Some((5, 10)));
        assert_eq!(part(-3, -1, true).within(2), Some((13, 16)));
        assert_eq!(part(i64::MIN, i64::MAX, true).within(2), Some((0, 16)));
        assert_eq!(part(-1, -5, true).within(2), None);
        assert_eq!(part(-20, -50, true).within(2), Some((0, 1)));
        assert!(part(-20, -50, true).is_reversed() && !part(-50, -20, true).is_reversed());
    }

    #[test]
    fn masks_match_bit_by_bit() {
        let value = [0b1010_0110, 0b0000_1111, 0xFF, 0];
        for first in 0..32 {
            for end in first + 1..=32 {
                let is_on = |at: usize| value[at / 8] & (0x80 >> (at % 8)) != 0;
                let count = (first..end).filter(|&at| is_on(at)).count() as u32;
                let masked: u32 =
                    masked(&value, first, end).map(|(_, byte, mask)| (byte & mask).count_ones()).sum();
                assert_eq!(masked, count, "{first} {end}");
                for wanted in [false, true] {
                    let place = (first..end).find(|&at| is_on(at) == wanted).map_or(-1, |at| at as i64);
                    let part = part(first as i64, end as i64 - 1, true);
                    assert_eq!(position(&value, wanted, part, true), place, "{first} {end}");
                }
            }
        }
    }

    #[test]
    fn bits_after_end_read_as_zero() {
        assert_eq!(position(&[0xFF; 3], false, Part::WHOLE, false), 24);
        assert_eq!(position(&[0xFF; 3], false, Part::WHOLE, true), -1);
        assert_eq!(position(&[0; 3], true, Part::WHOLE, false), -1);
        assert_eq!(
            position(&[0xFF; 3], false, part(3, -1, false), false),
            -1,
            "as Redis: nothing is looked at"
        );
    }
}
