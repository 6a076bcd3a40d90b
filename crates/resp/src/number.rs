//! Integers as Redis reads them: only in their shortest form. INCR uses the same rule to decide whether a value is a number.

/// The bytes of the longest integer, `-9223372036854775808`.
pub(crate) const INTEGER_BYTES_MAX: usize = 20;

/// The integer that `text` is the shortest form of: no `+`, no space, no zero in front, not `-0`.
#[must_use]
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() < INTEGER_BYTES_MAX => {}
        _ => return None,
    }
    // Accumulates negative values, because only they include the smallest integer.
    let value = digits.iter().try_fold(0_i64, |value, &digit| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_sub(i64::from(digit - b'0')),
        _ => None,
    })?;
    if negative { Some(value) } else { value.checked_neg() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_shortest_form_is_an_integer() {
        for text in ["", "-", "+1", " 1", "1 ", "01", "-0", "-01", "00", "1a", "9223372036854775808", "1e3"] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_integer(b"99999999999999999999999"), None);
        assert_eq!(parse_integer(b"-9223372036854775809"), None);
        assert_eq!(parse_integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_integer(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_integer(b"0"), Some(0));
    }

    proptest! {
        #[test]
        fn reads_every_integer(value in any::<i64>()) {
            prop_assert_eq!(parse_integer(value.to_string().as_bytes()), Some(value));
        }
    }
}
