//! A backup of the whole store, as a stream of bytes.

use std::sync::Arc;

use futures_util::{Stream, stream};
use shoal_api::v1;
use shoal_backup::BackupStream;
use shoal_base::{Entropy, SystemEntropy};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::Authenticated;
use crate::call::message::Parted;
use crate::failure::Failure;

/// Backups at the same time: each holds a snapshot, and some MiB that the flow does not count.
pub(crate) const BACKUPS_MAX: usize = 2;

/// A backup of the store as it is now.
pub(crate) async fn backup(
    request: Authenticated<Parted<v1::BackupRequest>>,
    permits: &Arc<Semaphore>,
) -> Result<impl Stream<Item = Result<v1::BackupResponse, Failure>> + Send + 'static, Failure> {
    let (_, admitted) = request.take();
    let store = admitted.to_read_all()?;
    let busy = |_| Failure::busy("two other callers make backups now");
    let permit = Arc::clone(permits).try_acquire_owned().map_err(busy)?;
    let backup = BackupStream::begin(store, SystemEntropy.next_u64()).await;
    let backup = backup.map_err(|error| Failure::of(&error))?;
    tracing::info!("a backup of version {} began", backup.version());
    Ok(stream::try_unfold(Sending { backup, _permit: permit }, |mut sending| async move {
        let next = sending.backup.next().await.map_err(|error| Failure::of(&error))?;
        Ok(next.map(|chunk| (v1::BackupResponse { chunk: chunk.into() }, sending)))
    }))
}

/// A backup on its way out.
struct Sending {
    backup: BackupStream,
    _permit: OwnedSemaphorePermit,
}
