//! The records of pax extended headers: `LENGTH KEY=VALUE\n`. The length includes itself.

use std::collections::HashSet;

use crate::attributes::extras::Extras;
use crate::tarball::XATTR;

/// Nanoseconds of a second.
const SECOND: i128 = 1_000_000_000;

/// The records of an extended header, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records(Vec<(Vec<u8>, Vec<u8>)>);

impl Records {
    /// Parses the body of an extended header; none if it is damaged.
    pub(crate) fn parse(mut body: &[u8]) -> Option<Self> {
        let mut records = Vec::new();
        while !body.is_empty() {
            let space = body.iter().position(|&byte| byte == b' ')?;
            let length: usize = std::str::from_utf8(body.get(..space)?).ok()?.parse().ok()?;
            let record = body.get(space + 1..length)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|&byte| byte == b'=')?;
            records.push((record.get(..equals)?.to_vec(), record.get(equals + 1..)?.to_vec()));
            body = body.get(length..)?;
        }
        Some(Self(records))
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.0.push((key.to_vec(), value.to_vec()));
    }

    /// Returns true if there are no records.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their approximate memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.0
            .iter()
            .map(|(key, value)| (key.len() + value.len() + size_of::<(Vec<u8>, Vec<u8>)>()) as u64)
            .sum()
    }

    /// The last value of `key`; none if it is empty, because an empty value deletes the records before it.
    pub(crate) fn text(&self, key: &[u8]) -> Option<&[u8]> {
        self.get(key).filter(|value| !value.is_empty())
    }

    /// The last value of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.iter().rev().find(|(own, _)| own == key).map(|(_, value)| &value[..])
    }

    /// Returns true if the key of a record starts with `start`.
    pub(crate) fn has_prefix(&self, start: &[u8]) -> bool {
        self.0.iter().any(|(key, _)| key.starts_with(start))
    }

    /// Adds the records of `more`, which replace those with the same keys.
    pub(crate) fn replace(&mut self, more: Self) {
        let keys: HashSet<&[u8]> = more.0.iter().map(|(key, _)| &key[..]).collect();
        self.0.retain(|(key, _)| !keys.contains(&key[..]));
        self.0.extend(more.0);
    }

    /// These records and then those of `more`, which have precedence.
    pub(crate) fn with(&self, more: Self) -> Self {
        Self(self.0.iter().cloned().chain(more.0).collect())
    }

    /// The extras, from Shoal's extended attributes.
    ///
    /// # Errors
    /// One of Shoal's attributes is invalid.
    pub(crate) fn extras(&self) -> Result<Extras, String> {
        let mut extras = Extras::default();
        for (key, value) in &self.0 {
            if let Some(name) = key.strip_prefix(XATTR) {
                extras.add(name, value)?;
            }
        }
        Ok(extras)
    }

    /// The body of an extended header.
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for (key, value) in &self.0 {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + decimals(rest);
            if rest + decimals(length) > length {
                length += 1;
            }
            body.extend_from_slice(format!("{length} ").as_bytes());
            for part in [&key[..], b"=", value, b"\n"] {
                body.extend_from_slice(part);
            }
        }
        body
    }
}

fn decimals(number: usize) -> usize {
    number.to_string().len()
}

/// A time for a record: seconds, with a fraction unless it is 0.
pub(crate) fn show_time(time_ns: i128) -> String {
    let sign = if time_ns < 0 { "-" } else { "" };
    let (seconds, fraction) = (time_ns.abs() / SECOND, time_ns.abs() % SECOND);
    if fraction == 0 { format!("{sign}{seconds}") } else { format!("{sign}{seconds}.{fraction:09}") }
}

/// The time in a record, in nanoseconds; finer digits are dropped.
pub(crate) fn parse_time(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |text| (-1, text));
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(seconds) || !is_number(fraction) || seconds.len() + fraction.len() == 0 {
        return None;
    }
    // `.5` is half a second.
    let seconds = if seconds.is_empty() { 0 } else { i128::from(seconds.parse::<i64>().ok()?) };
    let fraction: i128 = format!("{fraction:0<9.9}").parse().ok()?;
    Some(sign * (seconds * SECOND + fraction))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_length_includes_itself() {
        for (value_bytes, length) in [(0, 5), (4, 9), (5, 11), (93, 99), (94, 101)] {
            let mut records = Records::default();
            records.push(b"k", &vec![b'v'; value_bytes]);
            let body = records.body();
            assert_eq!(body.len(), length);
            assert!(body.starts_with(format!("{length} k=").as_bytes()));
        }
    }

    #[test]
    fn damaged_records_are_refused() {
        for body in [
            "5",
            "5 k=",
            "6 k=v",
            "6 k=v!",
            "0 k=v\n",
            "x k=v\n",
            "4 kv\n",
            "99999999999999999999 k=v\n",
            "7 k=v\n",
        ] {
            assert_eq!(Records::parse(body.as_bytes()), None, "{body:?}");
        }
    }

    #[test]
    fn times_have_signs_and_fractions() {
        for (time_ns, text) in [
            (0, "0"),
            (-1, "-0.000000001"),
            (1_500_000_000, "1.500000000"),
            (-62_000_000_000_000_000_001, "-62000000000.000000001"),
        ] {
            assert_eq!(show_time(time_ns), text);
            assert_eq!(parse_time(text.as_bytes()), Some(time_ns));
        }
        assert_eq!(parse_time(b"1.5"), Some(1_500_000_000));
        assert_eq!(parse_time(b"1.1234567899"), Some(1_123_456_789));
        assert_eq!(parse_time(b"-.5"), Some(-500_000_000));
        for text in ["", ".", "-", "1e30", "x", "1.x", "--1", "1.-5", "99999999999999999999"] {
            assert_eq!(parse_time(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn records_survive_a_round_trip(pairs in prop::collection::vec(("[a-z.]{1,20}", prop::collection::vec(any::<u8>(), 0..200)), 0..5)) {
            let mut records = Records::default();
            pairs.iter().for_each(|(key, value)| records.push(key.as_bytes(), value));
            prop_assert_eq!(Records::parse(&records.body()), Some(records));
        }

        #[test]
        fn no_bytes_panic(body in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Records::parse(&body);
            let _ = parse_time(&body);
        }
    }
}
