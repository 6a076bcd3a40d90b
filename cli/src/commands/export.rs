//! `shoal export`: objects become files in a folder, or entries of a tar.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};
use shoal_client::ListRequest;
use tokio::runtime::Handle;

use crate::backup::sink::{Contents, Sink};
use crate::buckets::hint_if_empty;
use crate::commands::stop_on_signal;
use crate::failure::{Usage, one_line};
use crate::objects::Objects;
use crate::output::bytes_of;
use crate::store_file::Access;
use crate::tarball;
use crate::target::Target;
use crate::transfer::filter::Filter;
use crate::transfer::progress;
use crate::transfer::report::{EXPORT, EXPORT_TAR, Manner, Report};
use crate::transfer::work::JOBS_MAX;
use crate::tree::folder::Folder;
use crate::tree::unload::Unload;

/// Folders that are open at the same time: at least one for each component of a key, at most this many.
const FOLDERS_OPEN_MAX: usize = 4096;
/// A key of 1,024 bytes has at most this many components.
const FOLDERS_OPEN_MIN: usize = 520;

const EXAMPLES: &str = "Examples:
  shoal export ./copy                    everything in the bucket
  shoal export photos/ ./restored        photos/2024/a.jpg becomes restored/2024/a.jpg
  shoal export photos/ ./restored --include '*.jpg' --dry-run
                                         prints the keys, and writes nothing
  shoal export photos/ --tar photos.tar  one tar, which holds any key
  shoal export --tar - | zstd > all.tar.zst

The file of an object is the key without the prefix, below DIR. Existing files with the same size, mode, time and
attributes are left alone, others are replaced; files that are not in the store are not touched. Modes, times and symlinks come back as
import found them, except that set-user-id and set-group-id of files are dropped, as the owner is not kept. Metadata, content type and
deadline are extended attributes user.shoal.* of the file, from which import restores them.

The export stops at an object that a folder cannot hold, and names it: keys such as a beside a/b, keys that would lead out of DIR (absolute, with
.., or through a symlink), with empty parts or with parts of more than 255 bytes; names that the file system cannot distinguish
(README, readme), or stores in another form; metadata and deadlines on a file
system without extended attributes. --lossy skips all that and continues. A tar holds everything except keys with NUL bytes.

If a part of the index is damaged, everything else is exported, and the missing ranges of keys are named (--json: as
\"damaged\").

Exit codes: 0 everything was written, 1 something failed, was refused, or is damaged, 5 written, except for the parts that --lossy skipped.";

const USAGE: &str =
    "shoal export [OPTIONS] [PREFIX] <DIR>\n       shoal export [OPTIONS] [PREFIX] --tar <FILE>";

#[derive(Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub(crate) struct Arguments {
    /// Only keys that start with PREFIX, which is left out of the files' names; the folder DIR, created if it does not exist.
    #[arg(value_names = ["PREFIX", "DIR"], num_args = 0..=2)]
    names: Vec<OsString>,
    /// Write one tar into this file, - for standard output, in place of a folder.
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
    /// With --tar: overwrite an existing file.
    #[arg(long, requires = "tar")]
    force: bool,
    #[command(flatten)]
    filter: Filter,
    /// Batches of objects that are read and written at the same time.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=i64::from(JOBS_MAX)))]
    jobs: u16,
    /// Skip and report everything that a folder or tar cannot hold.
    #[arg(long)]
    lossy: bool,
    /// Write nothing; print the keys that would be written.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object at the end, and no progress; with --tar - on standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if arguments.tar.is_none() && arguments.names.last().is_some_and(|dir| dir.is_empty()) {
        return Err(Usage("the name of the folder DIR is empty: is a variable not set?".into()).into());
    }
    match (&arguments.tar, &arguments.names[..]) {
        (Some(tar), []) => run_tar(&arguments, &OsString::new(), tar).await,
        (Some(tar), [prefix]) => run_tar(&arguments, prefix, tar).await,
        (Some(_), _) => Err(Usage("with --tar there is no DIR, only a PREFIX".into()).into()),
        (None, [dir]) => run_folder(&arguments, &OsString::new(), Path::new(dir)).await,
        (None, [prefix, dir]) => run_folder(&arguments, prefix, Path::new(dir)).await,
        (None, _) => Err(Usage("name the folder, or give --tar FILE".into()).into()),
    }
}

impl Arguments {
    fn manner(&self, on_error: bool) -> Manner {
        Manner { json: self.json, dry_run: self.dry_run, lossy: self.lossy, on_error }
    }
}

