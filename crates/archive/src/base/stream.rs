//! The stream of a base: a backup of a snapshot.

use shoal_backup::BackupStream;
use shoal_base::Lsn;
use shoal_base::task::Boxed;
use shoal_engine::Store;

use crate::source::{BaseStream, SourceError};
use crate::store::source_error;

/// A backup on its way into a base.
struct StoreBase {
    backup: BackupStream,
    bytes_expected: u64,
}

/// Takes a snapshot of `store` and starts the base `base` of it.
pub fn start_base(store: &Store, base: u64) -> Boxed<'_, Result<Box<dyn BaseStream>, SourceError>> {
    Box::pin(async move {
        let backup = BackupStream::begin_base(store, base).await.map_err(source_error)?;
        let bytes_expected = store.stat().value_bytes_with_log();
        Ok(Box::new(StoreBase { backup, bytes_expected }) as Box<dyn BaseStream>)
    })
}

impl BaseStream for StoreBase {
    fn version(&self) -> Lsn {
        self.backup.version()
    }

    fn taken_ns(&self) -> u64 {
        self.backup.taken_ns()
    }

    fn objects(&self) -> u64 {
        self.backup.objects()
    }

    fn bytes_expected(&self) -> u64 {
        self.bytes_expected
    }

    fn next<'a>(&'a mut self, out: &'a mut Vec<u8>) -> Boxed<'a, Result<bool, SourceError>> {
        Box::pin(async move {
            let bytes = self.backup.next().await.map_err(source_error)?;
            if let Some(bytes) = &bytes {
                out.extend_from_slice(bytes);
            }
            Ok(bytes.is_some())
        })
    }
}
