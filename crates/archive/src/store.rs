//! The engine's store as the source of an archive.

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_base::task::Boxed;
use shoal_engine::{Error, FlushedBatch, Store};

use crate::source::{ArchivedStore, BaseStream, SourceBatch, SourceError, SourceFacts, SourceRecord};

/// A store that was opened with `OpenOptions::archived`.
pub struct EngineStore(Store);

impl EngineStore {
    /// The store behind an archive.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self(store)
    }
}

/// A closed or poisoned store gives no more; any other failure means that the bytes cannot be had from here.
pub(crate) fn source_error(error: Error) -> SourceError {
    match error {
        Error::Closed | Error::Poisoned(_) | Error::ReadOnly => SourceError::Closed(error.to_string()),
        error => SourceError::Lost(error.to_string()),
    }
}

fn batch_of(logged: FlushedBatch) -> SourceBatch {
    let FlushedBatch { store_ns, wall_ns, records } = logged;
    let records = records.into_iter().map(|logged| SourceRecord {
        lsn: logged.lsn,
        record: logged.record,
        stored_bytes: logged.stored_bytes,
    });
    SourceBatch { store_ns, wall_ns, records: records.collect() }
}

impl ArchivedStore for EngineStore {
    fn facts(&self) -> SourceFacts {
        let facts = self.0.log_facts();
        SourceFacts {
            volume: self.0.identity(),
            tablets: self.0.tablets(),
            remembered_log: facts.remembered_log,
            recovered: facts.recovered,
            last_owned: facts.last_owned,
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
        Box::pin(async move { Ok(self.0.batch_after(after).await.map_err(source_error)?.map(batch_of)) })
    }

    fn stored<'a>(
        &'a self,
        record: &'a SourceRecord,
        first: u64,
        bytes: usize,
    ) -> Boxed<'a, Result<Bytes, SourceError>> {
        Box::pin(async move {
            let read = self.0.logged_value((record.lsn, &record.record), first, bytes).await;
            read.map_err(source_error)
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
        crate::base::start_base(&self.0, base)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_base::task::block_on;
    use shoal_device::{Device, MemDevice};
    use shoal_engine::{Environment, FormatOptions, ObjectKey, OpenOptions, PutOptions};

    use super::*;

    fn opened(device: &Device) -> EngineStore {
        let options =
            OpenOptions { archived: true, background: false, cache_bytes: 1 << 20, ..OpenOptions::default() };
        EngineStore(block_on(Store::open(device.clone(), options, Environment::default())).unwrap())
    }

    /// A batch and a long value of a store, the facts of its next opening, and the two kinds of errors.
    #[test]
    fn a_store_is_read() {
        let device = Device::new(Arc::new(MemDevice::new(8_192)));
        let format = FormatOptions { tablets: 3, ..FormatOptions::for_blocks(8_192) };
        block_on(Store::format(&device, &format, &Environment::default())).unwrap();
        let source = opened(&device);
        let before = source.facts();
        assert_eq!((before.tablets, before.remembered_log), (3, 0));
        block_on(source.remember_log(77)).unwrap();
        let put = |value: Vec<u8>| {
            let key = ObjectKey::new("default", b"object").unwrap();
            block_on(source.0.put(&key, value.into(), PutOptions::default())).unwrap().version
        };
        let long: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
        let (first, second) = (put(long.clone()), put(vec![9]));
        let batch = block_on(source.next_batch(before.recovered)).unwrap().unwrap();
        assert_eq!((batch.records[0].lsn, batch.records[0].stored_bytes), (first, 300_000));
        let read = block_on(source.stored(&batch.records[0], 65_000, 2_000)).unwrap();
        assert!(read == long[65_000..67_000] && batch.wall_ns > 0);
        assert!(matches!(block_on(source.stored(&batch.records[0], 299_999, 2)), Err(SourceError::Lost(_))));
        assert_eq!(
            (source.durable(), block_on(source.next_batch(second)).unwrap().is_none()),
            (second, true)
        );
        source.release(first);
        assert!((1..100).contains(&source.log_fill_permille()));
        block_on(source.0.close()).unwrap();
        block_on(source.wait_for(second));
        assert!(matches!(block_on(source.next_batch(second)), Err(SourceError::Closed(_))));
        let facts = opened(&device).facts();
        assert_eq!((facts.volume, facts.remembered_log), (before.volume, 77));
        assert_eq!((facts.recovered, facts.log_start), (second, first.next()));
    }
}
