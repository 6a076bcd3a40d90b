//! `shoal export`: objects become files in a folder, or entries of a tar.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};
use shoal_transfer::export::Export;
use shoal_transfer::objects::Objects;
use shoal_transfer::tarball::unload::TarExport;
use shoal_transfer::text::one_line;
use shoal_transfer::tree::folder::Folder;
use shoal_transfer::tree::unload::FolderExport;
use shoal_transfer::work::JOBS_MAX;
use tokio::runtime::Handle;

use crate::arguments::filter::FilterArguments;
use crate::arguments::target::Target;
use crate::backup::sink::{Contents, Sink};
use crate::failure::Usage;
use crate::output::bytes_of;
use crate::store::buckets::hint_if_empty;
use crate::store::file::Access;
use crate::transfer::{EXPORT, EXPORT_TAR, Shown, Verb, progress};

/// Maximum number of open folders.
const FOLDERS_OPEN_MAX: usize = 4096;
/// Minimum of that maximum: a key of 1,024 bytes has fewer components.
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
    filter: FilterArguments,
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
    fn shown(&self, verb: Verb, on_error: bool) -> Shown {
        let Self { json, dry_run, lossy, .. } = *self;
        Shown::new(verb, (dry_run, lossy), json, on_error)
    }

    /// The export. For a progress bar it counts its objects on the side.
    fn export(&self, objects: &Objects, prefix: &OsString, shown: &Shown) -> Export {
        let export = Export {
            objects: objects.clone(),
            bucket: self.target.bucket().to_owned(),
            prefix: Bytes::copy_from_slice(bytes_of(prefix)),
            filter: self.filter.filter(),
            report: shown.report.clone(),
        };
        if shown.has_bar() {
            let export = export.clone();
            tokio::spawn(async move { export.count().await });
        }
        export
    }
}

async fn run_folder(arguments: &Arguments, prefix: &OsString, dir: &Path) -> anyhow::Result<()> {
    let objects = arguments.target.store.open(Access::Read).await?;
    let shown = arguments.shown(EXPORT, false);
    let target = (!arguments.dry_run).then(|| {
        Folder::target(dir, shown.report.clone())
            .with_context(|| format!("cannot write into {}", dir.display()))
    });
    let target = target.transpose()?;
    shown.stop_on_signal()?;
    let export = FolderExport {
        export: arguments.export(&objects, prefix, &shown),
        handle: Handle::current(),
        folders_max: allow_open_folders(),
    };
    let (jobs, dir) = (arguments.jobs, dir.to_owned());
    let work = move || match target {
        Some(target) => export.run(target, jobs),
        None => export.run_dry(&dir),
    };
    let hint = async |objects: &Objects| {
        if shown.report.counts().items() == 0 {
            hint_if_empty(objects, arguments.target.bucket()).await;
        }
    };
    shown.run(objects, work, hint).await
}

async fn run_tar(arguments: &Arguments, prefix: &OsString, path: &Path) -> anyhow::Result<()> {
    // The destination first: a tar that cannot be kept is not started.
    let sink = (!arguments.dry_run).then(|| Sink::open(path, arguments.force, Contents::Tar)).transpose()?;
    let objects = arguments.target.store.open(Access::Read).await?;
    let shown = arguments.shown(EXPORT_TAR, path == Path::new("-") && !arguments.dry_run);
    shown.stop_on_signal()?;
    let export = TarExport { export: arguments.export(&objects, prefix, &shown) };
    let progress = progress::start(&shown);
    let worked = match sink {
        Some(sink) => write_tar(&export, sink, arguments.jobs).await,
        None => export.run_dry().await,
    };
    drop(progress);
    if let Err(error) = worked {
        shown.report.stop(&one_line(&error));
    } else if shown.report.counts().items() == 0 {
        hint_if_empty(&objects, arguments.target.bucket()).await;
    }
    let closed = objects.close().await;
    shown.conclude()?;
    Ok(closed?)
}

async fn write_tar(export: &TarExport, sink: Sink, jobs: u16) -> anyhow::Result<()> {
    let out = export.run(io::BufWriter::with_capacity(1 << 20, Out(sink)), jobs).await?;
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
