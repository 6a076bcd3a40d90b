//! The archive of a store: its log and bases of it as objects of a bucket.
//!
//! The formats, to the byte, are in `docs/format/archive.md`. Reading order: [`limits`]; `format/names.rs` (the names of all objects),
//! `format/segment.rs` (one slot of a log), `format/batch.rs` (the batches in it), `format/record.rs` (the one object that changes),
//! `format/tombstone.rs`, `format/base.rs`, `format/spool.rs`. The formats touch no file and no network: bytes in, structures out, for any
//! bytes.
//!
//! [`bucket`] is the other half: requests to S3, GCS, Azure or a folder, whose outcome is known. [`writer`] ships the log of a store
//! ([`source`]) to it, [`base`] uploads the whole store from time to time, [`retain`] drops unneeded objects, [`restore`] reads all of it.

pub mod base;
pub mod bucket;
pub mod format;
pub mod keeper;
pub mod limits;
pub mod restore;
pub mod retain;
pub mod source;
pub mod status;
pub mod store;
#[cfg(test)]
mod testing;
pub mod verify;
pub mod writer;
