//! The archive of a store: its log and bases of it as objects of a bucket.
//!
//! The formats, to the byte, are in `docs/format/archive.md`. Reading order: [`limits`]; `format/names.rs` (the names of all objects),
//! `format/segment.rs` (one slot of a log), `format/batch.rs` (the batches in it), `format/record.rs` (the one object that changes),
//! `format/tombstone.rs`, `format/base.rs`, `format/spool.rs`. The formats touch no file and no network: bytes in, structures out, for any
//! bytes.
//!
//! [`bucket`] is the other half: requests to S3, GCS, Azure or a folder, whose outcome is known. [`restore`] reads an archive.

pub mod bucket;
pub mod format;
pub mod keeper;
pub mod limits;
pub mod restore;
pub mod retain;
pub mod source;
pub mod status;
pub mod verify;
