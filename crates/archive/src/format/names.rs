//! The names of the objects of an archive, relative to its prefix. No name is ever used twice.

use std::fmt;

/// The identity of the volume that an archive is of: that of its store.
pub type VolumeId = [u8; 16];

/// A slot of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogSlot {
    /// The log: 64 random bits, not 0.
    pub log: u64,
    /// The slot, from 0.
    pub seq: u64,
}

/// An object of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArchiveName {
    /// The one object that changes.
    Record,
    /// A segment or a tombstone.
    Slot(LogSlot),
    /// A part of a base.
    Part {
        /// The base: 64 random bits, not 0.
        base: u64,
        /// The part, from 0.
        part: u32,
    },
    /// The list of the parts of a base.
    BaseEnd {
        /// The base.
        base: u64,
    },
}

impl fmt::Display for LogSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log/{:016x}/{:016x}", self.log, self.seq)
    }
}

impl fmt::Display for ArchiveName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record => f.write_str("record"),
            Self::Slot(slot) => slot.fmt(f),
            Self::Part { base, part } => write!(f, "base/{base:016x}/{part:08x}"),
            Self::BaseEnd { base } => write!(f, "base/{base:016x}/end"),
        }
    }
}

impl ArchiveName {
    /// The object with this name; `None` for a name that this version does not use, which is nobody's to delete.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let parts: Vec<&str> = name.split('/').collect();
        match parts[..] {
            ["record"] => Some(Self::Record),
            ["log", log, seq] => Some(Self::Slot(LogSlot { log: hex(log, 16)?, seq: hex(seq, 16)? })),
            ["base", base, "end"] => Some(Self::BaseEnd { base: hex(base, 16)? }),
            ["base", base, part] => {
                Some(Self::Part { base: hex(base, 16)?, part: u32::try_from(hex(part, 8)?).ok()? })
            }
            _ => None,
        }
    }
}

/// The number in `digits` lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u64> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (text.len() == digits && text.bytes().all(is_hex)).then(|| u64::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_object() {
        let slot = LogSlot { log: 0x0123_4567_89AB_CDEF, seq: 17 };
        for (name, text) in [
            (ArchiveName::Record, "record"),
            (ArchiveName::Slot(slot), "log/0123456789abcdef/0000000000000011"),
            (ArchiveName::Part { base: 5, part: 0xAB }, "base/0000000000000005/000000ab"),
            (ArchiveName::BaseEnd { base: u64::MAX }, "base/ffffffffffffffff/end"),
        ] {
            assert_eq!(name.to_string(), text);
            assert_eq!(ArchiveName::parse(text), Some(name));
        }
        for other in [
            "",
            "records",
            "record/",
            "log/0123456789abcdef",
            "log/0123456789ABCDEF/0000000000000011",
            "log/0123456789abcde/0000000000000011",
            "log/+123456789abcdef/0000000000000011",
            "base/0000000000000005/ab",
            "base/0000000000000005/end/",
            "run/00000001/00000002",
            "follower/a",
        ] {
            assert_eq!(ArchiveName::parse(other), None, "{other:?}");
        }
    }
}
