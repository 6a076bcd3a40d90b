//! Keys, numbers and errors as text for people.

use shoal_base::limits::VALUE_BYTES_MAX;

/// Units of [`show_bytes`]; each is 1,024 of the one before.
const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];

/// A key as text: control characters and bytes that are not UTF-8 are escaped.
pub fn show_key(key: &[u8]) -> String {
    let mut shown = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                shown.extend(character.escape_default());
            } else {
                shown.push(character);
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

/// The context of a failure: `verb`, then the object.
pub fn about(verb: &str, bucket: &str, key: &[u8]) -> String {
    format!("{verb} {:?} in bucket {bucket:?}", show_key(key))
}

/// A number with thousands separators: `1,234,567`.
pub fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut shown = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// A number and a noun: `1 file`, `1,234 files`.
pub fn counted(count: u64, one: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {one}{ending}", show_count(count))
}

/// Bytes in the largest unit that leaves at least 1: `64.0 GiB`, `512 B`.
pub fn show_bytes(bytes: u64) -> String {
    let power = UNITS.iter().enumerate().skip(1).take_while(|&(power, _)| bytes >= 1 << (10 * power)).count();
    match UNITS.get(power) {
        Some(unit) if power > 0 => format!("{:.1} {unit}iB", bytes as f64 / (1_u64 << (10 * power)) as f64),
        _ => format!("{bytes} B"),
    }
}

/// The refusal of a value of `bytes` bytes, or of an unknown number above the limit: the limit and the way around it.
pub fn value_too_large(bytes: Option<u64>) -> String {
    let has = bytes.map_or_else(|| "it has more".to_owned(), |bytes| format!("it has {}", show_count(bytes)));
    format!(
        "a value has at most {} bytes ({}), and {has}; store it in parts, as `split -b 4G` makes them, under a key each",
        show_count(VALUE_BYTES_MAX),
        show_bytes(VALUE_BYTES_MAX)
    )
}

/// The error and its causes in one line. A cause that the text before already contains is left out.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let words = cause.to_string().replace('\n', " ");
        if line.contains(&words) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&words);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_other_bytes_of_keys_are_escaped() {
        assert_eq!(show_key("K\u{e4}se/1".as_bytes()), "K\u{e4}se/1");
        assert_eq!(show_key(b"a\nb\x1b[1m\xff"), "a\\nb\\u{1b}[1m\\xff");
    }

    #[test]
    fn counts_have_thousands_separators() {
        assert_eq!(counted(1, "file"), "1 file");
        for (count, text) in [
            (0, "0"),
            (12, "12"),
            (999, "999"),
            (1000, "1,000"),
            (123_456, "123,456"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(show_count(count), text);
            assert_eq!(counted(count, "file"), format!("{text} files"));
        }
    }

    #[test]
    fn bytes_are_shown_in_the_largest_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(show_bytes(bytes), text);
        }
    }

    #[test]
    fn error_is_one_line_without_repetition() {
        let error =
            anyhow::anyhow!("permission\ndenied").context("cannot open x: permission denied").context("put");
        assert_eq!(one_line(&error), "put: cannot open x: permission denied");
    }
}
