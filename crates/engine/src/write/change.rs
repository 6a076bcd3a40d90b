//! The parts of a decision: how much of an object it sees, and what it makes of it.

use std::sync::Arc;

use shoal_buffer::Buffer;

use crate::common::object::{Expiry, Metadata, PutOptions};
use crate::space::manager::Extents;

/// What a decision looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLevel {
    /// Nothing: the decision is the same whatever there is, and need not see it.
    Nothing,
    /// Whether it exists, and nothing else: the object that is shown has no metadata, no value, and where its state is in flight no
    /// version. One of which nobody knows whether it exists, because its part of the tree is damaged, counts as existing, with
    /// version 0: so a delete of it deletes it.
    Existence,
    /// What is known about the object; its value stays empty, and the version of a state in flight is not known yet.
    Info,
    /// Its value too.
    Value,
    /// What is known about the object, the version included: waits where the newest state is in flight.
    Version,
    /// Its value and its version: waits as for that.
    Whole,
}

impl ReadLevel {
    /// Whether the value is looked at.
    pub(crate) fn wants_value(self) -> bool {
        matches!(self, Self::Value | Self::Whole)
    }

    pub(crate) fn wants_version(self) -> bool {
        matches!(self, Self::Version | Self::Whole)
    }
}

/// What is done with a key.
#[derive(Clone, Debug)]
pub enum Change {
    /// Nothing.
    NoChange,
    /// The object is this from now on.
    Put {
        /// Its value, at most 4 MiB.
        value: Buffer,
        /// What its user says about it.
        metadata: Metadata,
        /// When its time is over.
        expiry: Expiry,
    },
    /// The object is this from now on, with all that may be said of a put; the rules among it do not count.
    PutWith {
        /// Its value, at most 4 MiB.
        value: Buffer,
        /// The rest.
        options: Box<PutOptions>,
    },
    /// The object is this from now on; its value is on the device already. Only a stream of the store makes one.
    #[doc(hidden)]
    Placed(Placed),
    /// It does not exist from now on.
    Delete,
}

/// A value that a stream has written, and the entry that names it. Where it is not stored its space is given back with the last
/// clone.
#[derive(Clone)]
pub struct Placed {
    pub(crate) entry: Vec<u8>,
    pub(crate) extents: Vec<Arc<Extents>>,
}

impl std::fmt::Debug for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Placed").finish_non_exhaustive()
    }
}

impl Change {
    /// Whether it writes.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self, Self::NoChange)
    }

    /// Bytes of the value that it stores.
    pub(crate) fn value_bytes(&self) -> usize {
        match self {
            Self::Put { value, .. } | Self::PutWith { value, .. } => value.len(),
            Self::NoChange | Self::Placed(_) | Self::Delete => 0,
        }
    }
}
