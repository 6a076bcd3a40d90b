//! `shoal rm`: deletes objects.

use std::ffi::OsString;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use shoal_client::{ListRequest, RejectRules};

use crate::commands::about;
use crate::conditions::Conditions;
use crate::damage::Damage;
use crate::failure::{Reported, one_line};
use crate::objects::{Objects, is_lasting};
use crate::output::{Output, bytes_of, show_count, warn};
use crate::store_file::Access;
use crate::target::Target;

const EXAMPLES: &str = "\
Examples:
  shoal rm notes/today notes/yesterday
  shoal rm --prefix photos/              everything that begins with photos/
  shoal rm config --if-version 17        fails where somebody changed it

To delete what does not exist is no failure; with --if-exists it is. With --prefix, where a part of the index is damaged, everything
else is deleted, standard error names the ranges of keys that may be left, and the exit code is 1.";

const USAGE: &str = "shoal rm [OPTIONS] <KEYS>...\n       shoal rm [OPTIONS] --prefix <P>";

#[derive(Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub(crate) struct Arguments {
    /// The keys.
    #[arg(required_unless_present = "prefix", conflicts_with = "prefix")]
    keys: Vec<OsString>,
    /// Delete all keys that begin with this; the empty prefix is the whole bucket.
    #[arg(long, value_name = "P", conflicts_with_all = ["if_absent", "if_exists", "if_version"])]
    prefix: Option<OsString>,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let remove = async |objects: &Objects| match &arguments.prefix {
        Some(prefix) => remove_prefix(objects, &arguments.target.bucket, bytes_of(prefix)).await,
        None => remove_keys(objects, &arguments).await,
    };
    arguments.target.store.with(Access::Write, remove).await
}

async fn remove_keys(objects: &Objects, arguments: &Arguments) -> anyhow::Result<()> {
    let keys: Vec<Bytes> = arguments.keys.iter().map(|key| Bytes::copy_from_slice(bytes_of(key))).collect();
    let bucket = &arguments.target.bucket;
    let results = objects.delete_many(bucket, keys.clone(), arguments.conditions.rules()).await;
    let mut failed: Vec<anyhow::Error> = Vec::new();
    for (key, result) in keys.iter().zip(results) {
        if let Err(error) = result.with_context(|| about("cannot delete", bucket, key)) {
            failed.push(error);
        }
    }
    match failed.len() {
        0 => Ok(()),
        1 => Err(failed.remove(0)),
        _ => {
            for error in &failed {
                warn(&format!("shoal: {}", one_line(error)));
            }
            Err(Reported.into())
        }
    }
}

async fn remove_prefix(objects: &Objects, bucket: &str, prefix: &[u8]) -> anyhow::Result<()> {
    let mut request = ListRequest {
        bucket: bucket.to_owned(),
        prefix: Bytes::copy_from_slice(prefix),
        ..ListRequest::default()
    };
    let (mut deleted, mut failed) = (0, 0);
    let mut damage = Damage::default();
    loop {
        let mut page = objects
            .list(&request)
            .await
            .with_context(|| about("cannot list what begins with", bucket, prefix))?;
        damage.add(std::mem::take(&mut page.damaged));
        let keys: Vec<Bytes> = page.entries.into_iter().map(|entry| entry.key).collect();
        for (key, result) in
            keys.iter().zip(objects.delete_many(bucket, keys.clone(), RejectRules::default()).await)
        {
            let Err(error) = result else {
                deleted += 1;
                continue;
            };
            let lasting = is_lasting(&error);
            let error = anyhow::Error::new(error).context(about("cannot delete", bucket, key));
            if lasting {
                return Err(error.context(format!("{} deleted, then", show_count(deleted))));
            }
            failed += 1;
            warn(&format!("shoal: {}", one_line(&error)));
        }
        match page.next {
            Some(next) => request.start_after = next,
            None => break,
        }
    }
    let mut output = Output::new();
    output.line(&format!("{} deleted", show_count(deleted)))?;
    output.finish()?;
    let whole =
        damage.conclude("could not be listed, and were not deleted: delete those whose names you know");
    if failed > 0 { Err(Reported.into()) } else { whole }
}
