//! The archive of a server: its settings, and its life between the opening of the store and its close.

use std::num::NonZeroU64;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use shoal_archive::base::{ArchiverBases, BaseKeeper, BaseOptions, BaseStatus};
use shoal_archive::bucket::{ArchiveBucket, BucketAddress, BucketOptions};
use shoal_archive::format::OwnerName;
use shoal_archive::keeper::RecordKeeper;
use shoal_archive::source::ArchivedStore;
use shoal_archive::store::EngineStore;
use shoal_archive::writer::{Archiver, ArchiverOptions, ArchiverState, ArchiverStatus};
use shoal_base::task::Boxed;
use shoal_base::{Entropy, SystemClock, SystemEntropy};
use shoal_engine::Store;
use shoal_frontend::ArchiveFrontier;
use shoal_metrics::ArchiveFigures;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::arguments::Arguments;
use super::frontends::Frontends;
use super::settings::{DEFAULT_DATA, Settings, parse_duration};
use crate::failure::Usage;

const INTERVAL: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
const PUTS_PER_SECOND: u32 = 10;
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
const SPOOL: u64 = 10 << 30;
const BASE_RATE: u64 = 64 << 20;
const STOP_MAX: Duration = Duration::from_secs(5);
/// Bytes of the newest batches of the log that the engine keeps for the archive.
const HOT_TAIL: u64 = 4 << 20;

/// The settings of the archive.
pub(super) struct ArchiveSettings {
    address: BucketAddress,
    /// The address as it was given.
    pub(super) named: String,
    interval: Duration,
    puts_per_second: u32,
    retention: Duration,
    spool: PathBuf,
    /// `None`: half of the free space, and at most [`SPOOL`].
    spool_bytes_max: Option<u64>,
    /// Bytes a second.
    base_rate: NonZeroU64,
}

impl ArchiveSettings {
    /// Those of `arguments`; `None` without `--archive`.
    ///
    /// # Errors
    /// [`Usage`].
    pub(super) fn of(arguments: &Arguments) -> Result<Option<Self>, Usage> {
        let Some(named) = arguments.archive.clone() else {
            let others = [
                ("--archive-interval", arguments.archive_interval.is_some()),
                ("--archive-puts", arguments.archive_puts.is_some()),
                ("--archive-retention", arguments.archive_retention.is_some()),
                ("--archive-spool", arguments.archive_spool.is_some()),
                ("--archive-spool-folder", arguments.archive_spool_folder.is_some()),
                ("--archive-base-rate", arguments.archive_base_rate.is_some()),
            ];
            return match others.iter().find(|(_, is_given)| *is_given) {
                Some((option, _)) => Err(Usage(format!("{option} needs --archive URL"))),
                None => Ok(None),
            };
        };
        let duration = |option, given: &Option<String>, default| {
            let parsed = parse_duration(option, given.as_deref(), default)?;
            parsed.ok_or_else(|| Usage(format!("{option} off: write a duration, as 1s or 7d")))
        };
        let interval = duration("--archive-interval", &arguments.archive_interval, INTERVAL)?;
        if interval > INTERVAL_MAX {
            let interval = humantime::format_duration(interval);
            return Err(Usage(format!("--archive-interval {interval}: at most 1h")));
        }
        let data = arguments.data.as_deref().unwrap_or_else(|| Path::new(DEFAULT_DATA));
        let base_rate = arguments.archive_base_rate.map_or(BASE_RATE, |rate| rate.0);
        Ok(Some(Self {
            address: named.parse().map_err(|error| Usage(format!("--archive: {error}")))?,
            named,
            interval,
            puts_per_second: arguments.archive_puts.unwrap_or(PUTS_PER_SECOND),
            retention: duration("--archive-retention", &arguments.archive_retention, RETENTION)?,
            spool: spool_of(data, arguments.archive_spool_folder.as_deref())?,
            spool_bytes_max: arguments.archive_spool.map(|spool| spool.0),
            base_rate: NonZeroU64::new(base_rate)
                .ok_or_else(|| Usage("--archive-base-rate 0: a base would never be uploaded".into()))?,
        }))
    }
}

/// The file of the spool of `data`.
fn spool_of(data: &Path, folder: Option<&Path>) -> Result<PathBuf, Usage> {
    let is_device = std::fs::metadata(data).is_ok_and(|meta| meta.file_type().is_block_device());
    if is_device && folder.is_none() {
        let data = data.display();
        let problem = format!(
            "--archive with the block device {data} needs --archive-spool-folder FOLDER: writes wait in a file there while the bucket is away"
        );
        return Err(Usage(problem));
    }
    let mut name = data.file_name().unwrap_or(data.as_os_str()).to_owned();
    name.push(".spool");
    let beside = data.parent().unwrap_or(Path::new(""));
    Ok(folder.unwrap_or(beside).join(name))
}

