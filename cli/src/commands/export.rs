//! `shoal export`: objects become files in a folder.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};
use shoal_client::ListRequest;
use tokio::runtime::Handle;

use crate::commands::stop_on_signal;
use crate::objects::Objects;
use crate::output::bytes_of;
use crate::store_file::Access;
use crate::target::Target;
use crate::transfer::progress;
use crate::transfer::report::{EXPORT, Report};
use crate::transfer::work::JOBS_MAX;
use crate::tree::folder::Folder;
use crate::tree::unload::Unload;

/// Folders that are open at the same time: at least as many as a key has components, at most this many.
const FOLDERS_OPEN_MAX: usize = 4096;
/// A key of 1,024 bytes has at most so many components.
const FOLDERS_OPEN_MIN: usize = 520;

const EXAMPLES: &str = "\
Examples:
  shoal export ./copy                    everything in the bucket
  shoal export photos/ ./restored        photos/2024/a.jpg becomes restored/2024/a.jpg

The file of an object is the key without the prefix, below DIR. Files that are there already with the same size, mode and
time are left alone, others are replaced; what is not in the store is not touched. Keys that would lead out of DIR (absolute,
with .., or through a symlink) are refused and reported. Modes, times and symlinks come back as import found them, except
that set-user-id and set-group-id of files are dropped, as the owner is not kept.

Where a part of the index is damaged everything else is exported, and the ranges of keys that are missing are named (--json: as
\"damaged\").

Exit code: 0 when everything was written, 1 when something failed, was refused, or is damaged.";

#[derive(Args)]
#[command(after_help = EXAMPLES, allow_missing_positional = true)]
pub(crate) struct Arguments {
    /// Only keys that begin with this; it is left out of the files' names.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: OsString,
    /// The folder; created where it does not exist.
    #[arg(required = true)]
    dir: PathBuf,
    /// Batches of objects that are read and written at the same time.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=i64::from(JOBS_MAX)))]
    jobs: u16,
    /// Print one JSON object at the end, and no progress.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let objects = arguments.target.store.open(Access::Read).await?;
    let report = Arc::new(Report::new(EXPORT, progress::bar(arguments.json)));
    let target = Folder::target(&arguments.dir, report.clone())
        .with_context(|| format!("cannot write into {}", arguments.dir.display()))?;
    stop_on_signal(&report)?;

    let unload = Unload {
        objects: objects.clone(),
        handle: Handle::current(),
        bucket: arguments.target.bucket,
        prefix: Bytes::copy_from_slice(bytes_of(&arguments.prefix)),
        report: report.clone(),
        folders_max: allow_open_folders(),
    };
    if report.bar().is_some() {
        tokio::spawn(count(objects.clone(), unload.all(), report.clone()));
    }
    let progress = progress::start(&report, arguments.json);
    let worked = tokio::task::spawn_blocking(move || unload.run(target, arguments.jobs)).await;
    drop(progress);
    let closed = objects.close().await;
    let concluded = report.conclude(arguments.json);
    worked.context("the export broke off")?;
    closed?;
    concluded
}

/// Raises the limit of open files as far as it may be raised, and gives the folders' share.
fn allow_open_folders() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_ok() {
        limit = getrlimit(Resource::Nofile);
    }
    let files = limit.current.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    (files / 2).clamp(FOLDERS_OPEN_MIN, FOLDERS_OPEN_MAX)
}

/// How much there will be: for the time that is left.
async fn count(objects: Objects, mut request: ListRequest, report: Arc<Report>) {
    let (mut items, mut bytes) = (0, 0);
    // Without a total no time is shown; the export itself meets and reports the failure.
    while let Ok(page) = objects.list(&request).await {
        items += page.entries.len() as u64;
        bytes += page.entries.iter().map(|entry| entry.info.bytes).sum::<u64>();
        match page.next {
            Some(next) if !report.is_stopped() => request.start_after = next,
            _ => return report.set_total(items, bytes),
        }
    }
}
