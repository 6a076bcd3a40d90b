//! A backup of the whole store, or what changed since another one, as a stream of bytes.

use std::sync::Arc;

use futures_util::{Stream, stream};
use shoal_api::v1;
use shoal_backup::{BackupStream, LastBackup};
use shoal_base::{Entropy, Lsn, SystemEntropy, TabletId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::Authenticated;
use crate::call::parted::Parted;
use crate::failure::Failure;

/// Backups at the same time: each holds a snapshot, and some MiB that the flow does not count.
pub(crate) const BACKUPS_MAX: usize = 2;

/// A backup of the store as it is now, or what changed since the backup that the request names.
pub(crate) async fn backup(
    request: Authenticated<Parted<v1::BackupRequest>>,
    permits: &Arc<Semaphore>,
) -> Result<impl Stream<Item = Result<v1::BackupResponse, Failure>> + Send + 'static, Failure> {
    let (request, admitted) = request.take();
    let store = admitted.to_read_all()?;
    let since = request.message.since.map(last_backup).transpose()?;
    let busy = |_| Failure::busy("two other callers make backups now");
    let permit = Arc::clone(permits).try_acquire_owned().map_err(busy)?;
    let number = SystemEntropy.next_u64();
    let backup = match &since {
        None => BackupStream::begin(store, number).await,
        Some(last) => BackupStream::begin_since(store, number, last).await,
    };
    let backup = backup.map_err(|error| Failure::of(&error))?;
    match since {
        None => tracing::info!("a backup of version {} began", backup.version()),
        Some(last) => {
            tracing::info!("an increment from version {} to {} began", last.version, backup.version());
        }
    }
    Ok(stream::try_unfold(Sending { backup, _permit: permit }, |mut sending| async move {
        let next = sending.backup.next().await.map_err(|error| Failure::of(&error))?;
        if next.is_none() {
            sending.note().await;
        }
        Ok(next.map(|chunk| (v1::BackupResponse { chunk: chunk.into() }, sending)))
    }))
}

fn last_backup(since: v1::BackupSince) -> Result<LastBackup, Failure> {
    let wrong = || {
        Failure::invalid("the last backup is not named as it must be: 16 bytes of a store, and whole pages")
    };
    let store = <[u8; 16]>::try_from(&since.store[..]).map_err(|_| wrong())?;
    let last = LastBackup::of_bytes(store, Lsn(since.version), &since.pages).ok_or_else(wrong)?;
    let tablet = since.up_to_tablet.map(u16::try_from).transpose().map_err(|_| wrong())?;
    Ok(LastBackup { up_to: tablet.map(|tablet| (TabletId(tablet), since.up_to_key.to_vec())), ..last })
}

/// A backup on its way out.
struct Sending {
    backup: BackupStream,
    _permit: OwnedSemaphorePermit,
}

impl Sending {
    /// Notes that the backup was sent. A store that takes no writes keeps its older note: the backup is whole nevertheless.
    async fn note(&self) {
        match self.backup.note().await {
            Ok(()) => tracing::info!("the backup of version {} was sent", self.backup.version()),
            Err(error) => tracing::warn!(
                "the backup of version {} was sent, and cannot be noted as the last one: {error}",
                self.backup.version()
            ),
        }
    }
}
