//! The log as the opening of a store found it, for its archive.

use shoal_base::Lsn;
use shoal_image::superblock::ArchiveMark;
use shoal_log::ArchivedStart;

/// The log as the opening of a store found it, for its archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogFacts {
    /// The log of the archive that was remembered last; 0 if an opening without an archive wrote to the store since.
    pub remembered_log: u64,
    /// The last record that the opening found. If the log had none from `log_start` on, the number before that.
    pub recovered: Lsn,
    /// Every record from this number on is in the log.
    pub log_start: Lsn,
}

impl LogFacts {
    pub(crate) fn of(found: ArchiveMark, start: ArchivedStart) -> Self {
        Self { remembered_log: found.log, recovered: start.newest, log_start: start.floor.next() }
    }
}
