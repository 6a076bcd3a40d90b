//! Tars in and out of a store.
//!
//! `records` are the records of pax headers. Out: `writer` writes entries, [`unload`] reads the objects. In: `reader` parses tars of any
//! program (`number` the numbers in header fields), `load` puts their entries.
//!
//! The crate `tar` defines the header. Its `Archive` is not used: it accepts an archive that is cut off between two entries,
//! reads extended headers of any length into memory, and does not report the offset of damage.

mod load;
mod number;
mod reader;
mod records;
pub mod unload;
mod writer;

/// Bytes of a block.
const BLOCK_BYTES: usize = 512;

/// The comment in the global header of Shoal's tars, whose names are keys, byte by byte.
const OWN_COMMENT: &[u8] = b"shoal export, version 1";

/// The prefix of the records of extended attributes, as GNU tar and bsdtar write them.
const XATTR: &[u8] = b"SCHILY.xattr.";
