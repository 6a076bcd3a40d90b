//! A backup of the whole store, piece by piece.

use bytes::Bytes;
use shoal_api::v1;
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::Result;
use crate::transport::Parts;

/// A backup on its way from the server, in the format of `docs/format/backup.md`. A connection that breaks ends it with an error.
pub struct Backup {
    client: Client,
    parts: Parts<v1::Backup>,
}

impl Client {
    /// A backup of all objects as they are now. The server serves two such calls at a time.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable), [`Error::Busy`](crate::Error::Busy) while two others make
    /// backups, [`Error::Denied`](crate::Error::Denied).
    pub fn backup(&self) -> Boxed<'_, Result<Backup>> {
        Box::pin(async move {
            let open = || self.transport.receive::<v1::Backup>(v1::BackupRequest {});
            let parts = self.retry.read(open).await?;
            Ok(Backup { client: self.clone(), parts })
        })
    }
}

impl Backup {
    /// The next bytes; none where the stream ended. The backup is whole where its end record came.
    ///
    /// # Errors
    /// As [`Client::backup`].
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let part = self.parts.next(&self.client.transport).await.map_err(|failed| failed.error)?;
        Ok(part.map(|part| part.chunk))
    }
}
