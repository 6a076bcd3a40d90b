//! The form of a zip: objects as they are (stored), with 64-bit fields if they are needed. An object that is longer than a piece has its
//! checksum after it, in a data descriptor.

use flate2::Crc;
use shoal_s3::time::{SECOND_NS, iso_of};

/// The value of a short field whose value is in the 64-bit fields.
const LONG: u64 = u32::MAX as u64;

/// Bytes of an entry of the directory besides its name.
const ENTRY_BYTES_MAX: usize = 46 + 28;

/// Flags: the name is UTF-8; a data descriptor follows.
const UTF8: u16 = 1 << 11;
const DESCRIPTOR: u16 = 1 << 3;

/// The version that a reader needs: 4.5 has 64-bit fields.
const VERSION: u16 = 45;
/// The attributes in the directory are those of Unix.
const MADE_BY: u16 = 3 << 8 | VERSION;

/// An object that is being written.
pub(super) struct ZipEntry {
    name: String,
    is_folder: bool,
    moment: [u16; 2],
    bytes: u64,
    start: u64,
    crc: Crc,
    has_descriptor: bool,
}

/// The directory of a zip, which is its end.
#[derive(Default)]
pub(super) struct ZipDirectory {
    entries: u64,
    content: Vec<u8>,
}

/// The most bytes of the directory's entry of a name.
pub(super) fn entry_bytes_max(path: &str) -> usize {
    ENTRY_BYTES_MAX + path.len() + 1
}

fn put16(out: &mut Vec<u8>, values: &[u16]) {
    values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
}

