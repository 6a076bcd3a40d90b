//! Byte ranges as in HTTP: `0-99` (the first 100 bytes), `100-` (all from byte 100 on), `-100` (the last 100 bytes).

use std::str::FromStr;

use shoal_client::ByteRange;

/// A range of a value of unknown length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeArgument {
    /// From the first byte to the last, included, or to the end of the value.
    From(u64, Option<u64>),
    /// The last bytes.
    Last(u64),
}

impl FromStr for RangeArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not a range; write 0-99 (the first 100 bytes), 100- (from byte 100 on) or -100 (the last 100)"
            )
        };
        let number = |part: &str| {
            let plain = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| part.parse::<u64>().ok()).flatten().ok_or_else(wrong)
        };
        match text.split_once('-').ok_or_else(wrong)? {
            ("", last) => number(last).map(Self::Last),
            (first, "") => Ok(Self::From(number(first)?, None)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                if last < first {
                    return Err(format!("the range {text} ends before its start"));
                }
                Ok(Self::From(first, Some(last)))
            }
        }
    }
}

impl RangeArgument {
    /// The bytes of the range, if they do not depend on the value's length.
    pub(crate) fn fixed(self) -> Option<ByteRange> {
        match self {
            Self::From(first, last) => {
                Some(ByteRange { first, bytes: last.map(|last| (last - first).saturating_add(1)) })
            }
            Self::Last(_) => None,
        }
    }

    /// The bytes of the range in a value of `value_bytes` bytes.
    pub(crate) fn within(self, value_bytes: u64) -> ByteRange {
        match self {
            Self::Last(bytes) => ByteRange { first: value_bytes.saturating_sub(bytes), bytes: None },
            Self::From(..) => self.fixed().unwrap_or(ByteRange::ALL),
        }
    }

    /// Returns true if a value of `value_bytes` bytes has any byte of the range. HTTP answers 416 if not.
    pub(crate) fn reaches(self, value_bytes: u64) -> bool {
        match self {
            Self::From(first, _) => first < value_bytes,
            Self::Last(bytes) => bytes > 0 && value_bytes > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms_are_read() {
        let within =
            |text: &str, bytes: u64| text.parse::<RangeArgument>().unwrap().within(bytes).within(bytes);
        assert_eq!(within("0-99", 1000), (0, 100), "both ends belong to it");
        assert_eq!(within("0-0", 1000), (0, 1));
        assert_eq!(within("990-2000", 1000), (990, 10));
        assert_eq!(within("100-", 1000), (100, 900));
        assert_eq!(within("-100", 1000), (900, 100));
        assert_eq!(within("-5000", 1000), (0, 1000));
        assert_eq!(within("0-18446744073709551615", 1000), (0, 1000));
    }

    #[test]
    fn range_beyond_the_end_is_empty() {
        let reaches = |text: &str, bytes: u64| text.parse::<RangeArgument>().unwrap().reaches(bytes);
        assert!(reaches("9-", 10) && !reaches("10-", 10) && !reaches("10-20", 10));
        assert!(reaches("-1", 10) && !reaches("-0", 10) && !reaches("-5", 0));
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        for text in
            ["", "-", "5", "a-b", "5-3", "1-2-3", "+1-2", " 1-2", "--5", "0x1-2", "1-99999999999999999999999"]
        {
            assert!(text.parse::<RangeArgument>().is_err(), "{text}");
        }
    }
}
