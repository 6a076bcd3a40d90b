//! BITFIELD: integers of any width at any bit of a string.

use shoal_engine::{Change, ReadLevel};

use super::bits::READ_BYTES_MAX;
use super::call::{Call, Outcome, SYNTAX, integer, is};
use super::strings::{VALUE_BYTES_MAX, bytes_of};
use super::write::new_value;
use crate::answer::{Answer, Failed};

const WRONG_TYPE: &str =
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";
const WRONG_OFFSET: &str = "ERR bit offset is not an integer or out of range";

/// How an integer is stored: `i1` to `i64`, `u1` to `u63`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    signed: bool,
    bits: u32,
}

impl Kind {
    fn parse(word: &[u8]) -> Result<Self, Failed> {
        let (signed, digits) = match word {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => return Err(WRONG_TYPE.into()),
        };
        let bits = integer(digits).map_err(|_| WRONG_TYPE)?;
        let most = if signed { 64 } else { 63 };
        match u32::try_from(bits) {
            Ok(bits) if (1..=most).contains(&bits) => Ok(Self { signed, bits }),
            _ => Err(WRONG_TYPE.into()),
        }
    }

    fn least_and_most(self) -> (i128, i128) {
        match self.signed {
            true => (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1),
            false => (0, (1 << self.bits) - 1),
        }
    }

    /// The integer in the lowest bits.
    fn wrapped(self, value: i128) -> i128 {
        let unsigned = value & ((1 << self.bits) - 1);
        let (_, most) = self.least_and_most();
        if unsigned > most { unsigned - (1 << self.bits) } else { unsigned }
    }

    fn read(self, value: &[u8], offset: usize) -> i128 {
        let bits = (offset..offset + self.bits as usize).fold(0, |bits: i128, at| {
            let byte = value.get(at / 8).copied().unwrap_or(0);
            bits << 1 | i128::from(byte >> (7 - at % 8) & 1)
        });
        self.wrapped(bits)
    }

    fn write(self, value: &mut [u8], offset: usize, number: i128) {
        for at in 0..self.bits as usize {
            let place = offset + at;
            let is_on = number >> (self.bits as usize - 1 - at) & 1 != 0;
            let mask = 0x80 >> (place % 8);
            if let Some(byte) = value.get_mut(place / 8) {
                *byte = if is_on { *byte | mask } else { *byte & !mask };
            }
        }
    }
}

/// The treatment of a number that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

impl Overflow {
    fn parse(word: &[u8]) -> Result<Self, Failed> {
        let known = [("wrap", Self::Wrap), ("sat", Self::Saturate), ("fail", Self::Fail)];
        let found = known.into_iter().find(|(name, _)| is(word, name));
        found.map(|(_, overflow)| overflow).ok_or("ERR Invalid OVERFLOW type specified".into())
    }

    /// The number as it is stored; `None` if it is not stored.
    fn fit(self, kind: Kind, number: i128) -> Option<i128> {
        let (least, most) = kind.least_and_most();
        if (least..=most).contains(&number) {
            return Some(number);
        }
        match self {
            Self::Wrap => Some(kind.wrapped(number)),
            Self::Saturate => Some(number.clamp(least, most)),
            Self::Fail => None,
        }
    }
}

/// One of the operations of a command.
#[derive(Clone, Copy, Debug)]
struct Operation {
    what: What,
    kind: Kind,
    offset: usize,
    overflow: Overflow,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Get,
    Set(i64),
    Increase(i64),
}

impl Operation {
    /// Runs it, and returns its answer.
    fn run(self, value: &mut [u8]) -> Answer {
        let Self { what, kind, offset, overflow } = self;
        let before = kind.read(value, offset);
        let (wanted, answers_new) = match what {
            What::Get => return Answer::Integer(before as i64),
            // As in Redis, an unsigned field takes a negative number as its 64 bits.
            What::Set(number) if !kind.signed => (i128::from(number as u64), false),
            What::Set(number) => (number.into(), false),
            What::Increase(by) => (before + i128::from(by), true),
        };
        let Some(number) = overflow.fit(kind, wanted) else { return Answer::Null };
        kind.write(value, offset, number);
        Answer::Integer(if answers_new { number } else { before } as i64)
    }

    /// Minimum length of the string after the operation.
    fn bytes(self) -> usize {
        match self.what {
            What::Get => 0,
            What::Set(_) | What::Increase(_) => (self.offset + self.kind.bits as usize).div_ceil(8),
        }
    }
}

/// An offset in bits, or in widths of the integer if it starts with `#`, in a string of up to `bytes_max`.
fn offset(word: &[u8], kind: Kind, bytes_max: usize) -> Result<usize, Failed> {
    let (digits, scale) = match word {
        [b'#', digits @ ..] => (digits, i64::from(kind.bits)),
        digits => (digits, 1),
    };
    let offset = integer(digits).map_err(|_| WRONG_OFFSET)?.checked_mul(scale).ok_or(WRONG_OFFSET)?;
    let offset = usize::try_from(offset).map_err(|_| WRONG_OFFSET)?;
    let fits = offset.saturating_add(kind.bits as usize) <= bytes_max * 8;
    if fits { Ok(offset) } else { Err(WRONG_OFFSET.into()) }
}

