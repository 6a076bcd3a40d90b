//! The part of the log that the archive of a store has not read, at an opening: the first record that is not released, and the runs of values
//! that applied records name. The space image has these runs as free if the object was replaced or deleted since.

use std::sync::Arc;

use shoal_base::{Lsn, Run};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::options::OpenOptions;
use shoal_image::superblock::ArchiveMark;
use shoal_log::format::RecordKind;
use shoal_log::{ArchivedStart, FoundBatch};
use shoal_space_manager::SpaceManager;
use shoal_tablets::tablet::tablets::Tablets;
use shoal_tablets::tablet::view::Tablet;
use shoal_value::{Entry, Home, owned_runs};

use crate::recovery::read::Recovery;

impl Recovery {
    /// The start of the log for an archive; `None` without one.
    pub(crate) fn archived_start(&self, options: &OpenOptions) -> Option<ArchivedStart> {
        if !options.archived || options.read_only {
            return None;
        }
        let first = match self.superblock.archive.first_lsn {
            Lsn::NONE => self.superblock.log_tail.first_lsn,
            first => first,
        };
        let floor = Lsn(first.0.saturating_sub(1));
        let newest = self.log.batches.iter().rfind(|batch| batch.header.records > 0);
        let newest = newest.map_or(floor, |batch| Lsn(batch.header.next_lsn().0 - 1));
        Some(ArchivedStart { floor, newest: newest.max(floor) })
    }

    /// The runs of values that applied records above `floor` name, each with the number of its record.
    ///
    /// After an opening without an archive there are none: their blocks may be reused already, and the space was not kept free of them.
    pub(crate) async fn unread_runs(
        &self,
        batch: &FoundBatch,
        floor: Lsn,
        tablets: &Tablets,
    ) -> Vec<(Lsn, Run)> {
        let mut found = Vec::new();
        if self.superblock.archive.first_lsn == Lsn::NONE || injected(Bug::UnreadForgotten) {
            return found;
        }
        for (lsn, record) in (batch.header.first_lsn.0..).map(Lsn).zip(&batch.records) {
            let is_applied = |tablet: &Arc<Tablet>| lsn <= tablet.view().applied;
            let tablet = tablets.all().get(usize::from(record.tablet.0));
            if lsn <= floor || record.kind != RecordKind::Put || !tablet.is_some_and(is_applied) {
                continue;
            }
            let Ok((entry, _)) = Entry::decode(record.body_bytes()) else { continue };
            if entry.home != Home::Inline {
                // A manifest that is damaged names nothing: the archive finds the value lost.
                let (runs, _) = owned_runs(&self.device, &self.pool, &entry, lsn).await;
                found.extend(runs.into_iter().map(|run| (lsn, run)));
            }
        }
        found
    }
}

/// Keeps `runs` from reuse, as far as they are free, until the archive has their records (INV-47). The last record that names a run counts.
pub(crate) fn keep_for_archive(space: &Arc<SpaceManager>, floor: Lsn, runs: Vec<(Lsn, Run)>) {
    space.keep_for_archive(floor);
    for (lsn, run) in runs.into_iter().rev() {
        // A run in use is that of the object: its apply frees it.
        space.hold_for_archive(lsn, run);
    }
}

/// The mark of this opening's superblocks: without an archive, records may follow that no archive knows. Until the opening has noted a log of
/// the archive, its records are not owned: a copy of the store may be served elsewhere, and may have the archive.
pub(crate) fn mark_of(found: ArchiveMark, archived: Option<ArchivedStart>) -> ArchiveMark {
    archived.map_or(ArchiveMark::default(), |archived| ArchiveMark {
        log: found.log,
        first_lsn: archived.floor.next(),
        unowned_lsn: if found.unowned_lsn == Lsn::NONE { archived.newest.next() } else { found.unowned_lsn },
    })
}
