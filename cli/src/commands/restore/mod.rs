//! `shoal restore`: a new store with the objects of a backup, of a chain of backups, or of an archive ([`archive`]).

mod archive;
mod lanes;

pub(crate) use archive::parse_time;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use serde_json::json;
use shoal_backup::{Damage, Event, ExpiresAt, Header, ObjectHead};
use shoal_buffer::Buffer;
use shoal_engine::{Error, Expiry, ObjectKey, PutOptions, RejectRules, Store, ValueWriter};
use shoal_transfer::text::{counted, show_count, show_key};
use tokio::task::JoinSet;

use crate::arguments::size::Size;
use crate::arguments::target::{DEFAULT_CACHE, bucket};
use crate::backup::buckets::RestoredBuckets;
use crate::backup::chain::{Link, check_last, check_link};
use crate::backup::progress::{self, Sofar};
use crate::backup::source::Source;
use crate::commands::backup::{damage_json, words};
use crate::failure::{Reported, Usage};
use crate::memory::limit::default_cache;
use crate::output::{Output, bytes_of, show_time, warn};
use crate::process::signals::stop_in_order;
use crate::store::file::{Access, NewStore, StoreOptions};

/// Versions of the new store start this far above those of the backup: no client's condition on a version that the old store
/// assigned after the backup holds by chance.
const VERSIONS_BETWEEN: u64 = 1 << 40;
/// Objects that are stored, or deleted, at the same time.
const WRITES_AT_ONCE: usize = 128;
/// Between two attempts to write to a store that is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

const EXAMPLES: &str = "Examples:
  shoal restore --data new.data /backup/monday.shoal
  shoal restore --data new.data /backup/monday.shoal --bucket photos --prefix 2024/
  shoal restore --data new.data monday.shoal tuesday.shoal wednesday.shoal
                                    a full backup and its increments; without the last one: the store as of tuesday
  zstdcat shoal.zst | shoal restore --data new.data -
  shoal restore --archive s3://eu-shoal/photos --data new.data
                                    the newest moment of an archive
  shoal restore --archive s3://eu-shoal/photos --at 2026-11-28T14:02:59Z --data then.data

Until the file is complete, its name is NEW.unfinished. Objects get new versions, which start 2^40 after those
of the last backup named, or after the newest one of the archive. Expired objects are left out.
From an archive a store keeps the results of request ids, so a write that a client repeats counts once. It is a new
store: give it a new prefix if it is archived, too.

Exit codes: 0 everything was restored, 1 it failed, or the backup or archive is damaged, or it was incomplete from the
start, or the archive does not have the moment, 2 wrong usage.";

#[derive(Args)]
#[command(after_help = EXAMPLES, disable_version_flag = true)]
pub(crate) struct Arguments {
    /// The full backup, then increments, each from the one before; one of them may be - for standard input.
    #[arg(required_unless_present = "archive", conflicts_with = "archive", value_name = "BACKUP")]
    backups: Vec<PathBuf>,
    /// An archive instead of backups: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER.
    #[arg(long, value_name = "URL")]
    archive: Option<String>,
    /// The state of the archive at this time in UTC, such as 2026-11-28T14:02:59Z [default: the newest].
    #[arg(long, value_name = "TIME", requires = "archive", conflicts_with = "version", value_parser = archive::parse_time)]
    at: Option<u64>,
    /// The state of the archive with all writes up to this version, and none after it.
    #[arg(long, value_name = "N", requires = "archive")]
    version: Option<u64>,
    /// The new data file, which must not exist, or a blank block device.
    #[arg(long, value_name = "NEW")]
    data: PathBuf,
    /// Only objects of this bucket.
    #[arg(long, short, value_name = "B", value_parser = bucket, conflicts_with = "archive")]
    bucket: Option<String>,
    /// Only keys that start with this, of all buckets or of --bucket.
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true, conflicts_with = "archive")]
    prefix: OsString,
    /// The maximum size of the store [default: as of `shoal format`, and at least the size that the backup needs].
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Also restore the intact parts of a damaged backup, before and after the damage. If an increment is damaged, an object
    /// may have the state of the backup before, or reappear although it was deleted.
    #[arg(long, conflicts_with = "archive")]
    past_damage: bool,
    /// Print one JSON object, and no progress.
    #[arg(long)]
    json: bool,
    /// Memory for cached pages [default: 256M, or an eighth of the memory of the machine or of the program's control group if
    /// that is less].
    #[arg(long, value_name = "SIZE")]
    cache: Option<Size>,
}

