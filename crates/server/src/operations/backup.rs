//! A backup of the whole store, or of the changes since another backup, as a stream of bytes.
//!
//! While a chunk is sent, a task reads the next one. It runs to completion even if the client takes nothing, so that a slow client pins no
//! page of a snapshot and no frame of the cache: the chunk that waits for it is a copy, of about 512 KiB.

use std::panic::resume_unwind;
use std::sync::Arc;

use futures_util::{Stream, stream};
use shoal_api::v1;
use shoal_backup::{BackupStream, LastBackup};
use shoal_base::{Entropy, Lsn, SystemEntropy, TabletId};
use shoal_engine::{Error, Store};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};

use crate::auth::Authenticated;
use crate::failure::Failure;

/// Backups at the same time: each holds a snapshot, and some MiB that the flow does not count.
const BACKUPS_MAX: usize = 2;

/// The backups that a server sends: at most two at the same time. Clones share the limit.
#[derive(Clone, Debug)]
pub struct Backups(Arc<Semaphore>);

impl Default for Backups {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BACKUPS_MAX)))
    }
}

/// The reason why a backup does not start.
#[derive(Debug, thiserror::Error)]
pub enum BackupRefused {
    /// There are too many.
    #[error("two other backups are running: try again when one has ended")]
    Busy,
    /// The store fails.
    #[error(transparent)]
    Store(#[from] Error),
}

impl Backups {
    /// Starts a backup of the store as it is now, or of the changes since `since`.
    ///
    /// # Errors
    /// [`BackupRefused`].
    pub async fn start(
        &self,
        store: &Store,
        since: Option<&LastBackup>,
    ) -> Result<BackupSending, BackupRefused> {
        let permit = Arc::clone(&self.0).try_acquire_owned().map_err(|_| BackupRefused::Busy)?;
        let number = SystemEntropy.next_u64();
        let backup = match since {
            None => BackupStream::begin(store, number).await?,
            Some(last) => BackupStream::begin_since(store, number, last).await?,
        };
        match since {
            None => tracing::info!("a backup of version {} started", backup.version()),
            Some(last) => {
                tracing::info!("an increment from version {} to {} started", last.version, backup.version());
            }
        }
        Ok(BackupSending::new(backup, permit))
    }
}

/// A backup of the store as it is now, or of the changes since the backup that the request names.
pub(crate) async fn backup(
    request: Authenticated<v1::BackupRequest>,
    backups: &Backups,
) -> Result<impl Stream<Item = Result<v1::BackupResponse, Failure>> + Send + 'static, Failure> {
    let (request, admitted) = request.take();
    let store = admitted.to_whole_store::<v1::Backup>()?;
    let since = request.since.map(last_backup).transpose()?;
    let sending = backups.start(store, since.as_ref()).await.map_err(|refused| match refused {
        BackupRefused::Busy => Failure::busy("two other backups are running"),
        BackupRefused::Store(error) => Failure::of(&error),
    })?;
    Ok(stream::try_unfold(sending, |mut sending| async move {
        let next = sending.next().await.map_err(|error| Failure::of(&error))?;
        Ok(next.map(|chunk| (v1::BackupResponse { chunk: chunk.into() }, sending)))
    }))
}

fn last_backup(since: v1::BackupSince) -> Result<LastBackup, Failure> {
    let wrong =
        || Failure::invalid("the last backup is malformed: it needs 16 bytes of a store and whole pages");
    let store = <[u8; 16]>::try_from(&since.store[..]).map_err(|_| wrong())?;
    let last = LastBackup::of_bytes(store, Lsn(since.version), &since.pages).ok_or_else(wrong)?;
    let tablet = since.up_to_tablet.map(u16::try_from).transpose().map_err(|_| wrong())?;
    Ok(LastBackup { up_to: tablet.map(|tablet| (TabletId(tablet), since.up_to_key.to_vec())), ..last })
}

/// A backup, and the result of its next read.
type Read = (BackupStream, Result<Option<Vec<u8>>, Error>);

/// A backup on its way out.
pub struct BackupSending {
    /// The task that reads the next chunk; its value returns the backup with the chunk.
    ahead: JoinSet<Read>,
    _permit: OwnedSemaphorePermit,
}

impl std::fmt::Debug for BackupSending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BackupSending")
    }
}

impl BackupSending {
    fn new(backup: BackupStream, permit: OwnedSemaphorePermit) -> Self {
        let mut sending = Self { ahead: JoinSet::new(), _permit: permit };
        sending.read_ahead(backup);
        sending
    }

    fn read_ahead(&mut self, mut backup: BackupStream) {
        self.ahead.spawn(async move {
            let next = backup.next().await;
            (backup, next)
        });
    }

    /// The next chunk; the one after it is being read from then on. At the end, notes the backup and returns `None`.
    ///
    /// # Errors
    /// As the store: the backup is not complete.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let Some(read) = self.ahead.join_next().await else { return Ok(None) };
        let (backup, next) = match read.map_err(JoinError::try_into_panic) {
            Ok(read) => read,
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(_ended)) => return Err(Error::Closed),
        };
        let next = next?;
        match &next {
            Some(_) => self.read_ahead(backup),
            None => note(&backup).await,
        }
        Ok(next)
    }
}

