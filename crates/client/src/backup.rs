//! A backup of the whole store, piece by piece.

use bytes::Bytes;
use shoal_api::v1;
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::Result;
use crate::object::Lsn;
use crate::transport::Parts;

/// The backup that an increment continues.
#[derive(Clone, Debug)]
pub struct BackupSince {
    /// The identity of its store.
    pub store: [u8; 16],
    /// Its version.
    pub version: Lsn,
    /// The pages named by its index: for each, the block (8 bytes) and the checksum (4), little-endian; at most 300,000.
    pub pages: Bytes,
    /// The tablet and the encoded key after which it was interrupted; `None` if it is complete.
    pub up_to: Option<(u16, Bytes)>,
}

/// A backup on its way from the server, in the format of `docs/format/backup.md`. A broken connection terminates it with an
/// error.
pub struct Backup {
    client: Client,
    parts: Parts<v1::Backup>,
}

impl Client {
    /// A backup of all objects in their current state. The server serves two such calls at a time.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable), [`Error::Busy`](crate::Error::Busy) while two others make backups,
    /// [`Error::Denied`](crate::Error::Denied).
    pub fn backup(&self) -> Boxed<'_, Result<Backup>> {
        self.open_backup(None)
    }

    /// The changes since another backup: a stream of changes, from which `shoal backup --incremental-from` makes an increment.
    ///
    /// # Errors
    /// As [`backup`](Self::backup); [`Error::Invalid`](crate::Error::Invalid) if the other one is not a backup of this store,
    /// or is newer than the store.
    pub fn backup_since(&self, since: BackupSince) -> Boxed<'_, Result<Backup>> {
        let BackupSince { store, version, pages, up_to } = since;
        let store = Bytes::copy_from_slice(&store);
        let up_to_tablet = up_to.as_ref().map(|(tablet, _)| u32::from(*tablet));
        let up_to_key = up_to.map(|(_, key)| key).unwrap_or_default();
        self.open_backup(Some(v1::BackupSince { store, version: version.0, pages, up_to_tablet, up_to_key }))
    }

    fn open_backup(&self, since: Option<v1::BackupSince>) -> Boxed<'_, Result<Backup>> {
        Box::pin(async move {
            let open = || self.transport.receive::<v1::Backup>(v1::BackupRequest { since: since.clone() });
            let parts = self.retry.read(open).await?;
            Ok(Backup { client: self.clone(), parts })
        })
    }
}

impl Backup {
    /// The next bytes; `None` at the end of the stream. The backup is complete if its end record came.
    ///
    /// # Errors
    /// As [`Client::backup`].
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let part = self.parts.next(&self.client.transport).await.map_err(|failed| failed.error)?;
        Ok(part.map(|part| part.chunk))
    }
}
