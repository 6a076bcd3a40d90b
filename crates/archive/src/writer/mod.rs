//! Ships the log of a store to its archive, and stops once another server owns it.
//!
//! Reading order: `run.rs` (the life of an archiver); `claim/` (the claim, the seals); `ship.rs` with `chain.rs`, `slot.rs` (the slots of
//! the own log); `feed.rs` with `unit.rs` (the batches that go into them); `spool/` (while the bucket is away); `progress.rs` (the
//! frontiers, and the release of the store's log). The rules R-a to R-d are those of `models/README.md`.
//!
//! Two tasks share the frontiers. One claims and ships. The other one moves records to the spool while the bucket does not keep up. So the
//! store's log never waits for the bucket.

mod chain;
mod claim;
mod feed;
mod progress;
mod run;
mod ship;
mod slot;
mod spool;
mod status;
#[cfg(test)]
mod tests;
mod unit;

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use shoal_base::{Clock, Entropy, Lsn};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

pub use status::{ArchiveOwner, ArchivePosition, ArchiverState, ArchiverStatus, BaseNeed, SegmentCounts};

use progress::{Progress, Shared};
use spool::{SpoolFile, overflow};

use crate::bucket::ArchiveBucket;
use crate::format::{ArchiveRecord, OwnerName};
use crate::keeper::RecordKeeper;
use crate::source::ArchivedStore;

/// A random number of a process that owns an archive: its claims are recognised by it.
pub type Incarnation = [u8; 16];

/// Options of an archiver.
#[derive(Clone, Debug)]
pub struct ArchiverOptions {
    /// Time between the starts of two segments that are not full.
    pub linger: Duration,
    /// Bytes of all segments in memory.
    pub memory_bytes: usize,
    /// The file of the spool, beside the data file.
    pub spool: PathBuf,
    /// Bytes of the spool at most.
    pub spool_bytes_max: u64,
    /// The name and the addresses of the server.
    pub owner: OwnerName,
    /// The machine.
    pub host_id: String,
    /// The start of the machine.
    pub boot_id: String,
}

impl ArchiverOptions {
    /// The defaults, with this spool.
    #[must_use]
    pub fn new(spool: PathBuf) -> Self {
        Self {
            linger: Duration::from_secs(1),
            memory_bytes: 64 << 20,
            spool,
            spool_bytes_max: 10 << 30,
            owner: OwnerName::default(),
            host_id: String::new(),
            boot_id: String::new(),
        }
    }

    /// A segment is full from this number of bytes on.
    fn segment_bytes(&self) -> usize {
        (self.memory_bytes / 8).clamp(256 << 10, 8 << 20)
    }
}

/// Ships the log of one store to one archive. Dropped without [`stop`](Self::stop) it stops as in a crash.
pub struct Archiver {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Archiver {
    /// Starts to archive `store` in `bucket`, on the runtime of the caller. It returns at once: the bucket is looked for in the background.
    ///
    /// # Errors
    /// The spool cannot be opened, or another process uses it.
    pub fn start(
        store: Arc<dyn ArchivedStore>,
        bucket: Arc<ArchiveBucket>,
        options: ArchiverOptions,
        entropy: Arc<dyn Entropy>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let facts = store.facts();
        let spool = Arc::new(SpoolFile::open(&options.spool, facts.volume)?);
        let records = RecordKeeper::new(Arc::clone(&bucket), Arc::clone(&entropy));
        let mut incarnation = [0; 16];
        incarnation[..8].copy_from_slice(&records.random().to_le_bytes());
        incarnation[8..].copy_from_slice(&records.random().to_le_bytes());
        let progress = Mutex::new(Progress::new(&facts, clock.wall_ns()));
        let shared = Arc::new(Shared {
            store,
            bucket,
            records,
            options,
            entropy,
            clock,
            facts,
            incarnation,
            spool,
            progress,
            shipper: Notify::new(),
            overflow: Notify::new(),
            safe: watch::Sender::new(Lsn::NONE),
            need: watch::Sender::new(None),
        });
        let task = tokio::spawn(supervise(Arc::clone(&shared)));
        Ok(Self { shared, task: Mutex::new(Some(task)) })
    }

