//! `shoal cp`: objects get copies under other keys.

use std::ffi::OsString;

use bytes::Bytes;
use clap::Args;
use serde_json::{Map, json};
use shoal_transfer::copying::Location;
use shoal_transfer::objects::Objects;
use shoal_transfer::text::{show_count, show_key};

use crate::arguments::conditions::Conditions;
use crate::arguments::size::Size;
use crate::arguments::target::{Target, bucket};
use crate::failure::Usage;
use crate::output::{Output, bytes_of, damage, set_bytes};
use crate::store::copying::{Prefixes, copy};
use crate::store::file::Access;
use crate::store::whole_bucket::refuse_empty_prefix;

const EXAMPLES: &str = "Examples:
  shoal cp notes/today notes/archive/2026-01-15
  shoal cp config config.bak --if-absent
  shoal cp report report --to-bucket public
  shoal cp -r photos/ backup/photos/           all keys with the prefix photos/
  shoal cp -r photos/ backup/ --dry-run        only prints the keys
  shoal cp -r \"\" \"\" --to-bucket copy --all     the whole bucket

The copy has the content type, the metadata, the modification time and the rest of the time to live of the source. It is a copy of
one version of the source, even if another program writes to it meanwhile. An existing object is replaced, unless a condition rejects it.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The key to copy, or with -r the prefix of the keys.
    source: OsString,
    /// The key of the copy, or with -r the prefix that replaces SOURCE.
    destination: OsString,
    /// Copy all objects whose keys start with SOURCE.
    #[arg(short, long, conflicts_with_all = ["if_exists", "if_version"])]
    recursive: bool,
    #[command(flatten)]
    shared: CopyArguments,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    target: Target,
}

/// The options of a copy that a move has, too.
#[derive(Args)]
pub(crate) struct CopyArguments {
    /// The bucket of the destination [default: that of the source].
    #[arg(long, value_name = "B", value_parser = bucket)]
    pub(crate) to_bucket: Option<String>,
    /// With -r: change nothing, and print the keys.
    #[arg(long, requires = "recursive")]
    pub(crate) dry_run: bool,
    /// Print a JSON object at the end.
    #[arg(long)]
    pub(crate) json: bool,
    /// With -r: an empty SOURCE means the whole bucket. Without this it is refused.
    #[arg(long, requires = "recursive")]
    pub(crate) all: bool,
}

impl CopyArguments {
    /// The places of source and destination, which must not be the same.
    pub(crate) fn places(
        &self,
        target: &Target,
        source: &OsString,
        destination: &OsString,
    ) -> Result<(Location, Location), Usage> {
        let place = |bucket: &str, key: &OsString| Location {
            bucket: bucket.to_owned(),
            key: Bytes::copy_from_slice(bytes_of(key)),
        };
        let from = place(target.bucket(), source);
        let to = place(self.to_bucket.as_deref().unwrap_or(target.bucket()), destination);
        if from == to {
            return Err(Usage(format!("source and destination are the same: {:?}", show_key(&from.key))));
        }
        Ok((from, to))
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { source, destination, recursive, shared, conditions, target } = arguments;
    let (from, to) = shared.places(&target, &source, &destination)?;
    let rules = conditions.rules();
    let work = async |objects: &Objects| match recursive {
        true => all(objects, &Prefixes { from, to, rules, moves: false }, &shared).await,
        false => {
            let copied = copy(objects, &from, &to, rules).await?;
            say_one(&shared, "copied", &from, &to, copied.version.0, copied.bytes)
        }
    };
    target.store.with(if shared.dry_run { Access::Read } else { Access::Write }, work).await
}

/// Copies or moves by prefix, and reports the count.
pub(crate) async fn all(
    objects: &Objects,
    prefixes: &Prefixes,
    shared: &CopyArguments,
) -> anyhow::Result<()> {
    if prefixes.from.key.is_empty() && !shared.all && !shared.dry_run {
        let verb = if prefixes.moves { "moved" } else { "copied" };
        return Err(refuse_empty_prefix(objects, &prefixes.from.bucket, verb).await);
    }
    let mut output = Output::new();
    let show = |from: &Bytes, to: &Bytes| match shared.dry_run && !shared.json {
        true => output.line(&format!("{:?} -> {:?}", show_key(from), show_key(to))),
        false => Ok(()),
    };
    let totals = prefixes.run(objects, shared.dry_run, show).await?;
    let verb = if prefixes.moves { "moved" } else { "copied" };
    if shared.json {
        output.json(&json!({
            verb: totals.objects,
            "bytes": totals.bytes,
            "failed": totals.failures.count(),
            "dry_run": shared.dry_run,
        }))?;
    } else {
        let would = if shared.dry_run { "would be " } else { "" };
        output.line(&format!("{} {would}{verb}, {}", show_count(totals.objects), Size(totals.bytes)))?;
    }
    output.finish()?;
    damage::conclude(&totals.damage, &format!("could not be listed, and were not {verb}"))?;
    totals.failures.conclude()
}

/// One object was copied or moved: programs that ask hear about it.
pub(crate) fn say_one(
    shared: &CopyArguments,
    verb: &str,
    from: &Location,
    to: &Location,
    version: u64,
    bytes: u64,
) -> anyhow::Result<()> {
    if !shared.json {
        return Ok(());
    }
    let mut object = Map::new();
    set_bytes(&mut object, "from", &from.key);
    set_bytes(&mut object, "to", &to.key);
    object.insert("bucket".into(), to.bucket.clone().into());
    object.insert("version".into(), version.into());
    object.insert("bytes".into(), bytes.into());
    object.insert(verb.into(), 1.into());
    let mut output = Output::new();
    output.json(&object.into())?;
    output.finish()
}
