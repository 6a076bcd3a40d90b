//! Time to live. An expired key does not exist for any client, in any protocol.

use std::time::Duration;

use shoal_engine::{Change, Deadline, Expiry, ReadLevel};

use super::call::{Call, Outcome, integer, is};
use super::write::new_expiry;
use crate::answer::{Answer, Failed};

/// The unit of a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// From now.
    Seconds,
    /// From now.
    Milliseconds,
    /// Since the Unix epoch.
    AtSeconds,
    /// Since the Unix epoch.
    AtMilliseconds,
}

impl Unit {
    /// By its name in SET and GETEX.
    pub(super) fn of_word(word: &[u8]) -> Option<Self> {
        let words = [
            ("ex", Self::Seconds),
            ("px", Self::Milliseconds),
            ("exat", Self::AtSeconds),
            ("pxat", Self::AtMilliseconds),
        ];
        words.into_iter().find(|(name, _)| is(word, name)).map(|(_, unit)| unit)
    }

    /// The expiry that a write requests; `moment_ms` is the time of `amount`, which is above 0.
    fn expiry(self, amount: i64, moment_ms: i64) -> Expiry {
        let amount = u64::try_from(amount).unwrap_or(0);
        match self {
            Self::Seconds => Expiry::After(Duration::from_secs(amount)),
            Self::Milliseconds => Expiry::After(Duration::from_millis(amount)),
            Self::AtSeconds | Self::AtMilliseconds => Expiry::At(to_ns(moment_ms)),
        }
    }

    /// The time in milliseconds since the Unix epoch; `None` if it is out of range.
    fn moment_ms(self, amount: i64, now_ms: i64) -> Option<i64> {
        let in_ms = match self {
            Self::Seconds | Self::AtSeconds => amount.checked_mul(1000)?,
            Self::Milliseconds | Self::AtMilliseconds => amount,
        };
        match self {
            Self::Seconds | Self::Milliseconds => in_ms.checked_add(now_ms),
            Self::AtSeconds | Self::AtMilliseconds => Some(in_ms),
        }
    }
}

/// Now by the wall clock, as a signed number for subtractions.
fn now_ms(call: &Call) -> i64 {
    (call.frontend.clock.wall_ns() / 1_000_000) as i64
}

/// The engine's time: nanoseconds since the Unix epoch. Times after the year 2554 are clamped to it.
fn to_ns(moment_ms: i64) -> u64 {
    u64::try_from(moment_ms).unwrap_or(0).saturating_mul(1_000_000)
}

/// The time of the wall clock, in milliseconds; rounded, because store times are between two of them.
fn at_ms(deadline: Deadline) -> i64 {
    (deadline.at_ns.saturating_add(500_000) / 1_000_000) as i64
}

/// The remaining time, in milliseconds, rounded up: an existing object has some time left.
fn left_ms(deadline: Deadline) -> i64 {
    deadline.left_ns.div_ceil(1_000_000) as i64
}

/// The expiry that SET and similar commands request; it must be after the epoch.
pub(super) fn expiry_of(call: &Call, unit: Unit, amount: i64) -> Result<Expiry, Failed> {
    if amount <= 0 {
        return Err(call.invalid_expiry());
    }
    let moment = unit.moment_ms(amount, now_ms(call)).ok_or_else(|| call.invalid_expiry())?;
    Ok(unit.expiry(amount, moment))
}

/// The conditions of EXPIRE and similar commands.
#[derive(Clone, Copy, Default)]
struct Conditions {
    if_none: bool,
    if_any: bool,
    if_later: bool,
    if_earlier: bool,
}

