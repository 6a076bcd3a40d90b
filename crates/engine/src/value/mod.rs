//! Values: the entry that names one, how its bytes are laid out and written, packed runs, and how bytes are read and verified.

pub(crate) mod entry;
pub(crate) mod manifest;
pub(crate) mod owned;
pub(crate) mod packed;
pub(crate) mod prepare;
pub(crate) mod read;
pub(crate) mod verify;
