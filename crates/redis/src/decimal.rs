//! The decimals of INCRBYFLOAT: parsing, sums and text.
//!
//! Decimals that people write are added exactly: `0.1` plus `0.2` is `0.3`, as in Redis, whose long doubles are rounded to 17
//! digits. A number that does not fit into a decimal of this kind is added as a double.

/// Digits after the point in a decimal, as Redis writes them.
const DECIMALS: u32 = 17;
/// Decimals above this, in units of 10^-17, are added as doubles; the sum of two fits in an `i128`.
const DECIMAL_MAX: i128 = 10_i128.pow(37);

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// Units of 10^-17.
    Decimal(i128),
    Double(f64),
}

/// The number in `text`; `None` if it is not a number. Infinities are numbers here.
pub(crate) fn parse(text: &[u8]) -> Option<Number> {
    let text = std::str::from_utf8(text).ok()?;
    if let Some(decimal) = parse_decimal(text) {
        return Some(Number::Decimal(decimal));
    }
    let first = text.bytes().next()?;
    // Words like "infinity" are numbers in C and in Rust; "nan" may not be added.
    if first.is_ascii_whitespace() || !text.bytes().last()?.is_ascii_alphanumeric() && !text.ends_with('.') {
        return None;
    }
    text.parse().ok().filter(|number: &f64| !number.is_nan()).map(Number::Double)
}

fn parse_decimal(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (mut units, mut behind, mut any, mut point) = (0_i128, 0, false, false);
    for &byte in digits {
        match byte {
            b'.' if !point => point = true,
            b'0'..=b'9' => {
                any = true;
                behind += u32::from(point);
                units = units.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
            }
            _ => return None,
        }
    }
    if !any || behind > DECIMALS {
        return None;
    }
    let units = units.checked_mul(10_i128.checked_pow(DECIMALS - behind)?)?;
    (units <= DECIMAL_MAX).then_some(if negative { -units } else { units })
}

impl Number {
    fn to_f64(self) -> f64 {
        match self {
            // The conversion of the text rounds only once.
            Self::Decimal(_) => self.to_text().parse().unwrap_or(f64::NAN),
            Self::Double(number) => number,
        }
    }

    /// The sum; `None` if it is not finite.
    pub(crate) fn add(self, other: Self) -> Option<Self> {
        if let (Self::Decimal(one), Self::Decimal(other)) = (self, other) {
            let sum = one + other;
            if sum.abs() <= DECIMAL_MAX {
                return Some(Self::Decimal(sum));
            }
        }
        let sum = self.to_f64() + other.to_f64();
        sum.is_finite().then_some(Self::Double(sum))
    }

    /// Without an exponent and without trailing zeros.
    pub(crate) fn to_text(self) -> String {
        match self {
            Self::Decimal(units) => {
                let scale = 10_u128.pow(DECIMALS);
                let (whole, part) = (units.unsigned_abs() / scale, units.unsigned_abs() % scale);
                let sign = if units < 0 { "-" } else { "" };
                if part == 0 {
                    return format!("{sign}{whole}");
                }
                let part = format!("{part:017}");
                format!("{sign}{whole}.{}", part.trim_end_matches('0'))
            }
            Self::Double(0.0) => "0".to_owned(),
            Self::Double(number) => number.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(one: &str, other: &str) -> Option<String> {
        parse(one.as_bytes())?.add(parse(other.as_bytes())?).map(Number::to_text)
    }

    #[test]
    fn decimal_sums_are_exact() {
        for (one, other, expected) in [
            ("0.1", "0.2", "0.3"),
            ("1", "0.25", "1.25"),
            ("17179869184", "1.5", "17179869185.5"),
            ("1", "-1.1", "-0.1"),
            ("5.0e3", "2.0e2", "5200"),
            ("10.50", "0.1", "10.6"),
            ("3", "-3", "0"),
            ("0.024390243902439025", "-0.024390243902439025", "0"),
            (
                "1e300",
                "1e300",
                "2000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
            ),
        ] {
            assert_eq!(sum(one, other).as_deref(), Some(expected), "{one} + {other}");
        }
        assert_eq!(sum("1e308", "1e308"), None, "infinite");
        assert_eq!(sum("inf", "1"), None);
        for text in ["", " 1", "1 ", "abc", "1x", "nan", ".", "-", "1\0"] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