/// A backup of the chain that is restored.
struct Opened {
    link: Link,
    source: Source,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if let Some(url) = &arguments.archive {
        return archive::run(&arguments, url).await;
    }
    if arguments.at.is_some() || arguments.version.is_some() {
        // A backup conflicts with --archive, so clap does not require it.
        let why = "--at and --version are about an archive: name it with --archive, and no backups";
        return Err(Usage(why.into()).into());
    }
    let sofar = Arc::new(Sofar::default());
    let stopped = sofar.clone();
    stop_in_order(move || stopped.stop())?;
    let mut damage = Vec::new();
    let (links, last) = open_links(&arguments, &mut damage)?;
    let value_bytes = links.iter().map(|opened| opened.link.header.value_bytes).max().unwrap_or(0);
    sofar.expect(if links.len() == 1 { value_bytes } else { 0 });
    let version = last.version.0.checked_add(VERSIONS_BETWEEN);
    let version = version.ok_or_else(|| anyhow!("the backup's version {} is too large", last.version))?;
    let options = StoreOptions {
        access: Access::Create,
        size: arguments.size,
        cache: arguments.cache.unwrap_or_else(|| default_cache(DEFAULT_CACHE)),
        ..StoreOptions::default()
    };
    let new = NewStore::create(&arguments.data, &options, version, value_bytes).await?;
    let shown = progress::start("restore", &sofar, arguments.json);
    let mut restore = Restore::new(&new.store, &arguments, damage);
    let worked = restore.chain(links, &sofar).await;
    drop(shown);
    let found = restore.found;
    if let Err(error) = worked {
        new.discard().await;
        return Err(error.context(format!("nothing was restored into {}", arguments.data.display())));
    }
    new.finish().await?;
    found.tell(&arguments, &last, version)?;
    if found.damage.is_empty() && found.losses == 0 { Ok(()) } else { Err(Reported.into()) }
}

/// Opens the backups and checks that each follows on the one before; also returns the last one's header. Nothing is written
/// yet.
fn open_links(arguments: &Arguments, damage: &mut Vec<Damage>) -> anyhow::Result<(Vec<Opened>, Header)> {
    if arguments.backups.iter().filter(|path| *path == Path::new("-")).count() > 1 {
        return Err(Usage("standard input is one backup: name files for the others".into()).into());
    }
    let mut links: Vec<Opened> = Vec::new();
    for path in &arguments.backups {
        let mut source = Source::open(path)?;
        let header = find_header(&mut source, path, arguments.past_damage, damage)?;
        let link = Link { path: path.clone(), header, number: source.number() };
        check_link(links.last().map(|opened| &opened.link), &link)?;
        links.push(Opened { link, source });
    }
    let last = links.last().map(|opened| &opened.link);
    let last = last.ok_or_else(|| Usage("name a backup".into()))?;
    check_last(last)?;
    let last = last.header.clone();
    Ok((links, last))
}

fn find_header(
    source: &mut Source,
    path: &Path,
    past_damage: bool,
    damage: &mut Vec<Damage>,
) -> anyhow::Result<Header> {
    let name = path.display();
    while let Some(next) = source.next()? {
        match next {
            Ok(Event::Header(header)) => return Ok(header),
            Ok(Event::Skipped(_)) => {}
            Ok(_) => bail!("{name}: its header is missing or damaged, so nothing can be restored"),
            Err(found) => see(found, path, past_damage, damage)?,
        }
    }
    bail!("{name} is no backup, or its header is damaged")
}

/// # Errors
/// The damage, unless the user wants the data after it.
fn see(found: Damage, path: &Path, past_damage: bool, damage: &mut Vec<Damage>) -> anyhow::Result<()> {
    let name = path.display();
    if !past_damage {
        bail!("the backup {name} is {found}; --past-damage restores the whole objects in it");
    }
    warn(&format!("shoal: {name}: {found}"));
    damage.push(found);
    Ok(())
}

/// The outcome of a restore.
#[derive(Default)]
struct Found {
    damage: Vec<Damage>,
    /// Backups of the chain.
    links: usize,
    /// Objects in the new store, and the bytes of their values.
    objects: u64,
    value_bytes: u64,
    expired: u64,
    /// Objects that the damage cut.
    cut: u64,
    /// Things that the store could not read for the backup.
    losses: u64,
}

impl Found {
    fn tell(&self, arguments: &Arguments, last: &Header, first_version: u64) -> anyhow::Result<()> {
        let mut output = Output::new();
        if arguments.json {
            output.json(&json!({
                "data": arguments.data.to_string_lossy(),
                "version": last.version.0,
                "taken": show_time(last.taken_ns),
                "first_version": first_version,
                "backups": self.links,
                "objects": self.objects,
                "value_bytes": self.value_bytes,
                "expired": self.expired,
                "missing": self.losses,
                "cut": self.cut,
                "damage": damage_json(&self.damage),
            }))?;
        } else {
            output.line(&self.line(arguments, last))?;
        }
        output.finish()
    }

