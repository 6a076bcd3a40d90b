//! The writer against a model of a store, over a bucket that fails, on the virtual clock.

mod model;
mod outages;
mod owner;
mod replay;
mod scripted;
mod ships;
mod simulation;
mod traces;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use shoal_base::{Lsn, SeededEntropy, SystemClock};

use self::model::{Disk, ModelStore};
use tokio::task::JoinHandle;

use super::{Archiver, ArchiverOptions, ArchiverState};
use crate::bucket::{ArchiveBucket, BucketOptions};
use crate::format::VolumeId;

const VOLUME: VolumeId = [7; 16];

fn disk(ring_bytes: u64) -> Arc<Mutex<Disk>> {
    Arc::new(Mutex::new(Disk::new(VOLUME, ring_bytes)))
}

/// A server's side of an archive.
struct Server {
    store: Arc<ModelStore>,
    archiver: Archiver,
}

fn options(folder: &tempfile::TempDir) -> ArchiverOptions {
    ArchiverOptions { memory_bytes: 2 << 20, ..ArchiverOptions::new(folder.path().join("spool")) }
}

impl Server {
    async fn start(
        disk: &Arc<Mutex<Disk>>,
        bucket: Arc<ArchiveBucket>,
        options: &ArchiverOptions,
        seed: u64,
    ) -> Self {
        let store = ModelStore::open(disk);
        loop {
            let entropy = Arc::new(SeededEntropy::new(seed));
            let clock = Arc::new(SystemClock::new());
            let (source, bucket) = (Arc::clone(&store), Arc::clone(&bucket));
            match Archiver::start(source, bucket, options.clone(), entropy, clock) {
                Ok(archiver) => return Self { store, archiver },
                // The process before still writes to the spool.
                Err(error) => assert!(error.to_string().contains("another process"), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Its task runs until it is stopped.
    fn check_tasks(&self) {
        let is_finished = self.archiver.task.lock().as_ref().is_some_and(JoinHandle::is_finished);
        assert!(!is_finished, "the archiver panicked: {:?}", self.archiver.status());
    }

    /// Waits until its log is open.
    async fn opened(&self) {
        let limit = tokio::time::Instant::now() + Duration::from_secs(3_600);
        while self.archiver.status().segments.opening == 0 {
            assert!(tokio::time::Instant::now() < limit, "{:?}", self.archiver.status());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until everything is archived, or another server owns the archive.
    async fn catch_up(&self) {
        let limit = tokio::time::Instant::now() + Duration::from_secs(3_600);
        let is_fenced =
            || matches!(self.state(), ArchiverState::Fenced { .. } | ArchiverState::Refused { .. });
        while self.archiver.archived() < Lsn(self.store_last()) && !is_fenced() {
            assert!(tokio::time::Instant::now() < limit, "{:?}", self.archiver.status());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn store_last(&self) -> u64 {
        use crate::source::ArchivedStore;
        self.store.durable().0
    }

    fn state(&self) -> ArchiverState {
        self.archiver.status().state
    }
}

fn folder_bucket(folder: &tempfile::TempDir) -> Arc<ArchiveBucket> {
    let root = folder.path().join("bucket");
    let _ = std::fs::create_dir(&root);
    let address = format!("file://{}", root.display()).parse().unwrap();
    let options = BucketOptions { puts_per_second: 10_000, ..BucketOptions::default() };
    Arc::new(ArchiveBucket::open(&address, options, Arc::new(SeededEntropy::new(3))).unwrap())
}
