//! Backups: all objects of a snapshot, or the changes since another backup, as one stream of bytes; and the reader of such streams.
//!
//! The format, to the byte, is in `docs/format/backup.md`. Reading order: [`record`] (an object and a loss, as bytes), [`index`] (all keys
//! of a version), `frame` (the envelope of everything), [`BackupStream`] (a snapshot becomes frames), [`Decoder`] (frames become records,
//! for any bytes), [`IncrementWriter`] (changes become an increment).
//! The crate touches no file and no network: the server sends the stream, the command line writes and reads it.

mod decode;
mod encode;
mod frame;
mod increment;
pub mod index;
pub mod record;

pub use decode::{Damage, Decoder, Event, Skipped};
pub use encode::{BackupStream, LastBackup, PAGES_MAX, PIECE_BYTES_MAX, SHORT_BYTES_MAX};
pub use frame::{FRAME_BODY_BYTES_MAX, FRAME_HEAD_BYTES, is_unfinished};
pub use increment::{IncrementWriter, NotChanges};
pub use index::{IndexKeys, index_of_frame};
pub use record::{BucketRecord, Contents, End, ExpiresAt, Header, Loss, ObjectHead, ObjectRecord};

/// The newest version of the format, for a store that has records of buckets, or whose objects may have attributes.
pub const FORMAT_VERSION: u32 = 3;
/// The version of the format that is written for any other store.
const FORMAT_VERSION_PLAIN: u32 = 2;
/// The oldest version of the format that is read.
pub const FORMAT_VERSION_MIN: u32 = 1;
