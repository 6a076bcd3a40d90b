//! The writer of the log as the keeper of bases sees it.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_base::task::Boxed;
use tokio::sync::{Mutex, watch};

use super::keep::{BaseWriter, WriterPlace};
use crate::format::ArchiveRecord;
use crate::writer::{Archiver, ArchiverState, BaseNeed};

/// An archiver whose bases are kept. One keeper of bases uses it.
pub struct ArchiverBases {
    archiver: Arc<Archiver>,
    moved: Mutex<(watch::Receiver<Lsn>, watch::Receiver<Option<BaseNeed>>)>,
}

impl ArchiverBases {
    /// The bases of `archiver`.
    #[must_use]
    pub fn new(archiver: Arc<Archiver>) -> Self {
        let moved = Mutex::new((archiver.watch_archived(), archiver.needs_base()));
        Self { archiver, moved }
    }
}

impl BaseWriter for ArchiverBases {
    fn incarnation(&self) -> [u8; 16] {
        self.archiver.incarnation()
    }

    fn place(&self) -> Option<WriterPlace> {
        let status = self.archiver.status();
        let owns = matches!(
            status.state,
            ArchiverState::Shipping | ArchiverState::Waiting { .. } | ArchiverState::NeedsBase { .. }
        );
        let position = self.archiver.position().filter(|_| owns)?;
        Some(WriterPlace { log: position.log, seq: position.seq, archived: position.archived })
    }

    fn gap(&self) -> Option<Lsn> {
        self.archiver.needs_base().borrow().as_ref().map(|need| need.since)
    }

    fn segment_bytes(&self) -> u64 {
        self.archiver.status().segment_bytes
    }

    fn note_record(&self, record: &ArchiveRecord) {
        self.archiver.note_record(record.clone());
    }

    fn changed(&self) -> Boxed<'_, ()> {
        Box::pin(async {
            let (archived, need) = &mut *self.moved.lock().await;
            tokio::select! {
                Ok(()) = archived.changed() => {}
                Ok(()) = need.changed() => {}
                else => std::future::pending().await,
            }
        })
    }
}