fn parse(call: &Call) -> Result<Vec<Operation>, Failed> {
    let (mut operations, mut overflow) = (Vec::new(), Overflow::Wrap);
    let mut words = call.rest(2);
    loop {
        words = match words {
            [] => return Ok(operations),
            [name, kind, at, rest @ ..] if is(name, "get") => {
                let kind = Kind::parse(kind)?;
                let offset = offset(at, kind, READ_BYTES_MAX)?;
                operations.push(Operation { what: What::Get, kind, offset, overflow });
                rest
            }
            [name, word, rest @ ..] if is(name, "overflow") => {
                overflow = Overflow::parse(word)?;
                rest
            }
            [name, kind, at, number, rest @ ..] if is(name, "set") || is(name, "incrby") => {
                let kind = Kind::parse(kind)?;
                let offset = offset(at, kind, VALUE_BYTES_MAX)?;
                let number = integer(number)?;
                let what = if is(name, "set") { What::Set(number) } else { What::Increase(number) };
                operations.push(Operation { what, kind, offset, overflow });
                rest
            }
            _ => return Err(SYNTAX.into()),
        };
    }
}

pub(super) async fn bitfield(call: Call) -> Outcome {
    let operations = parse(&call)?;
    let bytes = operations.iter().map(|operation| operation.bytes()).max().unwrap_or(0);
    if bytes == 0 {
        return read(&call, &operations).await;
    }
    call.update(ReadLevel::Value, &mut |object| {
        let before = bytes_of(object);
        let mut value = before.clone();
        value.resize(value.len().max(bytes), 0);
        let answer = run_all(&operations, &mut value);
        (if value == before { Change::NoChange } else { new_value(object, value) }, answer)
    })
    .await
}

pub(super) async fn bitfield_ro(call: Call) -> Outcome {
    let operations = parse(&call)?;
    if operations.iter().any(|operation| !matches!(operation.what, What::Get)) {
        return Err("ERR BITFIELD_RO only supports the GET subcommand".into());
    }
    read(&call, &operations).await
}

async fn read(call: &Call, operations: &[Operation]) -> Outcome {
    call.answer_object(|object| run_all(operations, &mut bytes_of(object.as_ref()))).await
}

fn run_all(operations: &[Operation], value: &mut [u8]) -> Answer {
    Answer::Array(operations.iter().map(|operation| operation.run(value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> Kind {
        Kind::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn kinds_have_a_width() {
        assert_eq!(kind("i64").least_and_most(), (i64::MIN.into(), i64::MAX.into()));
        assert_eq!(kind("u8").least_and_most(), (0, 255));
        assert_eq!(kind("i1").least_and_most(), (-1, 0));
        for wrong in ["u64", "i65", "u0", "x8", "8", "", "i", "i-1", "u 8", "I8", "U8"] {
            assert!(Kind::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn integer_round_trips_at_any_bit_offset() {
        for text in ["u1", "i1", "u5", "i7", "u8", "i16", "u33", "u63", "i64"] {
            let kind = kind(text);
            let (least, most) = kind.least_and_most();
            for offset in 0..17 {
                for number in [least, most, least / 2, most / 2, most / 3] {
                    for ground in [0, 0xFF] {
                        let mut value = vec![ground; 11];
                        kind.write(&mut value, offset, number);
                        assert_eq!(kind.read(&value, offset), number, "{text} {offset}");
                        kind.write(&mut value, offset, kind.read(&[ground; 11], offset));
                        assert_eq!(value, [ground; 11]);
                    }
                }
            }
        }
        assert_eq!(kind("i8").read(&[], 100), 0, "behind the end all is zero");
    }

    #[test]
    fn overflow_wraps_saturates_or_fails() {
        let fit = |text: &str, overflow: Overflow, number| overflow.fit(kind(text), number);
        assert_eq!(fit("u8", Overflow::Wrap, 257), Some(1));
        assert_eq!(fit("u8", Overflow::Wrap, -1), Some(255));
        assert_eq!(fit("i8", Overflow::Wrap, 128), Some(-128));
        assert_eq!(fit("i8", Overflow::Wrap, -129), Some(127));
        assert_eq!(fit("i64", Overflow::Wrap, i128::from(i64::MAX) + 1), Some(i64::MIN.into()));
        assert_eq!(fit("u8", Overflow::Saturate, 300), Some(255));
        assert_eq!(fit("i8", Overflow::Saturate, -300), Some(-128));
        assert_eq!(fit("i8", Overflow::Fail, 128), None);
        assert_eq!(fit("i8", Overflow::Fail, 127), Some(127));
    }

    #[test]
    fn offsets_count_bits_or_integers() {
        let offset = |word: &[u8], kind| offset(word, kind, VALUE_BYTES_MAX);
        assert_eq!(offset(b"17", kind("u8")).unwrap(), 17);
        assert_eq!(offset(b"#3", kind("u5")).unwrap(), 15);
        let last = VALUE_BYTES_MAX * 8 - 8;
        assert_eq!(offset(last.to_string().as_bytes(), kind("u8")).unwrap(), last);
        for wrong in ["-1", "#-1", "x", "", "#", "9223372036854775807", "#9223372036854775807", "33554425"] {
            assert!(offset(wrong.as_bytes(), kind("u8")).is_err(), "{wrong}");
        }
    }
}
