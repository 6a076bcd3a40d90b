//! Tars in and out of a store.
//!
//! [`records`] are those of the format pax. Out: [`writer`] writes entries, [`unload`] gets the objects. In: [`reader`] takes tars of
//! any program apart ([`number`]s of the header's fields), [`load`] puts their entries.
//!
//! The crate `tar` knows the header. Its `Archive` is not used: it takes the end of the input between two entries for the end of the
//! archive, reads extended headers of any length into memory, and does not report the place of a damage.

pub(crate) mod load;
pub(crate) mod number;
#[cfg(test)]
mod odd;
pub(crate) mod reader;
pub(crate) mod records;
pub(crate) mod unload;
pub(crate) mod writer;

/// Bytes of a block of a tar.
const BLOCK_BYTES: usize = 512;

/// The comment in the global header of Shoal's tars: names in them are keys, byte by byte.
const OWN_COMMENT: &[u8] = b"shoal export, version 1";

/// The beginning of the records of extended attributes, as GNU tar and bsdtar write them.
const XATTR: &[u8] = b"SCHILY.xattr.";
