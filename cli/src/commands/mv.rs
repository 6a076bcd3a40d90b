//! `shoal mv`: objects get other keys.

use std::ffi::OsString;

use clap::Args;
use shoal_client::RejectRules;
use shoal_transfer::objects::Objects;

use crate::arguments::target::Target;
use crate::commands::cp::{CopyArguments, all, say_one};
use crate::store::copying::{Prefixes, rename};
use crate::store::file::Access;

const EXAMPLES: &str = "Examples:
  shoal mv notes/today notes/yesterday         fails if notes/yesterday exists
  shoal mv notes/today notes/latest --overwrite
  shoal mv report report --to-bucket archive
  shoal mv -r photos/2025/ archive/2025/       all keys with the prefix photos/2025/
  shoal mv -r photos/2025/ archive/ --dry-run  only prints the keys

A move copies the object and then deletes exactly the version that it copied: a value written to the old key meanwhile is moved as well,
and never lost. An interrupted move leaves the object under both keys. The copy has a new version.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The key to move, or with -r the prefix of the keys.
    source: OsString,
    /// The new key, or with -r the prefix that replaces SOURCE.
    destination: OsString,
    /// Move all objects whose keys start with SOURCE.
    #[arg(short, long)]
    recursive: bool,
    /// Replace existing objects. Without this option they stay, and the move fails with exit code 4.
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    shared: CopyArguments,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { source, destination, recursive, overwrite, shared, target } = arguments;
    let (from, to) = shared.places(&target, &source, &destination)?;
    let rules = RejectRules { if_exists: !overwrite, ..RejectRules::default() };
    let work = async |objects: &Objects| match recursive {
        true => all(objects, &Prefixes { from, to, rules, moves: true }, &shared).await,
        false => {
            let moved = rename(objects, &from, &to, rules).await?;
            say_one(&shared, "moved", &from, &to, moved.version.0, moved.bytes)
        }
    };
    target.store.with(if shared.dry_run { Access::Read } else { Access::Write }, work).await
}
