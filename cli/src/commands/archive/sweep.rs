//! `shoal archive sweep`.

use anyhow::Context;
use clap::Args;
use serde_json::json;
use shoal_archive::retain::{dead_objects, sweep};
use shoal_transfer::text::{counted, show_count};

use crate::arguments::archive::ArchiveArguments;
use crate::arguments::size::Size;
use crate::output::{Output, warn};

/// Deletions between two lines of progress.
const TELL_EVERY: u64 = 10_000;
/// Names that a dry run prints at most.
const NAMES_MAX: usize = 1_000_000;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    archive: ArchiveArguments,
    /// Delete nothing: print the names of the objects.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let (bucket, keeper) = arguments.archive.open()?;
    let subject = || super::subject(&arguments.archive);
    let mut output = Output::new();
    let report = if arguments.dry_run {
        let (dead, report) = dead_objects(&bucket, &keeper, NAMES_MAX).await.with_context(subject)?;
        if !arguments.json {
            for object in dead {
                output.line(&object.name)?;
            }
        }
        report
    } else {
        let mut progress = |report: &shoal_archive::retain::SweepReport| {
            if report.deleted.is_multiple_of(TELL_EVERY) {
                warn(&format!(
                    "sweep: {} of {} deleted",
                    show_count(report.deleted),
                    show_count(report.dead)
                ));
            }
        };
        sweep(&bucket, &keeper, &mut progress).await.with_context(subject)?
    };
    if arguments.json {
        output.json(&json!({
            "listed": report.listed, "dead": report.dead, "dead_bytes": report.dead_bytes,
            "deleted": report.deleted,
        }))?;
    } else {
        let dead = counted(report.dead, "dead object");
        let done = if arguments.dry_run { "would be deleted" } else { "deleted" };
        output.line(&format!(
            "{} listed; {dead} with {} {done}",
            counted(report.listed, "object"),
            Size(report.dead_bytes)
        ))?;
    }
    output.finish()
}
