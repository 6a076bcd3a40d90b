//! The note of the last backup, in an object of the store's own bucket: it outlives a restart, and is in no backup and no listing.
//!
//! A note is a hint: nothing depends on it, and a lost or unreadable note counts as none.

use shoal_base::Lsn;
use shoal_base::codec::{Reader, Truncated};
use shoal_common::error::Result;
use shoal_common::key::system_key;
use shoal_common::object::{ByteRange, PutOptions};

use crate::store::Store;

/// The key of that object in the store's own bucket.
const KEY: &[u8] = b"last-backup";

/// A complete backup without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupNote {
    /// Every write up to this version is in it, or in a backup that it continues.
    pub version: Lsn,
    /// The wall clock's time at that version, in nanoseconds since the Unix epoch.
    pub taken_ns: u64,
}

impl BackupNote {
    /// The object's value (`docs/format/object.md`).
    fn encode(self) -> Vec<u8> {
        [self.version.0.to_le_bytes(), self.taken_ns.to_le_bytes()].concat()
    }

    /// # Errors
    /// [`Truncated`] if the value is too short. Bytes after the note are from another version, and are ignored.
    fn decode(bytes: &[u8]) -> std::result::Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        Ok(Self { version: Lsn(reader.u64()?), taken_ns: reader.u64()? })
    }
}

fn unreadable(why: &str) -> Option<BackupNote> {
    tracing::warn!(
        "which backup of the store was the last cannot be read ({why}); the next one is noted again"
    );
    None
}

impl Store {
    /// Notes a completed backup, for [`StoreStat::last_backup`](crate::StoreStat::last_backup). The note is durable on return. One that
    /// is older than the noted one changes nothing.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn note_backup(&self, backup: BackupNote) -> Result<()> {
        let is_newer =
            |noted: Option<BackupNote>| noted.is_none_or(|noted| noted.taken_ns <= backup.taken_ns);
        if !is_newer(*self.0.last_backup.lock()) {
            return Ok(());
        }
        self.put(&system_key(KEY), backup.encode().into(), PutOptions::default()).await?;
        let mut noted = self.0.last_backup.lock();
        if is_newer(*noted) {
            *noted = Some(backup);
        }
        Ok(())
    }

    /// Reads the note of an earlier run of the store; call this once after the opening, which reads no object itself. A note that cannot be
    /// read is reported in the log and counts as none.
    pub async fn recall_backup(&self) {
        let found = self.get(&system_key(KEY), ByteRange::ALL).await.map(|found| {
            found.map(|object| BackupNote::decode(&object.value.to_vec()).map_err(|error| error.to_string()))
        });
        let found = match found {
            Ok(None) => None,
            Ok(Some(Ok(note))) => Some(note),
            Ok(Some(Err(why))) => unreadable(&why),
            Err(error) => unreadable(&error.to_string()),
        };
        *self.0.last_backup.lock() = found;
    }
}

#[cfg(test)]
mod tests {
    use shoal_device::Device;

    use super::*;
    use crate::testing::fixtures::in_memory_as;
    use crate::{
        CheckOptions, Environment, FormatOptions, ListRequest, ObjectKey, OpenOptions, block_on, check,
    };

    async fn open(device: &Device) -> Store {
        let options = OpenOptions { background: false, ..OpenOptions::default() };
        let store = Store::open(device.clone(), options, Environment::default()).await.unwrap();
        store.recall_backup().await;
        store
    }

    #[test]
    fn backup_note_survives_restart_and_is_hidden() {
        let device = in_memory_as(&FormatOptions::for_blocks(8192));
        let backup = |version, taken_ns| BackupNote { version: Lsn(version), taken_ns };
        block_on(async {
            let store = open(&device).await;
            assert_eq!(store.stat().last_backup, None);
            let key = ObjectKey::new("default", b"a").unwrap();
            store.put(&key, vec![1].into(), PutOptions::default()).await.unwrap();
            store.note_backup(backup(7, 1_000)).await.unwrap();
            // Two concurrent backups may complete in any order.
            store.note_backup(backup(5, 900)).await.unwrap();
            assert_eq!(store.stat().last_backup, Some(backup(7, 1_000)));
            assert_eq!(store.stat().objects_with_log(), 1);
            store.close().await.unwrap();
            drop(store);

            let store = open(&device).await;
            assert_eq!(store.stat().last_backup, Some(backup(7, 1_000)));
            assert_eq!(store.stat().objects_with_log(), 1);
            let page = store
                .list(&ListRequest { bucket: "default".into(), limit: 10, ..ListRequest::default() })
                .await
                .unwrap();
            assert_eq!(page.entries.len(), 1);
            store.note_backup(backup(9, 2_000)).await.unwrap();
            assert_eq!(store.stat().last_backup, Some(backup(9, 2_000)));
            store.close().await.unwrap();
            drop(store);
            assert!(check(device.clone(), &CheckOptions::default()).await.unwrap().problems.is_empty());
        });
    }

    #[test]
    fn malformed_backup_note_counts_as_none() {
        let note = BackupNote { version: Lsn(3), taken_ns: 4 };
        let bytes = note.encode();
        assert_eq!(BackupNote::decode(&bytes), Ok(note));
        assert_eq!(BackupNote::decode(&[&bytes[..], &[9]].concat()), Ok(note));
        assert!((0..bytes.len()).all(|cut| BackupNote::decode(&bytes[..cut]).is_err()));
        let device = in_memory_as(&FormatOptions::for_blocks(8192));
        block_on(async {
            let store = open(&device).await;
            store.put(&system_key(KEY), vec![1; 3].into(), PutOptions::default()).await.unwrap();
            store.recall_backup().await;
            assert_eq!(store.stat().last_backup, None);
        });
    }
}
