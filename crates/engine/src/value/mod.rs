//! Values: how their bytes are laid out and written, and how they are read and verified.

pub(crate) mod manifest;
pub(crate) mod prepare;
pub(crate) mod read;
pub(crate) mod room;
