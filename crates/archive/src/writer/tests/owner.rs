//! A server over a scripted bucket.

use std::sync::atomic::{AtomicU64, Ordering};

use shoal_base::Lsn;
use tokio::time::sleep;

use super::replay::{check, replay};
use super::scripted::Scripted;
use super::*;
use crate::format::*;

/// A segment is sent and answered in this time.
pub(super) const MOMENT: Duration = Duration::from_secs(3);

/// An archive with a record, so that no full probe is needed.
pub(super) fn archive() -> Scripted {
    let scripted = Scripted::new();
    let record = ArchiveRecord {
        flags: RecordFlags::default(),
        volume: VOLUME,
        revision: 1,
        nonce: 1,
        epoch: 0,
        owner: None,
        building: 0,
        oldest_lsn: Lsn::NONE,
        oldest_ns: 0,
        tablets: 4,
        window: 8,
        lease_ms: 9_000,
        logs: Vec::new(),
        bases: Vec::new(),
        pins: Vec::new(),
        owner_name: OwnerName::default(),
    };
    scripted.put("record", record.encode().unwrap().into());
    scripted
}

/// Another one for each process.
fn seed() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(super) struct Owner {
    pub(super) scripted: Scripted,
    pub(super) disk: Arc<Mutex<Disk>>,
    pub(super) folder: tempfile::TempDir,
    pub(super) server: Server,
}

impl Owner {
    pub(super) async fn start(scripted: Scripted, disk: Arc<Mutex<Disk>>) -> Self {
        Self::start_with(scripted, disk, |options| options).await
    }

    /// Starts with changed options.
    pub(super) async fn start_with(
        scripted: Scripted,
        disk: Arc<Mutex<Disk>>,
        change: impl FnOnce(ArchiverOptions) -> ArchiverOptions,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = change(options(&folder));
        let server = Server::start(&disk, scripted.bucket(), &options, seed()).await;
        Self { scripted, disk, folder, server }
    }

    pub(super) async fn opened(scripted: Scripted) -> Self {
        let owner = Self::start(scripted, disk(1 << 20)).await;
        owner.server.opened().await;
        owner
    }

    pub(super) fn log(&self) -> u64 {
        self.server.archiver.status().log
    }

    pub(super) fn slot(&self, seq: u64) -> String {
        LogSlot { log: self.log(), seq }.to_string()
    }

    /// Writes a record and waits for its slot, which has no other record.
    pub(super) async fn write(&self) -> u64 {
        let last = self.server.store.put("b\0key", 10);
        sleep(MOMENT).await;
        last
    }

    pub(super) fn archived(&self) -> u64 {
        self.server.archiver.archived().0
    }

    /// Crashes, and starts another process on the same data file.
    pub(super) async fn restart(self) -> Self {
        let scripted = self.scripted.other();
        self.restart_over(scripted).await
    }

    pub(super) async fn restart_over(self, scripted: Scripted) -> Self {
        drop(self.server.archiver);
        self.server.store.close();
        let options = options(&self.folder);
        let server = Server::start(&self.disk, scripted.bucket(), &options, seed()).await;
        Self { scripted, server, ..self }
    }

    /// A copy of the data file.
    pub(super) fn copied_disk(&self) -> Arc<Mutex<Disk>> {
        Arc::new(Mutex::new(self.disk.lock().copied()))
    }

    pub(super) fn is_fenced(&self) -> bool {
        matches!(self.server.state(), ArchiverState::Fenced { .. })
    }

    pub(super) fn verify(&self) {
        let (_, logs) = replay(&self.scripted.contents(), &VOLUME);
        let disk = self.disk.lock();
        check(&logs, |log| disk.logs.contains(&log), &disk.history, Lsn(self.archived()));
    }
}