impl Conditions {
    fn parse(call: &Call) -> Result<Self, Failed> {
        let mut conditions = Self::default();
        for word in call.rest(3) {
            match () {
                () if is(word, "nx") => conditions.if_none = true,
                () if is(word, "xx") => conditions.if_any = true,
                () if is(word, "gt") => conditions.if_later = true,
                () if is(word, "lt") => conditions.if_earlier = true,
                () => {
                    let word = String::from_utf8_lossy(word);
                    return Err(format!("ERR Unsupported option {word}").into());
                }
            }
        }
        if conditions.if_none && (conditions.if_any || conditions.if_later || conditions.if_earlier) {
            return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
        }
        if conditions.if_later && conditions.if_earlier {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(conditions)
    }

    /// Returns true if a key that expires at `before` may be changed to expire at `after`. Without a time, it lives forever.
    fn allow(self, before: Option<i64>, after: i64) -> bool {
        let later = before.is_some_and(|before| after > before);
        let earlier = before.is_none_or(|before| after < before);
        !(self.if_none && before.is_some()
            || self.if_any && before.is_none()
            || self.if_later && !later
            || self.if_earlier && !earlier)
    }
}

pub(super) async fn expire(call: Call, unit: Unit) -> Outcome {
    let amount = integer(call.word(2))?;
    let conditions = Conditions::parse(&call)?;
    let now = now_ms(&call);
    let moment = unit.moment_ms(amount, now).ok_or_else(|| call.invalid_expiry())?;
    call.update(ReadLevel::Value, &mut |object| {
        let Some(object) = object.filter(|object| conditions.allow(object.info.expiry.map(at_ms), moment))
        else {
            return (Change::NoChange, Answer::Integer(0));
        };
        let change =
            if moment <= now { Change::Delete } else { new_expiry(object, unit.expiry(amount, moment)) };
        (change, Answer::Integer(1))
    })
    .await
}

pub(super) async fn persist(call: Call) -> Outcome {
    call.update(ReadLevel::Value, &mut |object| match object.filter(|object| object.info.expiry.is_some()) {
        Some(object) => (new_expiry(object, Expiry::Never), Answer::Integer(1)),
        None => (Change::NoChange, Answer::Integer(0)),
    })
    .await
}

/// Answers the remaining time of a key, or its end; -2 without a key, -1 without an end.
pub(super) async fn tell(call: Call, unit: Unit) -> Outcome {
    let tell = |deadline: Deadline| match unit {
        Unit::Seconds => left_ms(deadline).saturating_add(500) / 1000,
        Unit::Milliseconds => left_ms(deadline),
        Unit::AtSeconds => at_ms(deadline).saturating_add(500) / 1000,
        Unit::AtMilliseconds => at_ms(deadline),
    };
    call.answer_info(|info| Answer::Integer(info.map_or(-2, |info| info.expiry.map_or(-1, tell)))).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_hold_as_in_redis() {
        let none = Conditions::default();
        assert!(none.allow(None, 5) && none.allow(Some(9), 5));
        let later = Conditions { if_later: true, ..none };
        assert!(later.allow(Some(4), 5) && !later.allow(Some(5), 5));
        assert!(!later.allow(None, 5), "without a time it lives for ever");
        let earlier = Conditions { if_earlier: true, ..none };
        assert!(earlier.allow(None, 5) && earlier.allow(Some(6), 5) && !earlier.allow(Some(5), 5));
        let any = Conditions { if_any: true, ..none };
        assert!(any.allow(Some(1), 5) && !any.allow(None, 5));
        let missing = Conditions { if_none: true, ..none };
        assert!(missing.allow(None, 5) && !missing.allow(Some(1), 5));
    }

    #[test]
    fn impossible_expire_times_are_rejected() {
        assert_eq!(Unit::Seconds.moment_ms(10, 1_000), Some(11_000));
        assert_eq!(Unit::Seconds.moment_ms(i64::MAX / 1000 + 1, 0), None);
        assert_eq!(Unit::Milliseconds.moment_ms(i64::MAX - 5, 10), None);
        assert_eq!(Unit::AtMilliseconds.moment_ms(i64::MAX, 10), Some(i64::MAX));
        assert_eq!(to_ns(i64::MAX), u64::MAX);
        assert_eq!(to_ns(-5), 0);
    }
}
