//! The engine's store as its archive sees it.

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_base::task::Boxed;
use shoal_engine::{Error, FlushedBatch, Store};

use crate::base::start_base;
use crate::source::{ArchivedStore, BaseStream, SourceBatch, SourceError, SourceFacts, SourceRecord};

/// A store that was opened with [`OpenOptions::archived`](shoal_engine::OpenOptions::archived).
pub struct EngineStore(Store);

impl EngineStore {
    /// The store behind an archive.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self(store)
    }
}

impl ArchivedStore for EngineStore {
    fn facts(&self) -> SourceFacts {
        let facts = self.0.log_facts();
        SourceFacts {
            volume: self.0.identity(),
            tablets: self.0.tablets(),
            remembered_log: facts.remembered_log,
            recovered: facts.recovered,
            log_start: facts.log_start,
        }
    }

    fn remember_log(&self, log: u64) -> Boxed<'_, Result<(), SourceError>> {
        Box::pin(async move { self.0.remember_archive_log(log).await.map_err(source_error) })
    }

    fn durable(&self) -> Lsn {
        self.0.newest_logged()
    }

    fn next_batch(&self, after: Lsn) -> Boxed<'_, Result<Option<SourceBatch>, SourceError>> {
        Box::pin(async move {
            let found = self.0.batch_after(after).await.map_err(source_error)?;
            Ok(found.map(|FlushedBatch { store_ns, wall_ns, records }| {
                let records = records.into_iter().map(|logged| SourceRecord {
                    lsn: logged.lsn,
                    record: logged.record,
                    stored_bytes: logged.stored_bytes,
                });
                SourceBatch { store_ns, wall_ns, records: records.collect() }
            }))
        })
    }

    fn stored<'a>(
        &'a self,
        record: &'a SourceRecord,
        first: u64,
        bytes: usize,
    ) -> Boxed<'a, Result<Bytes, SourceError>> {
        Box::pin(async move {
            let read = self.0.logged_value((record.lsn, &record.record), first, bytes);
            read.await.map_err(source_error)
        })
    }

    fn wait_for(&self, after: Lsn) -> Boxed<'_, ()> {
        self.0.wait_logged(after)
    }

    fn release(&self, lsn: Lsn) {
        self.0.release_log(lsn);
    }

    fn log_fill_permille(&self) -> u32 {
        self.0.log_held_permille()
    }

    fn start_base(&self, base: u64) -> Boxed<'_, Result<Box<dyn BaseStream>, SourceError>> {
        start_base(&self.0, base)
    }
}

/// The error of an archive's reader. A damaged or failed read is a gap: a base has everything that can be read.
pub(crate) fn source_error(error: Error) -> SourceError {
    match error {
        Error::Closed | Error::Poisoned(_) => SourceError::Closed(error.to_string()),
        error => SourceError::Lost(error.to_string()),
    }
}