    fn line(&self, arguments: &Arguments, last: &Header) -> String {
        let mut line = format!(
            "{}: {} with {} of values, as of version {} of {}",
            arguments.data.display(),
            counted(self.objects, "object"),
            Size(self.value_bytes),
            last.version,
            show_time(last.taken_ns)
        );
        if self.expired > 0 {
            line.push_str(&format!("; {} expired meanwhile", show_count(self.expired)));
        }
        if self.losses > 0 {
            line.push_str(&format!(
                "; missing in the store when the backup was made: {}",
                counted(self.losses, "thing")
            ));
        }
        match (self.damage.is_empty(), self.links) {
            (true, _) => {}
            (false, 1) => line.push_str("; the backup is damaged, so objects are missing"),
            (false, _) => line.push_str(
                "; a backup of the chain is damaged, so objects are missing, or are those of the backup before, deleted ones among them",
            ),
        }
        line
    }
}

/// A restore on its way.
struct Restore<'a> {
    store: &'a Store,
    arguments: &'a Arguments,
    prefix: &'a [u8],
    found: Found,
    writes: JoinSet<anyhow::Result<()>>,
    /// The object in pieces; none: it is left out.
    long: Option<(ObjectKey, ValueWriter)>,
    /// An increment is being restored: the store may have older copies of its objects.
    is_increment: bool,
    buckets: RestoredBuckets,
}

impl<'a> Restore<'a> {
    fn new(store: &'a Store, arguments: &'a Arguments, damage: Vec<Damage>) -> Self {
        let prefix = bytes_of(&arguments.prefix);
        let found = Found { damage, ..Found::default() };
        let (writes, buckets) = (JoinSet::new(), RestoredBuckets::default());
        Self { store, arguments, prefix, found, writes, long: None, is_increment: false, buckets }
    }

    /// Restores the backups one after the other, and counts the objects that result.
    async fn chain(&mut self, links: Vec<Opened>, sofar: &Sofar) -> anyhow::Result<()> {
        let mut before = ((0, 0), 0);
        for mut opened in links {
            self.is_increment = self.found.links > 0;
            let wrong = (self.found.damage.len(), self.found.losses);
            self.all(&mut opened, before, sofar).await?;
            let has_everything = wrong == (self.found.damage.len(), self.found.losses);
            self.buckets.end_backup(self.store, has_everything).await?;
            before = sum(before, opened.source.counts());
            self.found.links += 1;
        }
        // A snapshot applies everything: the counts are exact then.
        drop(self.store.snapshot().await.context("the restored objects cannot be counted")?);
        let stat = self.store.stat();
        self.found.objects = stat.objects.saturating_sub(self.buckets.count());
        self.found.value_bytes = stat.value_bytes_with_log();
        Ok(())
    }

    async fn all(&mut self, opened: &mut Opened, before: Counts, sofar: &Sofar) -> anyhow::Result<()> {
        while let Some(next) = opened.source.next()? {
            sofar.go_on()?;
            match next {
                Ok(event) => self.take(event).await?,
                Err(found) => {
                    see(found, &opened.link.path, self.arguments.past_damage, &mut self.found.damage)?;
                    self.cut();
                }
            }
            let (counts, bytes) = sum(before, opened.source.counts());
            sofar.set(counts, bytes);
        }
        // The next backup may have the same keys.
        while let Some(done) = self.writes.join_next().await {
            done.context("a write of the restore broke off")??;
        }
        Ok(())
    }

