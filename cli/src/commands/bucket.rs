//! `shoal bucket`: the buckets of a store, one of them, and its end.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use shoal_client::ListRequest;
use shoal_transfer::objects::Objects;
use shoal_transfer::report::DamagedRanges;
use shoal_transfer::text::show_count;

use crate::arguments::size::Size;
use crate::arguments::target::{StoreArguments, bucket};
use crate::commands::rm::{How, remove_bucket};
use crate::failure::{NotFound, Reported};
use crate::output::damage;
use crate::output::{Output, show_time, warn};
use crate::store::file::Access;

const EXAMPLES: &str = "Examples:
  shoal bucket ls                    the names of the buckets
  shoal bucket ls --long             with objects and bytes; reads all keys
  shoal bucket stat photos           one of them
  shoal bucket rm photos -r          deletes everything in it; asks first on a terminal (not with --yes)

A bucket exists while it holds objects: the first object creates it, and deleting the last one removes it.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the buckets.
    Ls {
        /// Also show objects and bytes; reads all keys.
        #[arg(short, long)]
        long: bool,
        /// Print one JSON object a line.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Show the objects and bytes of a bucket; reads all its keys.
    Stat {
        /// The bucket.
        #[arg(value_name = "BUCKET", value_parser = bucket)]
        name: String,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Delete a bucket and everything in it.
    Rm {
        /// The bucket.
        #[arg(value_name = "BUCKET", value_parser = bucket)]
        name: String,
        /// Required, because the objects are deleted: a bucket without objects does not exist.
        #[arg(short, long)]
        recursive: bool,
        #[command(flatten)]
        how: How,
        #[command(flatten)]
        store: StoreArguments,
    },
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::Ls { long, json, store } => {
            store.with(Access::Read, async |objects| ls(objects, long, json).await).await
        }
        Command::Stat { name, json, store } => {
            store.with(Access::Read, async |objects| stat(objects, &name, json).await).await
        }
        Command::Rm { name, recursive, how, store } => {
            let remove = async |objects: &Objects| rm(objects, &name, recursive, how).await;
            store.with(how.access(), remove).await
        }
    }
}

async fn ls(objects: &Objects, long: bool, json: bool) -> anyhow::Result<()> {
    let (mut output, mut start_after, mut damaged) = (Output::new(), String::new(), 0);
    loop {
        let page = objects.list_buckets(&start_after).await?;
        damaged += u64::from(page.damaged);
        for name in &page.names {
            let content = if long { Some(Content::of(objects, name).await?) } else { None };
            if json {
                let mut object = Map::new();
                object.insert("bucket".into(), name.clone().into());
                content.iter().for_each(|content| content.add_to(&mut object));
                output.json(&object.into())?;
            } else if let Some(content) = &content {
                let (objects, bytes) = (show_count(content.objects), Size(content.bytes).to_string());
                output.line(&format!("{objects:>14}  {bytes:>12}  {name}"))?;
            } else {
                output.line(name)?;
            }
        }
        match page.names.last().filter(|_| page.is_cut) {
            Some(last) => start_after.clone_from(last),
            None => break,
        }
    }
    output.finish()?;
    if damaged > 0 {
        warn(&format!(
            "shoal: warning: {} damaged ranges of keys were passed: a bucket with objects in nothing else is missing here; \
             `shoal check` names them",
            show_count(damaged)
        ));
        return Err(Reported.into());
    }
    Ok(())
}

async fn stat(objects: &Objects, name: &str, json: bool) -> anyhow::Result<()> {
    let content = Content::of(objects, name).await?;
    if content.objects == 0 {
        damage::conclude(&content.damage, "are not counted here")?;
        return Err(no_such_bucket(name));
    }
    let mut output = Output::new();
    if json {
        let mut object = Map::new();
        object.insert("bucket".into(), name.into());
        content.add_to(&mut object);
        output.json(&object.into())?;
    } else {
        output.line(&format!("bucket        {name}"))?;
        output.line(&format!("objects       {}", show_count(content.objects)))?;
        output.line(&format!("bytes         {} ({})", content.bytes, Size(content.bytes)))?;
        output.line(&format!("largest       {}", Size(content.largest)))?;
        output.line(&format!("with deadline {}", show_count(content.with_deadline)))?;
        output.line(&format!(
            "modified      {} to {}",
            show_time(content.oldest_ns),
            show_time(content.newest_ns)
        ))?;
    }
    output.finish()?;
    damage::conclude(&content.damage, "are not counted here")
}

async fn rm(objects: &Objects, name: &str, recursive: bool, how: How) -> anyhow::Result<()> {
    let request = ListRequest { bucket: name.to_owned(), limit: 1, ..ListRequest::default() };
    let mut pages = objects.pages_of(request);
    // A page may have skipped only deleted objects.
    loop {
        let page = pages.next().await?.ok_or_else(|| no_such_bucket(name))?;
        if !page.entries.is_empty() || !page.damaged.is_empty() {
            break;
        }
    }
    if !recursive && !how.dry_run {
        anyhow::bail!("the bucket {name:?} holds objects; `shoal bucket rm {name} -r` deletes them");
    }
    remove_bucket(objects, name, how).await
}

fn no_such_bucket(name: &str) -> anyhow::Error {
    NotFound(format!("there is no bucket {name:?} with objects; `shoal bucket ls` lists the buckets")).into()
}

/// The objects of a bucket, counted.
#[derive(Default)]
struct Content {
    objects: u64,
    bytes: u64,
    largest: u64,
    with_deadline: u64,
    /// Modification times.
    oldest_ns: u64,
    newest_ns: u64,
    damage: DamagedRanges,
}

impl Content {
    async fn of(objects: &Objects, name: &str) -> anyhow::Result<Self> {
        let mut pages = objects.pages(name, b"");
        let mut content = Self { oldest_ns: u64::MAX, ..Self::default() };
        while let Some(page) = pages.next().await? {
            content.damage.add(page.damaged);
            for info in page.entries.into_iter().map(|entry| entry.info) {
                content.objects += 1;
                content.bytes = content.bytes.saturating_add(info.bytes);
                content.largest = content.largest.max(info.bytes);
                content.with_deadline += u64::from(info.ttl_ns.is_some());
                content.oldest_ns = content.oldest_ns.min(info.modified_ns);
                content.newest_ns = content.newest_ns.max(info.modified_ns);
            }
        }
        Ok(content)
    }

    fn add_to(&self, object: &mut Map<String, Value>) {
        let fields = json!({
            "objects": self.objects,
            "bytes": self.bytes,
            "largest": self.largest,
            "with_deadline": self.with_deadline,
            "oldest": show_time(self.oldest_ns),
            "newest": show_time(self.newest_ns),
            "damaged": damage::json(&self.damage),
        });
        object.extend(
            fields.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())),
        );
    }
}
