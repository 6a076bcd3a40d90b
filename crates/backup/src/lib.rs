//! Backups: all objects of a snapshot as one stream of bytes, and such a stream read again.
//!
//! The format, to the byte, is in `docs/format/backup.md`. Reading order: [`record`] (an object and a loss, as bytes), `frame` (the
//! envelope of everything), [`BackupStream`] (a snapshot becomes frames), [`Decoder`] (frames become records, whatever the bytes hold).
//! The crate touches no file and no network: the server sends the stream, the command line writes and reads it.

mod decode;
mod encode;
mod frame;
pub mod record;

pub use decode::{Damage, Decoder, Event, Skipped};
pub use encode::{BackupStream, PIECE_BYTES_MAX, SHORT_BYTES_MAX};
pub use frame::{FRAME_BODY_BYTES_MAX, FRAME_HEAD_BYTES};
pub use record::{End, ExpiresAt, Header, Loss, ObjectHead, ObjectRecord};

/// The version of the format.
pub const FORMAT_VERSION: u32 = 1;
