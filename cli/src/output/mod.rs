//! Standard output and standard error: keys, times and objects, as text for people and as JSON for programs.
//!
//! [`summary`] and [`space_map`] show a store, [`damage`] shows damaged ranges of keys, [`progress`] runs progress displays.

pub(crate) mod damage;
pub(crate) mod progress;
pub(crate) mod space_map;
pub(crate) mod summary;

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use shoal_client::ObjectAttributes;
use shoal_transfer::text::show_key;

use crate::failure::output_error;

/// Buffered standard output. Call [`finish`](Self::finish) after the last write.
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

    /// A key and a line end. On a terminal, control characters are escaped; programs get the bytes unchanged.
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

/// A line on standard error; a server writes it after the queued lines of its log. Write errors are ignored.
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

/// Sets `name` to the bytes as text. If they are not UTF-8, `name` has a lossy form and `name_hex` the exact bytes.
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

/// An object as JSON.
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

/// A time as RFC 3339 in UTC, to the second.
pub(crate) fn show_time(ns: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(ns)).to_string()
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
    fn bytes_that_are_not_utf_8_are_in_hexadecimal_too() {
        let mut object = Map::new();
        set_bytes(&mut object, "key", b"a\xff");
        assert_eq!(Value::from(object).to_string(), "{\"key\":\"a\u{fffd}\",\"key_hex\":\"61ff\"}");
    }
}