fn put32(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

impl ZipEntry {
    /// Writes the header of an object of `bytes` bytes at `start`. `whole`: the value, if it is in memory.
    pub(super) fn begin(
        out: &mut Vec<u8>,
        (path, is_folder): (&str, bool),
        (bytes, modified_ns): (u64, u64),
        start: u64,
        whole: Option<&[u8]>,
    ) -> Self {
        let name = if is_folder { format!("{path}/") } else { path.to_owned() };
        let mut crc = Crc::new();
        crc.update(whole.unwrap_or_default());
        let has_descriptor = whole.is_none();
        let is_long = bytes >= LONG;
        let moment = dos_moment(modified_ns);
        out.extend_from_slice(b"PK\x03\x04");
        put16(out, &[VERSION, UTF8 | if has_descriptor { DESCRIPTOR } else { 0 }, 0]);
        put16(out, &moment);
        let (sum, length) = if has_descriptor { (0, 0) } else { (u64::from(crc.sum()), bytes) };
        put32(out, sum);
        let length = if is_long { LONG } else { length };
        put32(out, length);
        put32(out, length);
        put16(out, &[name_bytes(&name), if is_long { 20 } else { 0 }]);
        out.extend_from_slice(name.as_bytes());
        if is_long {
            put16(out, &[1, 16]);
            put64(out, 0);
            put64(out, 0);
        }
        if whole.is_some() {
            // They were counted.
            return Self { name, is_folder, moment, bytes, start, crc, has_descriptor };
        }
        Self { name, is_folder, moment, bytes, start, crc: Crc::new(), has_descriptor }
    }

    /// Counts a piece of an object whose checksum follows it.
    pub(super) fn count(&mut self, piece: &[u8]) {
        self.crc.update(piece);
    }

    /// Writes the end of the object, and its entry of the directory.
    pub(super) fn end(self, out: &mut Vec<u8>, directory: &mut ZipDirectory) {
        let (sum, is_long) = (u64::from(self.crc.sum()), self.bytes >= LONG);
        if self.has_descriptor {
            out.extend_from_slice(b"PK\x07\x08");
            put32(out, sum);
            for _ in 0..2 {
                if is_long { put64(out, self.bytes) } else { put32(out, self.bytes) }
            }
        }
        directory.entries += 1;
        let out = &mut directory.content;
        let is_far = self.start >= LONG;
        let extra = 16 * u16::from(is_long) + 8 * u16::from(is_far);
        out.extend_from_slice(b"PK\x01\x02");
        put16(out, &[MADE_BY, VERSION, UTF8 | if self.has_descriptor { DESCRIPTOR } else { 0 }, 0]);
        put16(out, &self.moment);
        put32(out, sum);
        put32(out, self.bytes);
        put32(out, self.bytes);
        put16(out, &[name_bytes(&self.name), if extra > 0 { extra + 4 } else { 0 }, 0, 0, 0]);
        put32(out, if self.is_folder { 0o040_755 << 16 | 0x10 } else { 0o100_644 << 16 });
        put32(out, self.start);
        out.extend_from_slice(self.name.as_bytes());
        if extra > 0 {
            put16(out, &[1, extra]);
            if is_long {
                put64(out, self.bytes);
                put64(out, self.bytes);
            }
            if is_far {
                put64(out, self.start);
            }
        }
    }
}

impl ZipDirectory {
    /// Its bytes so far.
    pub(super) fn bytes(&self) -> usize {
        self.content.len()
    }

    /// The directory and the end of a zip whose objects have `start` bytes.
    pub(super) fn finish(self, start: u64) -> Vec<u8> {
        let Self { entries, content: mut out } = self;
        let bytes = out.len() as u64;
        let few = u64::from(u16::MAX);
        if entries >= few || bytes >= LONG || start >= LONG {
            out.extend_from_slice(b"PK\x06\x06");
            put64(&mut out, 44);
            put16(&mut out, &[MADE_BY, VERSION]);
            put32(&mut out, 0);
            put32(&mut out, 0);
            for value in [entries, entries, bytes, start] {
                put64(&mut out, value);
            }
            out.extend_from_slice(b"PK\x06\x07");
            put32(&mut out, 0);
            put64(&mut out, start + bytes);
            put32(&mut out, 1);
        }
        let count = u16::try_from(entries).unwrap_or(u16::MAX);
        out.extend_from_slice(b"PK\x05\x06");
        put16(&mut out, &[0, 0, count, count]);
        put32(&mut out, bytes);
        put32(&mut out, start);
        put16(&mut out, &[0]);
        out
    }
}

/// Keys are far shorter than names may be.
fn name_bytes(name: &str) -> u16 {
    u16::try_from(name.len()).unwrap_or(u16::MAX)
}

/// The time and the date of a moment, in UTC. The first one is the start of 1980.
fn dos_moment(ns: u64) -> [u16; 2] {
    let text = iso_of(ns - ns % SECOND_NS);
    let number = |at: usize, bytes: usize| text.get(at..at + bytes)?.parse::<u16>().ok();
    let fields = || {
        let (year, month, day) = (number(0, 4)?.checked_sub(1980)?, number(5, 2)?, number(8, 2)?);
        let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
        Some([hour << 11 | minute << 5 | (second / 2), year.min(127) << 9 | month << 5 | day])
    };
    fields().unwrap_or([0, 1 << 5 | 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_two_seconds() {
        // 2026-11-30T14:31:49Z.
        let ns = 1_796_049_109 * SECOND_NS + 5;
        assert_eq!(dos_moment(ns), [14 << 11 | 31 << 5 | 24, 46 << 9 | 11 << 5 | 30]);
        assert_eq!(dos_moment(0), [0, 33]);
    }

    #[test]
    fn far_and_long_objects_have_64_bit_fields() {
        let entry = |bytes, start| {
            let (mut out, mut directory) = (Vec::new(), ZipDirectory::default());
            let entry = ZipEntry::begin(&mut out, ("a", false), (bytes, 0), start, None);
            let head = out.len();
            entry.end(&mut out, &mut directory);
            (head, out.len() - head, directory.content.len(), directory.finish(start).len())
        };
        assert_eq!(entry(LONG - 1, LONG - 1), (31, 16, 47, 47 + 22));
        assert_eq!(entry(LONG, 0), (51, 24, 47 + 20, 47 + 20 + 22));
        assert_eq!(entry(LONG, LONG), (51, 24, 47 + 28, 47 + 28 + 56 + 20 + 22));
        assert!(entry(LONG, LONG).2 <= entry_bytes_max("a"));
    }
}
