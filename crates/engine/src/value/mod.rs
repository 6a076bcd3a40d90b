//! Values: the entry that names one, the layout and writing of its bytes, packed runs, and reading with verification.

pub(crate) mod entry;
pub(crate) mod manifest;
pub(crate) mod owned;
pub(crate) mod packed;
pub(crate) mod prepare;
pub(crate) mod read;
pub(crate) mod verify;