/// The bytes that a spool in this folder may have: half of the free space, so that the data file can grow.
fn spool_room(spool: &Path) -> u64 {
    let folder = spool.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    rustix::fs::statvfs(folder)
        .map_or(SPOOL, |room| (room.f_bavail.saturating_mul(room.f_frsize) / 2).min(SPOOL))
}

/// The archive of a server that serves.
pub(super) struct ServedArchive {
    archiver: Arc<Archiver>,
    bases: JoinHandle<()>,
}

impl ServedArchive {
    /// Starts to archive `store`, if an option names an archive. The bucket is looked for in the background: a server serves without it.
    ///
    /// # Errors
    /// The configuration of the bucket is not complete, or the spool cannot be used.
    pub(super) fn start(
        settings: &Settings,
        store: &Store,
        frontends: &Frontends,
    ) -> anyhow::Result<Option<Self>> {
        let Some(archive) = &settings.archive else { return Ok(None) };
        let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
        let clock = Arc::new(SystemClock::default());
        let options = BucketOptions { puts_per_second: archive.puts_per_second, ..BucketOptions::default() };
        let bucket = ArchiveBucket::open(&archive.address, options, Arc::clone(&entropy));
        let bucket = Arc::new(bucket.with_context(|| format!("--archive {}", archive.named))?);
        let memory = settings.memory.archive.saturating_sub(HOT_TAIL);
        let spool_bytes_max = archive.spool_bytes_max.unwrap_or_else(|| spool_room(&archive.spool));
        let addresses = frontends.named();
        let options = ArchiverOptions {
            linger: archive.interval,
            memory_bytes: usize::try_from(memory * 2 / 3).unwrap_or(usize::MAX),
            spool_bytes_max,
            owner: OwnerName { node: host_name(), resp: addresses.1, grpc: addresses.0 },
            host_id: first_line("/etc/machine-id"),
            boot_id: first_line("/proc/sys/kernel/random/boot_id"),
            ..ArchiverOptions::new(archive.spool.clone())
        };
        let source: Arc<dyn ArchivedStore> = Arc::new(EngineStore::new(store.clone()));
        let archiver = Archiver::start(
            Arc::clone(&source),
            Arc::clone(&bucket),
            options,
            Arc::clone(&entropy),
            clock.clone(),
        );
        let archiver = archiver.with_context(|| {
            format!(
                "the spool of the archive, {}, cannot be used; --archive-spool-folder names another folder",
                archive.spool.display()
            )
        })?;
        let archiver = Arc::new(archiver);
        let options = BaseOptions {
            retention: archive.retention,
            memory_bytes: usize::try_from(memory / 3).unwrap_or(usize::MAX),
            bytes_per_second: archive.base_rate,
        };
        let record = RecordKeeper::new(Arc::clone(&bucket), entropy);
        let writer = Arc::new(ArchiverBases::new(Arc::clone(&archiver)));
        let bases = BaseKeeper::new(source, (Arc::clone(&bucket), record), writer, options, clock);
        let status = bases.status();
        let bases = tokio::spawn(bases.run());
        let frontier =
            Frontier { archiver: Arc::clone(&archiver), store: store.clone(), runtime: Handle::current() };
        frontends.archive.set(Arc::new(frontier));
        let shown = Arc::clone(&archiver);
        frontends.metrics.set_archive(move || figures(&shown.status(), &status, &bucket, spool_bytes_max));
        Ok(Some(Self { archiver, bases }))
    }

    /// Ships the rest of the log, for this time and [`STOP_MAX`] at most. The next start ships the records that did not get through.
    pub(super) async fn stop(archive: Option<Self>, within: Duration) {
        let Some(Self { archiver, bases }) = archive else { return };
        bases.abort();
        archiver.stop(within.min(STOP_MAX)).await;
    }
}

/// The first line of a small file; empty if there is none.
fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

fn host_name() -> String {
    first_line("/proc/sys/kernel/hostname")
}

/// The archive, as WAIT waits for it.
struct Frontier {
    archiver: Arc<Archiver>,
    store: Store,
    /// Its timers: the frontend's threads have none.
    runtime: Handle,
}

impl ArchiveFrontier for Frontier {
    fn wait(&self, time: Option<Duration>) -> Boxed<'static, bool> {
        let (archiver, lsn) = (Arc::clone(&self.archiver), self.store.newest_logged());
        Box::pin(Waiting(self.runtime.spawn(async move {
            let archived = archiver.wait_archived(lsn);
            match time {
                Some(time) => tokio::time::timeout(time, archived).await.is_ok(),
                None => {
                    archived.await;
                    true
                }
            }
        })))
    }
}

