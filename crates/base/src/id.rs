//! Identifiers that must not be mixed up.

use std::fmt;

/// Log sequence number: the number of a record in the log, growing, never used twice, and the version of the objects that the record wrote.
/// 0 means "nothing yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Before the first record.
    pub const NONE: Self = Self(0);

    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A version in the words of an error: "none" if the object does not exist.
pub struct Current(pub Option<Lsn>);

impl fmt::Display for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(version) => version.fmt(f),
            None => f.write_str("none (it does not exist)"),
        }
    }
}

/// Index of a tablet in the store's table of tablets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TabletId(pub u16);

impl fmt::Display for TabletId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a request to write: a repetition with the same id is applied once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The session: a random number that no other session has.
    pub session: u64,
    /// The number of the write in its session. It grows, and a repetition has the same number.
    pub sequence: u64,
}
