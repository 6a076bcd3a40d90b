//! `shoal rm`: deletes objects.

use std::ffi::OsString;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use serde_json::json;
use shoal_client::{Error, RejectRules};
use shoal_transfer::objects::{Objects, is_lasting};
use shoal_transfer::report::DamagedRanges;
use shoal_transfer::text::{about, show_count};

use crate::arguments::conditions::Conditions;
use crate::arguments::size::Size;
use crate::arguments::target::Target;
use crate::failure::Failures;
use crate::output::damage;
use crate::output::{Output, bytes_of};
use crate::store::file::Access;
use crate::store::whole_bucket::{confirm_deletion, refuse_empty_prefix};

const EXAMPLES: &str = "Examples:
  shoal rm notes/today notes/yesterday
  shoal rm --prefix photos/              all keys with the prefix photos/
  shoal rm --prefix photos/ --dry-run    prints the keys, and deletes nothing
  shoal rm --all --bucket old            the whole bucket; asks first on a terminal
  shoal rm config --if-version 17        fails with exit code 4 if it has changed

An empty --prefix, for instance from an unset variable, is refused without --all.

Deleting a key that does not exist is no error, except with --if-exists. With --prefix, if a part of the index is damaged, everything
else is deleted, standard error names the ranges of keys that may be left, and the exit code is 1.";

const USAGE: &str =
    "shoal rm [OPTIONS] <KEYS>...\n       shoal rm [OPTIONS] --prefix <P>\n       shoal rm [OPTIONS] --all";

#[derive(Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub(crate) struct Arguments {
    /// The keys.
    #[arg(required_unless_present_any = ["prefix", "all"], conflicts_with_all = ["prefix", "all"])]
    keys: Vec<OsString>,
    /// Delete all keys that start with this. The empty prefix means the whole bucket, and needs --all.
    #[arg(long, value_name = "P", conflicts_with_all = ["if_absent", "if_exists", "if_version"])]
    prefix: Option<OsString>,
    /// Delete the whole bucket, if there is no --prefix or it is empty.
    #[arg(long, conflicts_with_all = ["if_absent", "if_exists", "if_version"])]
    all: bool,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    target: Target,
}

/// The options of a delete and of its reports.
#[derive(Args, Clone, Copy)]
pub(crate) struct How {
    /// Delete nothing; print the keys that would be deleted.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print a JSON object at the end.
    #[arg(long)]
    pub(crate) json: bool,
    /// Delete a whole bucket without asking, even on a terminal.
    #[arg(short, long)]
    pub(crate) yes: bool,
}

impl How {
    /// The access that the store is opened with.
    pub(crate) fn access(self) -> Access {
        if self.dry_run { Access::Read } else { Access::Write }
    }

    /// Reports the totals at the end.
    fn conclude(self, output: &mut Output, deleted: Deleted, failures: &Failures) -> anyhow::Result<()> {
        if self.json {
            return output.json(&json!({
                "deleted": deleted.objects,
                "bytes": deleted.bytes,
                "failed": failures.count(),
                "dry_run": self.dry_run,
            }));
        }
        let would = if self.dry_run { "would be " } else { "" };
        output.line(&format!("{} {would}deleted", show_count(deleted.objects)))
    }
}

/// The objects that were deleted, or would be.
#[derive(Clone, Copy, Default)]
struct Deleted {
    objects: u64,
    /// None: not known.
    bytes: Option<u64>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let how = arguments.how;
    let bucket = arguments.target.bucket();
    let remove = async |objects: &Objects| match arguments.prefix.as_deref().map(bytes_of) {
        Some(prefix) if !prefix.is_empty() => remove_prefix(objects, bucket, prefix, how).await,
        _ if arguments.all || (how.dry_run && arguments.prefix.is_some()) => {
            remove_bucket(objects, bucket, how).await
        }
        Some(_) => Err(refuse_empty_prefix(objects, bucket, "deleted").await),
        None => remove_keys(objects, &arguments).await,
    };
    arguments.target.store.with(how.access(), remove).await
}