    async fn take(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Objects(objects) => {
                for object in objects {
                    let key = object.head.key.clone();
                    match self.wanted(&object.head) {
                        Wanted::No => {}
                        Wanted::Expired => self.delete(key).await?,
                        Wanted::Put(options) => {
                            let store = self.store.clone();
                            self.write(async move { put(&store, &key, &object.value, *options).await })
                                .await?;
                        }
                    }
                }
            }
            Event::Begin(head) => {
                self.long = None;
                match self.wanted(&head) {
                    Wanted::No => {}
                    Wanted::Expired => self.delete(head.key).await?,
                    Wanted::Put(options) => {
                        let stream = self.store.put_stream(&head.key, *options);
                        self.long = Some((head.key.clone(), stream.with_context(|| cannot(&head.key))?));
                    }
                }
            }
            Event::Piece { bytes, is_last } => {
                let Some((key, stream)) = &mut self.long else { return Ok(()) };
                stream.write(&bytes).await.with_context(|| cannot(key))?;
                if is_last && let Some((key, stream)) = self.long.take() {
                    stream.finish().await.with_context(|| cannot(&key))?;
                }
            }
            Event::Deleted(keys) => {
                for key in keys {
                    if self.is_of_part(&key) {
                        self.delete(key).await?;
                    }
                }
            }
            Event::Bucket(bucket) => {
                if self.arguments.bucket.as_ref().is_none_or(|wanted| *wanted == bucket.name) {
                    self.buckets.put(self.store, bucket).await?;
                }
            }
            Event::Loss(loss) => {
                self.long = None;
                self.found.losses += 1;
                warn(&format!("shoal: warning: {}{}", words(&loss), self.older_copy()));
            }
            Event::Skipped(_) => self.cut(),
            Event::Header(_) | Event::Index(_) | Event::End(_) => {}
        }
        Ok(())
    }

    /// Starts a write once fewer than [`WRITES_AT_ONCE`] run.
    async fn write(
        &mut self,
        write: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) -> anyhow::Result<()> {
        if self.writes.len() >= WRITES_AT_ONCE
            && let Some(done) = self.writes.join_next().await
        {
            done.context("a write of the restore broke off")??;
        }
        self.writes.spawn(write);
        Ok(())
    }

    /// Deletes the copy of an object that a backup before had, if any.
    async fn delete(&mut self, key: ObjectKey) -> anyhow::Result<()> {
        if !self.is_increment {
            return Ok(());
        }
        let store = self.store.clone();
        self.write(async move {
            loop {
                match store.delete(&key, RejectRules::default()).await {
                    Ok(_) => return Ok(()),
                    Err(Error::Busy(_)) => tokio::time::sleep(BUSY_PAUSE).await,
                    Err(error) => {
                        return Err(error).with_context(|| {
                            format!("cannot delete {:?} in bucket {:?}", show_key(key.key()), key.bucket())
                        });
                    }
                }
            }
        })
        .await
    }

    /// The object in pieces stays without its end.
    fn cut(&mut self) {
        if let Some((key, _)) = self.long.take() {
            self.found.cut += 1;
            warn(&format!(
                "shoal: {:?} in bucket {:?} is not whole in the backup, and is left out{}",
                show_key(key.key()),
                key.bucket(),
                self.older_copy()
            ));
        }
    }

    /// The fate of an object that an increment lacks, in words.
    fn older_copy(&self) -> &'static str {
        if self.is_increment { "; the copy of an earlier backup, if any, stays" } else { "" }
    }

    /// Returns true if the object is one to restore.
    fn is_of_part(&self, key: &ObjectKey) -> bool {
        let is_of_bucket = self.arguments.bucket.as_deref().is_none_or(|bucket| bucket == key.bucket());
        is_of_bucket && key.key().starts_with(self.prefix)
    }

    fn wanted(&mut self, head: &ObjectHead) -> Wanted {
        if !self.is_of_part(&head.key) {
            return Wanted::No;
        }
        let expiry = match head.expiry {
            None => Expiry::Never,
            Some(ExpiresAt { at_ns, is_relative }) => {
                let now_ns =
                    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
                if at_ns <= now_ns {
                    self.found.expired += 1;
                    return Wanted::Expired;
                }
                if is_relative {
                    Expiry::After(Duration::from_nanos(at_ns - now_ns))
                } else {
                    Expiry::At(at_ns)
                }
            }
        };
        let metadata = head.metadata.clone();
        let options =
            PutOptions { metadata, modified_ns: Some(head.modified_ns), expiry, ..PutOptions::default() };
        Wanted::Put(Box::new(options))
    }
}

/// The fate of an object of a backup.
enum Wanted {
    Put(Box<PutOptions>),
    /// Its time is over: an older copy of it is removed, too.
    Expired,
    /// It is of another part of the store.
    No,
}

/// Whole objects with the bytes of their values, and bytes of backups.
type Counts = ((u64, u64), u64);

fn sum(((objects, values), bytes): Counts, ((more, more_values), more_bytes): Counts) -> Counts {
    ((objects + more, values + more_values), bytes + more_bytes)
}

fn cannot(key: &ObjectKey) -> String {
    format!("cannot store {:?} in bucket {:?}", show_key(key.key()), key.bucket())
}

async fn put(store: &Store, key: &ObjectKey, value: &Bytes, options: PutOptions) -> anyhow::Result<()> {
    loop {
        match store.put(key, Buffer::from(value.clone()), options.clone()).await {
            Ok(_) => return Ok(()),
            Err(Error::Busy(_)) => tokio::time::sleep(BUSY_PAUSE).await,
            Err(error @ Error::Full { .. }) => {
                return Err(anyhow!("{error}")).context("the new store is too small: give a larger --size");
            }
            Err(error) => return Err(error).with_context(|| cannot(key)),
        }
    }
}