async fn run_folder(arguments: &Arguments, prefix: &OsString, dir: &Path) -> anyhow::Result<()> {
    let objects = arguments.target.store.open(Access::Read).await?;
    let report = Arc::new(Report::new(EXPORT, arguments.manner(false), progress::bar(arguments.json)));
    let unload = Unload {
        objects: objects.clone(),
        handle: Handle::current(),
        bucket: arguments.target.bucket().to_owned(),
        prefix: Bytes::copy_from_slice(bytes_of(prefix)),
        filter: arguments.filter.clone(),
        report: report.clone(),
        folders_max: allow_open_folders(),
    };
    let target = (!arguments.dry_run).then(|| {
        Folder::target(dir, report.clone()).with_context(|| format!("cannot write into {}", dir.display()))
    });
    let target = target.transpose()?;
    stop_on_signal(&report)?;
    if report.bar().is_some() {
        tokio::spawn(count(objects.clone(), unload.all(), arguments.filter.clone(), report.clone()));
    }
    let progress = progress::start(&report);
    let (jobs, dir) = (arguments.jobs, dir.to_owned());
    let worked = tokio::task::spawn_blocking(move || match target {
        Some(target) => unload.run(target, jobs),
        None => unload.run_dry(&dir),
    });
    let worked = worked.await;
    drop(progress);
    if report.counts().items() == 0 {
        hint_if_empty(&objects, arguments.target.bucket()).await;
    }
    let closed = objects.close().await;
    let concluded = report.conclude();
    worked.context("the export broke off")?;
    closed?;
    concluded
}

async fn run_tar(arguments: &Arguments, prefix: &OsString, path: &Path) -> anyhow::Result<()> {
    // The destination first: a tar that cannot be kept is not started.
    let sink = (!arguments.dry_run).then(|| Sink::open(path, arguments.force, Contents::Tar)).transpose()?;
    let objects = arguments.target.store.open(Access::Read).await?;
    let on_error = path == Path::new("-") && !arguments.dry_run;
    let report = Arc::new(Report::new(EXPORT_TAR, arguments.manner(on_error), progress::bar(arguments.json)));
    stop_on_signal(&report)?;
    let unload = tarball::unload::Unload {
        objects: objects.clone(),
        bucket: arguments.target.bucket().to_owned(),
        prefix: Bytes::copy_from_slice(bytes_of(prefix)),
        filter: arguments.filter.clone(),
        report: report.clone(),
    };
    if report.bar().is_some() {
        tokio::spawn(count(objects.clone(), unload.all(), arguments.filter.clone(), report.clone()));
    }
    let progress = progress::start(&report);
    let worked = match sink {
        Some(sink) => write_tar(&unload, sink, arguments.jobs).await,
        None => unload.run_dry().await,
    };
    drop(progress);
    if let Err(error) = worked {
        report.stop(&one_line(&error));
    } else if report.counts().items() == 0 {
        hint_if_empty(&objects, arguments.target.bucket()).await;
    }
    let closed = objects.close().await;
    report.conclude()?;
    Ok(closed?)
}

async fn write_tar(unload: &tarball::unload::Unload, sink: Sink, jobs: u16) -> anyhow::Result<()> {
    let out = unload.run(io::BufWriter::with_capacity(1 << 20, Out(sink)), jobs).await?;
    let Out(sink) = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    tokio::task::block_in_place(|| sink.finish())
}

/// The place of a tar. A pipe whose reader is gone is an error, too: the tar is incomplete then.
struct Out(Sink);

impl io::Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Raises the limit of open files to its maximum, and returns the folders' share.
fn allow_open_folders() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_ok() {
        limit = getrlimit(Resource::Nofile);
    }
    let files = limit.current.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    (files / 2).clamp(FOLDERS_OPEN_MIN, FOLDERS_OPEN_MAX)
}

/// Counts the objects, for an estimate of the remaining time.
async fn count(objects: Objects, mut request: ListRequest, filter: Filter, report: Arc<Report>) {
    let (mut items, mut bytes) = (0, 0);
    let prefix_bytes = request.prefix.len();
    // Without a total no time is shown; the export itself meets and reports the failure.
    while let Ok(page) = objects.list(&request).await {
        for entry in &page.entries {
            if filter.takes(entry.key.get(prefix_bytes..).unwrap_or_default()) {
                items += 1;
                bytes += entry.info.bytes;
            }
        }
        match page.next {
            Some(next) if !report.is_stopped() => request.start_after = next,
            _ => return report.set_total(items, bytes),
        }
    }
}