async fn remove_keys(objects: &Objects, arguments: &Arguments) -> anyhow::Result<()> {
    let (bucket, how, rules) = (arguments.target.bucket(), arguments.how, arguments.conditions.rules());
    let keys: Vec<Bytes> = arguments.keys.iter().map(|key| Bytes::copy_from_slice(bytes_of(key))).collect();
    let (mut output, mut deleted, mut failures) = (Output::new(), Deleted::default(), Failures::default());
    let results = match how.dry_run {
        true => would_delete(objects, bucket, &keys, rules).await,
        false => {
            let results = objects.delete_many(bucket, keys.clone(), rules).await;
            // The store knows if the object existed only if it looked it up for a condition.
            results.into_iter().map(|result| result.map(|_| true)).collect()
        }
    };
    for (key, result) in keys.iter().zip(results) {
        match result.with_context(|| about("cannot delete", bucket, key)) {
            Ok(true) => {
                deleted.objects += 1;
                if how.dry_run && !how.json {
                    output.key_line(key)?;
                }
            }
            Ok(false) => {}
            Err(error) => failures.add(&error),
        }
    }
    if how.json || how.dry_run {
        how.conclude(&mut output, deleted, &failures)?;
    }
    output.finish()?;
    failures.conclude()
}

/// Returns for each of `keys` true if it would be deleted; `rules` reject as they would.
async fn would_delete(
    objects: &Objects,
    bucket: &str,
    keys: &[Bytes],
    rules: RejectRules,
) -> Vec<Result<bool, Error>> {
    let mut results = Vec::with_capacity(keys.len());
    for key in keys {
        results.push(objects.head(bucket, key).await.and_then(|info| {
            let current = info.map(|info| info.version);
            if rules.reject(current) {
                return Err(Error::ConditionFailed { rule: None, current });
            }
            Ok(current.is_some())
        }));
    }
    results
}

/// Deletes all objects of `bucket`, after a question if a person can answer it.
pub(crate) async fn remove_bucket(objects: &Objects, bucket: &str, how: How) -> anyhow::Result<()> {
    confirm_deletion(objects, bucket, how.yes || how.dry_run).await?;
    remove_prefix(objects, bucket, b"", how).await
}

/// Deletes all objects of `bucket` whose keys start with `prefix`.
async fn remove_prefix(objects: &Objects, bucket: &str, prefix: &[u8], how: How) -> anyhow::Result<()> {
    let (mut output, mut failures, mut damaged) =
        (Output::new(), Failures::default(), DamagedRanges::default());
    let (mut count, mut bytes) = (0, 0);
    let mut pages = objects.pages(bucket, prefix);
    let listing = || about("cannot list the keys with the prefix", bucket, prefix);
    while let Some(page) = pages.next().await.with_context(listing)? {
        damaged.add(page.damaged);
        let keys: Vec<Bytes> = page.entries.iter().map(|entry| entry.key.clone()).collect();
        let results = match how.dry_run {
            true => Vec::new(),
            false => objects.delete_many(bucket, keys, RejectRules::default()).await,
        };
        let mut results = results.into_iter();
        for entry in page.entries {
            if let Some(Err(error)) = results.next() {
                let lasting = is_lasting(&error);
                let error = anyhow::Error::new(error).context(about("cannot delete", bucket, &entry.key));
                if lasting {
                    return Err(error.context(format!("{} deleted, then", show_count(count))));
                }
                failures.add(&error);
                continue;
            }
            count += 1;
            bytes += entry.info.bytes;
            if how.dry_run && !how.json {
                output.key_line(&entry.key)?;
            }
        }
    }
    if how.dry_run && !how.json {
        output.line(&format!("{} would be deleted, {}", show_count(count), Size(bytes)))?;
    } else {
        how.conclude(&mut output, Deleted { objects: count, bytes: Some(bytes) }, &failures)?;
    }
    output.finish()?;
    damage::conclude(
        &damaged,
        "could not be listed, and were not deleted: delete those whose names you know",
    )?;
    failures.conclude()
}
