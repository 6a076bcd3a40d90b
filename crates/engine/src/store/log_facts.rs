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
    /// The last record of the openings that had a log of the archive: `recovered`, unless an opening before this one had none. Under
    /// later numbers the archive may have records of a copy of the store.
    pub last_owned: Lsn,
    /// Every record from this number on is in the log.
    pub log_start: Lsn,
}

impl LogFacts {
    pub(crate) fn of(found: ArchiveMark, start: ArchivedStart) -> Self {
        let last_owned = match found.unowned_lsn {
            Lsn::NONE => start.newest,
            first => Lsn(first.0 - 1),
        };
        Self { remembered_log: found.log, recovered: start.newest, last_owned, log_start: start.floor.next() }
    }
}
