//! `shoal import`: a folder with everything in it goes into the store.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use tokio::runtime::Handle;

use crate::commands::stop_on_signal;
use crate::output::bytes_of;
use crate::store_file::Access;
use crate::target::Target;
use crate::transfer::progress;
use crate::transfer::report::{IMPORT, Report};
use crate::transfer::work::JOBS_MAX;
use crate::tree::load::Load;
use crate::tree::walk::{Visit, Walk};

const EXAMPLES: &str = "\
Examples:
  shoal import ./photos                       photos/2024/a.jpg becomes the key 2024/a.jpg
  shoal import ./photos --prefix photos/      ... the key photos/2024/a.jpg
  shoal import ./photos --prefix photos/      again: stores only what is new or changed
  shoal export photos/ ./restored             gets it back

The key of a file is the prefix and the file's path below DIR, byte by byte. Modes, modification times (to the nanosecond),
symlinks (not followed) and folders are kept; owners are not. What the store has already with the same size, type, mode and
time is skipped, so an import that was interrupted is continued by running it again. Hard links are stored as separate
files. Sockets, fifos and devices are skipped. A file that changes while it is read is reported and not stored.

Exit code: 0 when everything was stored (special files do not count), 1 when something failed.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The folder.
    dir: PathBuf,
    /// Put this before every key; end it with / to make it a folder's name.
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    prefix: OsString,
    /// Batches of files that are read and sent at the same time.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=i64::from(JOBS_MAX)))]
    jobs: u16,
    /// Print one JSON object at the end, and no progress.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let prefix = bytes_of(&arguments.prefix).to_vec();
    let begin = || {
        Walk::new(&arguments.dir, &prefix).with_context(|| format!("cannot read {}", arguments.dir.display()))
    };
    let (walk, counting_walk) = (begin()?, begin()?);
    let objects = arguments.target.store.open(Access::Create).await?;
    let report = Arc::new(Report::new(IMPORT, progress::bar(arguments.json)));
    stop_on_signal(&report)?;

    let load = Load {
        objects: objects.clone(),
        handle: Handle::current(),
        bucket: arguments.target.bucket,
        report: report.clone(),
    };
    if report.bar().is_some() {
        let report = report.clone();
        std::thread::spawn(move || count(counting_walk, &report));
    }
    let progress = progress::start(&report, arguments.json);
    let worked = tokio::task::spawn_blocking(move || load.run(walk, &prefix, arguments.jobs)).await;
    drop(progress);
    let closed = objects.close().await;
    let concluded = report.conclude(arguments.json);
    worked.context("the import broke off")?;
    closed?;
    concluded
}

/// How much there will be: for the time that is left.
fn count(walk: Walk, report: &Report) {
    let (mut items, mut bytes) = (0, 0);
    for visit in walk {
        if report.is_stopped() {
            return;
        }
        items += 1;
        if let Visit::Found(found) = visit {
            bytes += found.bytes;
        }
    }
    report.set_total(items, bytes);
}
