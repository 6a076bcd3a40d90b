//! How keys, times and objects are shown: for people, and as JSON for programs.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use shoal_base::limits::VALUE_BYTES_MAX;
use shoal_client::ObjectAttributes;

use crate::failure::output_error;
use crate::size::Size;

/// Standard output, buffered. Call [`finish`](Self::finish) after the last write.
pub(crate) struct Output {
    inner: io::BufWriter<io::Stdout>,
    terminal: bool,
}

impl Output {
    pub(crate) fn new() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self { inner: io::BufWriter::with_capacity(64 << 10, stdout), terminal }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.inner.write_all(bytes).map_err(output_error)
    }

    pub(crate) fn line(&mut self, text: &str) -> anyhow::Result<()> {
        self.bytes(text.as_bytes())?;
        self.bytes(b"\n")
    }

    /// A key and a line end. For a terminal, bytes that could confuse it are escaped; programs get the bytes as they are.
    pub(crate) fn key_line(&mut self, key: &[u8]) -> anyhow::Result<()> {
        if self.terminal {
            self.line(&show_key(key))
        } else {
            self.bytes(key).and_then(|()| self.bytes(b"\n"))
        }
    }

    pub(crate) fn json(&mut self, value: &Value) -> anyhow::Result<()> {
        self.line(&value.to_string())
    }

    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        self.inner.flush().map_err(output_error)
    }
}

/// A line on standard error; a server writes it after those of its log. Without a reader it is lost.
pub(crate) fn warn(text: &str) {
    if crate::logging::say(text) {
        return;
    }
    let _ = writeln!(io::stderr(), "{text}");
}

/// The bytes of an argument.
pub(crate) fn bytes_of(argument: &OsStr) -> &[u8] {
    argument.as_bytes()
}

/// A key for people: control characters and bytes that are not UTF-8 are escaped.
pub(crate) fn show_key(key: &[u8]) -> String {
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

/// The words for the object of a failure, after the verb.
pub(crate) fn about(verb: &str, bucket: &str, key: &[u8]) -> String {
    format!("{verb} {:?} in bucket {bucket:?}", show_key(key))
}

/// Sets `name` to the bytes as text; if they are not UTF-8, `name_hex` has them exactly and `name` an approximation.
pub(crate) fn set_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            object.insert(name.into(), text.into());
        }
        Err(_) => {
            object.insert(name.into(), String::from_utf8_lossy(bytes).into());
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            object.insert(format!("{name}_hex"), hex.into());
        }
    }
}

/// An object for programs.
pub(crate) fn object_json(key: &[u8], info: &ObjectAttributes) -> Value {
    let mut object = Map::new();
    set_bytes(&mut object, "key", key);
    object.insert("bytes".into(), info.bytes.into());
    object.insert("version".into(), info.version.0.into());
    object.insert("modified".into(), show_time(info.modified_ns).into());
    object.insert("modified_ns".into(), info.modified_ns.into());
    if let (Some(ttl_ns), Some(at_ns)) = (info.ttl_ns, info.expire_time_ns) {
        object.insert("ttl_ns".into(), ttl_ns.into());
        object.insert("expire_time_ns".into(), at_ns.into());
    }
    object.insert("content_type".into(), info.metadata.content_type.clone().into());
    let user = info.metadata.user.iter().map(|(name, value)| {
        let mut entry = Map::new();
        entry.insert("name".into(), name.clone().into());
        set_bytes(&mut entry, "value", value);
        Value::from(entry)
    });
    object.insert("meta".into(), json!(user.collect::<Vec<_>>()));
    object.into()
}

/// A moment as RFC 3339 in UTC, in seconds.
pub(crate) fn show_time(ns: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(ns)).to_string()
}

/// A number with its thousands apart: `1,234,567`.
pub(crate) fn show_count(count: u64) -> String {
    indicatif::HumanCount(count).to_string()
}

/// A number and the things that it counts: `1 file`, `1,234 files`.
pub(crate) fn counted(count: u64, one: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {one}{ending}", show_count(count))
}

/// The refusal of a value of `bytes`, or more than any value may have: the limit and the way out.
pub(crate) fn value_too_large(bytes: Option<u64>) -> String {
    let has = bytes.map_or_else(|| "it has more".to_owned(), |bytes| format!("it has {}", show_count(bytes)));
    format!(
        "a value has at most {} bytes ({}), and {has}; store it in parts, as `split -b 4G` makes them, under a key each",
        show_count(VALUE_BYTES_MAX),
        Size(VALUE_BYTES_MAX)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_follow_the_calendar() {
        // As `date -u -d @SECONDS` prints them.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (68_169_599, "1972-02-28T23:59:59Z"),
            (68_169_600, "1972-02-29T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(show_time(seconds * 1_000_000_000 + 5), text);
        }
    }

    #[test]
    fn keys_are_escaped_for_terminals() {
        assert_eq!(show_key("K\u{e4}se/1".as_bytes()), "K\u{e4}se/1");
        assert_eq!(show_key(b"a\nb\x1b[1m\xff"), "a\\nb\\u{1b}[1m\\xff");
        let mut object = Map::new();
        set_bytes(&mut object, "key", b"a\xff");
        assert_eq!(Value::from(object).to_string(), "{\"key\":\"a\u{fffd}\",\"key_hex\":\"61ff\"}");
    }

    #[test]
    fn counts_have_their_thousands_apart() {
        assert_eq!(counted(1, "file"), "1 file");
        for (count, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(show_count(count), text);
            assert_eq!(counted(count, "file"), format!("{text} files"));
        }
    }
}
