//! `shoal archive`: the archive of a store, straight from its bucket. No command needs a server.

mod bases;
mod cost;
mod pin;
mod status;
mod sweep;
mod verify;

use anyhow::Context;
use clap::{Args, Subcommand};
use shoal_archive::restore::ArchiveReader;

use crate::arguments::archive::ArchiveArguments;

const EXAMPLES: &str = "Examples:
  shoal archive status --archive s3://eu-shoal/photos
                                    the owner, the moments that can be restored, about how long it takes
  shoal archive verify --archive s3://eu-shoal/photos
                                    the head of each segment; --full: all bytes
  shoal archive pin before-upgrade --archive s3://eu-shoal/photos
                                    keeps the newest base until `unpin`
  shoal archive sweep --dry-run --archive s3://eu-shoal/photos
                                    the objects that no moment needs

Credentials of the bucket come from the environment, the files or the machine, as the provider's tools find them.
A store is restored by `shoal restore --archive`.

Exit codes: 0 done, 1 failed, or `verify` found a problem, 2 wrong usage, 3 there is no such base or pin.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the owner, the moments that can be restored, bases and gaps.
    Status(Shown),
    /// Verify each segment and each base, and name damaged and missing objects.
    Verify(verify::Arguments),
    /// List the bases.
    Bases(Shown),
    /// Keep a base for longer than the retention.
    Pin(pin::PinArguments),
    /// Remove a pin.
    Unpin(pin::UnpinArguments),
    /// Delete the objects that the archive's record does not name.
    Sweep(sweep::Arguments),
    /// Count the archive's objects, and estimate the price of a month.
    Cost(cost::Arguments),
}

/// A command that shows something.
#[derive(Args)]
struct Shown {
    #[command(flatten)]
    archive: ArchiveArguments,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::Status(arguments) => status::run(arguments).await,
        Command::Verify(arguments) => verify::run(arguments).await,
        Command::Bases(arguments) => bases::run(arguments).await,
        Command::Pin(arguments) => pin::pin(arguments).await,
        Command::Unpin(arguments) => pin::unpin(arguments).await,
        Command::Sweep(arguments) => sweep::run(arguments).await,
        Command::Cost(arguments) => cost::run(arguments).await,
    }
}

/// The reader of an archive.
async fn read(archive: &ArchiveArguments) -> anyhow::Result<ArchiveReader> {
    let (bucket, keeper) = archive.open()?;
    let reader = ArchiveReader::open(bucket, &keeper).await;
    reader.with_context(|| subject(archive))
}

/// The object of a failure.
fn subject(archive: &ArchiveArguments) -> String {
    format!("the archive {}", archive.archive)
}

/// An id as the names of objects have it.
fn hex(id: u64) -> String {
    format!("{id:016x}")
}