/// A wait, which stops when it is dropped.
struct Waiting(JoinHandle<bool>);

impl Future for Waiting {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        Pin::new(&mut self.0).poll(context).map(|ended| ended.unwrap_or(false))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The figures of the metrics and of the console.
fn figures(
    status: &ArchiverStatus,
    bases: &BaseStatus,
    bucket: &ArchiveBucket,
    spool_bytes_max: u64,
) -> ArchiveFigures {
    let (state, words) = state(status, bases.failure());
    let counters = bucket.counters();
    let [puts, gets, deletes, lists, failures, ours, foreign] = [
        &counters.puts,
        &counters.gets,
        &counters.deletes,
        &counters.lists,
        &counters.failures,
        &counters.ambiguous_ours,
        &counters.ambiguous_foreign,
    ]
    .map(|counter| counter.load(Ordering::Relaxed));
    let seconds = |ns: u64| ns as f64 / 1e9;
    let segments = &status.segments;
    ArchiveFigures {
        state,
        words,
        lag_seconds: status.lag.as_secs_f64(),
        lag_bytes: status.lag_bytes,
        version: status.archived.0,
        spool_bytes: status.spool_bytes,
        spool_bytes_max,
        gaps: status.gaps,
        segments: [("data", segments.data), ("opening", segments.opening), ("close", segments.close)],
        segment_bytes: status.segment_bytes,
        requests: [("put", puts), ("get", gets), ("delete", deletes), ("list", lists)],
        failures,
        ambiguous_ours: ours,
        ambiguous_foreign: foreign,
        base_taken_seconds: bases.newest().map(|base| seconds(base.taken_ns)),
        base_bytes: bases.progress.bytes.load(Ordering::Relaxed),
        base_bytes_expected: bases.progress.bytes_expected.load(Ordering::Relaxed),
        log_bytes_since_base: bases.log_bytes.load(Ordering::Relaxed),
        oldest_seconds: Some(bases.oldest_ns()).filter(|&ns| ns > 0).map(seconds),
    }
}

/// The state, as a label and in words.
fn state(status: &ArchiverStatus, base_failure: Option<String>) -> (&'static str, String) {
    let base_failed = base_failure.map(|why| format!("; the last base failed: {why}")).unwrap_or_default();
    if let (ArchiverState::Connecting { why }, Some(gap)) = (&status.state, &status.gap) {
        let why = if why.is_empty() { "it is connected to again" } else { why };
        return ("gap", format!("a base is needed, once the bucket answers: {gap}. The bucket: {why}"));
    }
    match &status.state {
        ArchiverState::Connecting { why } if why.is_empty() => {
            ("connecting", "connecting to the bucket".into())
        }
        ArchiverState::Connecting { why } => ("connecting", format!("the bucket was not reached yet: {why}")),
        ArchiverState::Shipping => {
            ("shipping", format!("every write up to version {} is archived{base_failed}", status.archived))
        }
        ArchiverState::Waiting { why, since } => {
            ("waiting", format!("the bucket has not answered for {} s: {why}", since.as_secs()))
        }
        ArchiverState::NeedsBase { why } => ("gap", format!("a base is needed: {why}{base_failed}")),
        ArchiverState::Fenced { owner, why } => {
            let name = &owner.name;
            let words = format!(
                "another server owns the archive ({}, gRPC {}, epoch {}): {why}",
                name.node, name.grpc, owner.epoch
            );
            ("fenced", words)
        }
        ArchiverState::Refused { why } => ("refused", why.clone()),
        ArchiverState::Stopped => ("stopped", "nothing is archived any more: the server stops".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spool_is_beside_the_data_file() {
        let spool = |data: &str, folder: Option<&str>| {
            spool_of(Path::new(data), folder.map(Path::new)).map_err(|error| error.0)
        };
        assert_eq!(spool("/srv/shoal.data", None), Ok("/srv/shoal.data.spool".into()));
        assert_eq!(spool("shoal.data", None), Ok("shoal.data.spool".into()));
        assert_eq!(spool("/srv/shoal.data", Some("/var/spool")), Ok("/var/spool/shoal.data.spool".into()));
        let device = std::fs::read_dir("/dev").unwrap().find_map(|entry| {
            let path = entry.unwrap().path();
            std::fs::metadata(&path).is_ok_and(|meta| meta.file_type().is_block_device()).then_some(path)
        });
        if let Some(device) = device {
            let problem = spool(device.to_str().unwrap(), None).unwrap_err();
            assert!(problem.contains("--archive-spool-folder"), "{problem}");
            assert!(spool(device.to_str().unwrap(), Some("/srv")).is_ok());
        }
    }
}