    /// The state and the figures.
    #[must_use]
    pub fn status(&self) -> ArchiverStatus {
        self.shared.status()
    }

    /// Every record up to this one is in the archive, or in the base that is needed.
    #[must_use]
    pub fn archived(&self) -> Lsn {
        self.shared.progress.lock().archived
    }

    /// Waits until a restore would have record `lsn`: it is archived, and the archive needs no base. The segment with it starts at once.
    pub async fn wait_archived(&self, lsn: Lsn) {
        {
            let mut progress = self.shared.progress.lock();
            progress.hurry = progress.hurry.max(lsn);
        }
        self.shared.shipper.notify_one();
        let mut safe = self.shared.safe.subscribe();
        // The sender lives as long as this archiver.
        let _ = safe.wait_for(|safe| *safe >= lsn).await;
    }

    /// The last record that a restore would have, whenever that changes.
    #[must_use]
    pub fn watch_archived(&self) -> watch::Receiver<Lsn> {
        self.shared.safe.subscribe()
    }

    /// The base that is needed, whenever that changes.
    #[must_use]
    pub fn needs_base(&self) -> watch::Receiver<Option<BaseNeed>> {
        self.shared.need.subscribe()
    }

    /// The place from which a restore replays after a base of a snapshot that is taken now or later; `None` before the first log.
    #[must_use]
    pub fn position(&self) -> Option<ArchivePosition> {
        let position = self.shared.position();
        (position.log != 0).then_some(position)
    }

    /// The incarnation of this process: the record of an archive that it owns has it.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.shared.incarnation
    }

    /// The record after a change by another component. A base that it names may be the one that is needed.
    pub fn note_record(&self, record: ArchiveRecord) {
        self.shared.note_record(record);
    }

    /// Ships everything that is flushed and closes the log, for this time at most; then archiving is over.
    pub async fn stop(&self, within: Duration) {
        self.shared.progress.lock().is_stopping = true;
        self.shared.shipper.notify_one();
        let task = self.task.lock().take();
        if let Some(mut task) = task
            && tokio::time::timeout(within, &mut task).await.is_err()
        {
            task.abort();
            let _ = task.await;
        }
        self.shared.set_state(ArchiverState::Stopped);
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        self.task.lock().iter().for_each(JoinHandle::abort);
    }
}

/// Runs the archiver. After a panic nothing is archived any more, and the store must not wait for that: its log is released as it is
/// flushed.
async fn supervise(shared: Arc<Shared>) {
    if AssertUnwindSafe(start(Arc::clone(&shared))).catch_unwind().await.is_ok() {
        return;
    }
    let why =
        "an error of the program stopped the archive: restart the server, and report the error in its log"
            .to_owned();
    tracing::error!("{why}");
    shared.give_up(ArchiverState::Refused { why });
    let appender = spool::SpoolAppender::new(Arc::clone(&shared.spool));
    overflow(shared, Arc::new(tokio::sync::Mutex::new(appender))).await;
}

/// Looks at the spool that an earlier process left, then runs both tasks until archiving is stopped.
async fn start(shared: Arc<Shared>) {
    let appender = match shared.spool.recover().await {
        Ok(appender) => appender,
        Err(error) => {
            tracing::warn!("the spool {} is not used: {error}", shared.options.spool.display());
            spool::SpoolAppender::new(Arc::clone(&shared.spool))
        }
    };
    let appender = Arc::new(tokio::sync::Mutex::new(appender));
    let last = shared.spool.last();
    let facts = &shared.facts;
    if last > Lsn::NONE && (last > facts.recovered || facts.log_start > last.next()) {
        tracing::warn!(
            "the spool {} is not that of this store: it is emptied",
            shared.options.spool.display()
        );
        if let Err(error) = appender.lock().await.clear().await {
            tracing::warn!("the spool {} cannot be emptied: {error}", shared.options.spool.display());
        }
    }
    let keeping = overflow(Arc::clone(&shared), Arc::clone(&appender));
    let shipping = async {
        run::run(Arc::clone(&shared), appender).await;
        // If another server has the archive, the store's log is released as it is flushed.
        run::stopped(&shared).await;
    };
    tokio::pin!(keeping, shipping);
    tokio::select! {
        () = &mut shipping => {}
        () = &mut keeping => shipping.await,
    }
}
