//! Bases: the whole store at one version, from which a restore replays the log.

mod due;
mod keep;
mod stream;
mod upload;
mod writer;

pub use due::{BaseFacts, BaseReason, base_due};
pub use keep::{BaseKeeper, BaseOptions, BaseStatus, BaseWriter, WriterPlace};
pub use stream::start_base;
pub use upload::{BaseFailure, BaseProgress, UploadLimits, upload_base};
pub use writer::ArchiverBases;