/// Notes that the backup was sent. A store that takes no writes keeps its older note: the backup is whole nevertheless.
async fn note(backup: &BackupStream) {
    match backup.note().await {
        Ok(()) => tracing::info!("the backup of version {} was sent", backup.version()),
        Err(error) => tracing::warn!(
            "the backup of version {} was sent, but cannot be recorded as the last one: {error}",
            backup.version()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shoal_device::Device;
    use shoal_device_sim::Image;
    use shoal_storekit::{StoreKit, eventually, in_time, put};
    use shoal_testkit::bytes::patterned;
    use shoal_testkit::device::{Late, quiet};

    use super::*;

    const BLOCKS: u64 = 16 << 10;
    const OBJECTS: u8 = 250;
    const VALUE_BYTES: usize = 8_200;
    /// Objects in a chunk. In the cache, their values would take three quarters of the 256 frames of the smallest one.
    const CHUNK_OBJECTS: usize = 63;
    const CHUNK_BLOCKS: u64 = 3 * CHUNK_OBJECTS as u64;

    /// The backups of one test: more than a server makes at the same time.
    const BACKUPS: usize = 4;
    /// A read takes long enough for the reads of all backups to be under way at the same time.
    const READ_TAKES: Duration = Duration::from_millis(2);

    /// A store that is reopened, with the smallest cache.
    fn cold() -> (Store, Device) {
        let mut kit = StoreKit::new(BLOCKS).with_cache(1 << 20);
        // A chunk has objects of one tablet.
        kit.format.tablets = 1;
        let device = Device::new(quiet(Image::new(BLOCKS)));
        let store = kit.create(&device);
        for which in 0..OBJECTS {
            put(&store, "b", &[which; 900], patterned(VALUE_BYTES, which.into()));
        }
        shoal_engine::block_on(store.close()).unwrap();
        drop(store);
        let device = Late::over(device.inner().clone(), READ_TAKES);
        (kit.open(&device), device)
    }

    async fn sending(store: &Store) -> BackupSending {
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        BackupSending::new(BackupStream::begin(store, 1).await.unwrap(), permit)
    }

    /// Waits until the device has read another chunk, though nobody asks for it.
    async fn is_read(device: &Device, before: u64) {
        let is_read = || async { device.counters().blocks_read >= before + CHUNK_BLOCKS };
        eventually("the next chunk is read", is_read).await;
    }

    #[tokio::test]
    async fn third_backup_at_once_is_refused() {
        let store = StoreKit::new(BLOCKS).in_memory();
        let backups = Backups::default();
        let first = backups.start(&store, None).await.unwrap();
        let _second = backups.clone().start(&store, None).await.unwrap();
        assert!(matches!(backups.start(&store, None).await, Err(BackupRefused::Busy)));
        drop(first);
        assert!(backups.start(&store, None).await.is_ok());
    }

    #[tokio::test]
    async fn a_chunk_is_read_while_the_one_before_is_sent() {
        let (store, device) = cold();
        let mut sending = sending(&store).await;
        // The header, and the first objects.
        sending.next().await.unwrap().unwrap();
        sending.next().await.unwrap().unwrap();
        is_read(&device, device.counters().blocks_read).await;
        let is_free = || async { store.stat().pool.frames_pinned == 0 };
        eventually("a chunk that waits for its client is a copy", is_free).await;
    }

    #[tokio::test]
    async fn error_follows_previous_chunk() {
        let (store, device) = cold();
        let before = device.counters().blocks_read;
        let mut sending = sending(&store).await;
        sending.next().await.unwrap().unwrap();
        is_read(&device, before).await;
        store.close().await.unwrap();
        let chunk = sending.next().await.unwrap().unwrap();
        assert!(chunk.len() > CHUNK_OBJECTS * VALUE_BYTES, "{} bytes", chunk.len());
        assert!(matches!(sending.next().await, Err(Error::Closed)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn concurrent_backups_fit_in_smallest_cache() {
        let (store, _) = cold();
        let mut all = Vec::new();
        for number in 0..BACKUPS {
            let (mut sending, mut bytes) = (sending(&store).await, 0);
            // Each reads other objects at a time.
            for _ in 0..number {
                bytes += sending.next().await.unwrap().unwrap().len();
            }
            all.push((sending, bytes));
        }
        let taken = async {
            while !all.is_empty() {
                let (mut sending, bytes) = all.remove(0);
                match sending.next().await.unwrap() {
                    Some(chunk) => all.push((sending, bytes + chunk.len())),
                    None => assert!(bytes > usize::from(OBJECTS) * VALUE_BYTES),
                }
            }
        };
        in_time("the ends of all", taken).await;
        let pool = store.stat().pool;
        assert_eq!((pool.starved, pool.exhausted), (0, 0), "{pool:?}");
    }
}
