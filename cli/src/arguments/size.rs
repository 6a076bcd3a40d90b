//! Sizes on the command line and in the configuration file: `64G`, `1GiB`, `500M`, `1.5T`, `4096`.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shoal_transfer::text::show_bytes;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];

impl FromStr for Size {
    type Err = String;

    /// `K`, `M`, `G` and `T` (also `KiB` and so on) count in powers of 1,024; `KB`, `MB` and so on in powers of 1,000, as GNU's tools do.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a size; write for example 500M, 1.5GiB or 64G");
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let factor = factor(unit.trim_start()).ok_or_else(wrong)?;
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(factor),
            Err(_) => fraction(number, factor),
        };
        bytes.map(Size).ok_or_else(wrong)
    }
}

fn factor(unit: &str) -> Option<u64> {
    let upper = unit.to_ascii_uppercase();
    if upper == "B" {
        return Some(1);
    }
    let letters = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B'));
    let base: u64 = if upper.ends_with('B') && !upper.ends_with("IB") { 1000 } else { 1024 };
    let letter = letters.unwrap_or(&upper);
    if letters.is_some() && letter.is_empty() {
        return None;
    }
    let power = UNITS.iter().position(|&unit| unit == letter)?;
    base.checked_pow(power as u32)
}

/// `1.5` units. The number has one point, and digits on at least one side of it.
fn fraction(number: &str, factor: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.')?;
    if part.contains('.') || (whole.is_empty() && part.is_empty()) {
        return None;
    }
    let value: f64 = number.parse().ok()?;
    let bytes = value * factor as f64;
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show_bytes(self.0))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer) {
            Ok(Written::Bytes(bytes)) => Ok(Self(bytes)),
            Ok(Written::Text(text)) => text.parse().map_err(D::Error::custom),
            Err(_) => Err(D::Error::custom("a size is a number of bytes or a text like \"64G\"")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_suffixes_are_parsed() {
        let cases: [(&str, u64); 17] = [
            ("0", 0),
            ("4096", 4096),
            ("12B", 12),
            ("1K", 1 << 10),
            ("500M", 500 << 20),
            ("64G", 64 << 30),
            ("64g", 64 << 30),
            ("1GiB", 1 << 30),
            ("1gib", 1 << 30),
            ("2 MiB", 2 << 20),
            ("1KB", 1000),
            ("3GB", 3_000_000_000),
            ("16T", 16 << 40),
            ("16TiB", 16 << 40),
            ("1.5G", 3 << 29),
            (".5K", 512),
            (" 7M ", 7 << 20),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        for text in [
            "",
            "G",
            "iB",
            "KK",
            "1X",
            "-1",
            "1.2.3M",
            ".",
            "1e9",
            "99999999999999999999",
            "99999999T",
            "1iB",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
