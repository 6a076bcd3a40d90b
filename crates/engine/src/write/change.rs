//! The parts of a decision: the parts of an object that it reads, and the change that it makes.

use std::sync::Arc;

use shoal_buffer::Buffer;
use shoal_common::key::ObjectKey;
use shoal_common::object::{Expiry, Metadata, PutOptions};
use shoal_space_manager::Extents;

/// The parts of an object that a decision reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLevel {
    /// Nothing: the decision does not depend on the object.
    Nothing,
    /// Only the existence of the object: the shown object has no metadata and no value, and no version if it is in
    /// flight. If a damaged part of the tree hides whether it exists, it counts as existing, with version 0: so a
    /// delete of it deletes it.
    Existence,
    /// Everything except the value, which stays empty; the version of a state in flight is not known yet.
    Info,
    /// Everything except the version of a state in flight.
    Value,
    /// Everything except the value, with the version: waits if the newest state is in flight.
    Version,
    /// Everything: waits if the newest state is in flight.
    Whole,
}

impl ReadLevel {
    /// Returns true if the value is read.
    pub(crate) fn wants_value(self) -> bool {
        matches!(self, Self::Value | Self::Whole)
    }

    pub(crate) fn wants_version(self) -> bool {
        matches!(self, Self::Version | Self::Whole)
    }
}

/// The change of a key.
#[derive(Clone, Debug)]
pub enum Change {
    /// None.
    NoChange,
    /// The object has this value from now on.
    Put {
        /// Its value, at most 4 MiB.
        value: Buffer,
        /// The metadata of the user.
        metadata: Metadata,
        /// The object's deadline.
        expiry: Expiry,
    },
    /// The object has this value from now on, with all options of a put, whose rules are ignored.
    PutWith {
        /// Its value, at most 4 MiB.
        value: Buffer,
        /// The other options.
        options: Box<PutOptions>,
    },
    /// The object has this value from now on, which is on the device already. Only a stream of the store makes such a
    /// change.
    #[doc(hidden)]
    Placed(Placed),
    /// The object does not exist from now on.
    Delete,
}

/// A value that a stream has written, and the entry that names it. If it is not stored, its space is freed with the
/// last clone.
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

/// The parts of a write that decide how long its record is.
pub(crate) struct Outline<'a> {
    pub key: &'a ObjectKey,
    /// Bytes of a value that the write brings along: 0 for one that is on the device.
    pub value_bytes: usize,
    pub has_metadata: bool,
}

impl Change {
    /// Returns true if the change writes.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self, Self::NoChange)
    }

    /// Bytes of the stored value.
    pub(crate) fn value_bytes(&self) -> usize {
        match self {
            Self::Put { value, .. } | Self::PutWith { value, .. } => value.len(),
            Self::NoChange | Self::Placed(_) | Self::Delete => 0,
        }
    }

    /// The outline of its record, as that of `key`.
    pub(crate) fn outline<'a>(&self, key: &'a ObjectKey) -> Outline<'a> {
        let has_metadata = match self {
            Self::Put { metadata, .. } => *metadata != Metadata::default(),
            Self::PutWith { options, .. } => options.metadata != Metadata::default(),
            Self::NoChange | Self::Placed(_) | Self::Delete => false,
        };
        Outline { key, value_bytes: self.value_bytes(), has_metadata }
    }
}
