//! `shoal restore`: a new store with the objects of a backup.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use serde_json::json;
use shoal_backup::{Damage, Event, ExpiresAt, Header, ObjectHead};
use shoal_buffer::Buffer;
use shoal_engine::{Error, Expiry, ObjectKey, PutOptions, PutStream, Store};
use tokio::task::JoinSet;

use crate::backup::progress::{self, Sofar};
use crate::backup::source::Source;
use crate::commands::backup::{damage_json, words};
use crate::failure::Reported;
use crate::output::{Output, bytes_of, show_count, show_key, show_time, warn};
use crate::signals::stop_in_order;
use crate::size::Size;
use crate::store_file::{Access, NewStore, StoreOptions};
use crate::target::bucket;

/// Versions of the new store begin so far behind those of the backup: no condition of a client on a version that the old store gave
/// out after the backup holds by chance.
const VERSIONS_BETWEEN: u64 = 1 << 40;
/// Objects that are stored at the same time.
const PUTS_AT_ONCE: usize = 128;
/// Between two attempts to write to a store that is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

const EXAMPLES: &str = "\
Examples:
  shoal restore --data new.data /backup/monday.shoal
  shoal restore --data new.data /backup/monday.shoal --bucket photos --prefix 2024/
  zstdcat shoal.zst | shoal restore --data new.data -

The file has its name when everything is in it; before, it is NEW.unfinished. Objects get new versions, which begin 2^40 behind those
of the backup. Objects whose time was over meanwhile are left out.

Exit codes: 0 everything was restored, 1 it failed, or the backup is damaged, or something was missing in it from the start.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The backup, or - for standard input.
    backup: PathBuf,
    /// The new data file, which must not exist, or a blank block device.
    #[arg(long, value_name = "NEW")]
    data: PathBuf,
    /// Only objects of this bucket.
    #[arg(long, short, value_name = "B", value_parser = bucket)]
    bucket: Option<String>,
    /// Only keys that begin with this, of all buckets or of --bucket.
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    prefix: OsString,
    /// How large the store may grow [default: as of `shoal format`, and at least what the backup needs].
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Restore what is whole in a damaged backup, too: all in front of the damage and behind it.
    #[arg(long)]
    past_damage: bool,
    /// Print one JSON object, and no progress.
    #[arg(long)]
    json: bool,
    /// Memory for cached pages.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    cache: Size,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let sofar = Arc::new(Sofar::default());
    let stopped = sofar.clone();
    stop_in_order(move || stopped.stop())?;
    let mut source = Source::open(&arguments.backup)?;
    let mut damage = Vec::new();
    let header = find_header(&mut source, &arguments, &mut damage)?;
    sofar.expect(header.value_bytes);
    let version = header.version.0.checked_add(VERSIONS_BETWEEN);
    let version = version.ok_or_else(|| anyhow!("the backup's version {} is too large", header.version))?;
    let options = StoreOptions {
        access: Access::Create,
        size: arguments.size,
        cache: arguments.cache,
        ..StoreOptions::default()
    };
    let new = NewStore::create(&arguments.data, &options, version, header.value_bytes).await?;
    let shown = progress::start("restore", &sofar, arguments.json);
    let mut restore = Restore::new(&new.store, &arguments, damage);
    let worked = restore.all(&mut source, &sofar).await;
    drop(shown);
    let Restore { damage, restored, value_bytes, expired, cut, losses, .. } = restore;
    if let Err(error) = worked {
        new.discard().await;
        return Err(error.context(format!("nothing was restored into {}", arguments.data.display())));
    }
    new.finish().await?;
    let mut output = Output::new();
    if arguments.json {
        output.json(&json!({
            "data": arguments.data.to_string_lossy(),
            "version": header.version.0,
            "taken": show_time(header.taken_ns),
            "first_version": version,
            "objects": restored,
            "value_bytes": value_bytes,
            "expired": expired,
            "missing": losses,
            "cut": cut,
            "damage": damage_json(&damage),
        }))?;
    } else {
        let mut line = format!(
            "{}: {} objects with {} of values, as of version {} of {}",
            arguments.data.display(),
            show_count(restored),
            Size(value_bytes),
            header.version,
            show_time(header.taken_ns)
        );
        if expired > 0 {
            line.push_str(&format!("; {} expired meanwhile", show_count(expired)));
        }
        if losses > 0 {
            line.push_str(&format!("; {losses} things were missing in the store when the backup was made"));
        }
        if !damage.is_empty() {
            line.push_str("; the backup is damaged, so objects are missing");
        }
        output.line(&line)?;
    }
    output.finish()?;
    if damage.is_empty() && losses == 0 { Ok(()) } else { Err(Reported.into()) }
}

fn find_header(
    source: &mut Source,
    arguments: &Arguments,
    damage: &mut Vec<Damage>,
) -> anyhow::Result<Header> {
    while let Some(next) = source.next()? {
        match next {
            Ok(Event::Header(header)) => return Ok(header),
            Ok(Event::Skipped(_)) => {}
            Ok(_) => bail!(
                "{}: its header is missing or damaged, so nothing can be restored",
                arguments.backup.display()
            ),
            Err(found) => see(found, arguments, damage)?,
        }
    }
    bail!("{} is no backup, or its header is damaged", arguments.backup.display())
}

/// # Errors
/// The damage, unless the user wants what is behind it.
fn see(found: Damage, arguments: &Arguments, damage: &mut Vec<Damage>) -> anyhow::Result<()> {
    let name = arguments.backup.display();
    if !arguments.past_damage {
        bail!("the backup {name} is {found}; --past-damage restores what is whole in it");
    }
    warn(&format!("shoal: {name}: {found}"));
    damage.push(found);
    Ok(())
}

/// A restore on its way.
struct Restore<'a> {
    store: &'a Store,
    arguments: &'a Arguments,
    prefix: &'a [u8],
    damage: Vec<Damage>,
    puts: JoinSet<anyhow::Result<u64>>,
    /// The object in pieces; none: it is left out.
    long: Option<(ObjectKey, u64, PutStream)>,
    restored: u64,
    value_bytes: u64,
    expired: u64,
    /// Objects that the damage cut.
    cut: u64,
    /// Things that the store could not read for the backup.
    losses: u64,
}

impl<'a> Restore<'a> {
    fn new(store: &'a Store, arguments: &'a Arguments, damage: Vec<Damage>) -> Self {
        let prefix = bytes_of(&arguments.prefix);
        Self {
            store,
            arguments,
            prefix,
            damage,
            puts: JoinSet::new(),
            long: None,
            restored: 0,
            value_bytes: 0,
            expired: 0,
            cut: 0,
            losses: 0,
        }
    }

    async fn all(&mut self, source: &mut Source, sofar: &Sofar) -> anyhow::Result<()> {
        while let Some(next) = source.next()? {
            sofar.go_on()?;
            match next {
                Ok(event) => self.take(event).await?,
                Err(found) => {
                    see(found, self.arguments, &mut self.damage)?;
                    self.cut();
                }
            }
            let (counts, bytes) = source.counts();
            sofar.set(counts, bytes);
        }
        while let Some(done) = self.puts.join_next().await {
            self.done(done)?;
        }
        Ok(())
    }

    async fn take(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Objects(objects) => {
                for object in objects {
                    let Some(options) = self.wanted(&object.head) else { continue };
                    if self.puts.len() >= PUTS_AT_ONCE
                        && let Some(done) = self.puts.join_next().await
                    {
                        self.done(done)?;
                    }
                    let (store, key) = (self.store.clone(), object.head.key);
                    self.puts.spawn(async move {
                        put(&store, &key, &object.value, options).await?;
                        Ok(object.value.len() as u64)
                    });
                }
            }
            Event::Begin(head) => {
                self.long = match self.wanted(&head) {
                    Some(options) => {
                        let stream = self.store.put_stream(&head.key, options);
                        let stream = stream.with_context(|| cannot(&head.key))?;
                        Some((head.key, head.value_bytes, stream))
                    }
                    None => None,
                };
            }
            Event::Piece { bytes, is_last } => {
                let Some((key, _, stream)) = &mut self.long else { return Ok(()) };
                stream.write(&bytes).await.with_context(|| cannot(key))?;
                if is_last && let Some((key, bytes, stream)) = self.long.take() {
                    stream.finish().await.with_context(|| cannot(&key))?;
                    self.restored += 1;
                    self.value_bytes += bytes;
                }
            }
            Event::Loss(loss) => {
                self.long = None;
                self.losses += 1;
                warn(&format!("shoal: warning: {}", words(&loss)));
            }
            Event::Skipped(_) => self.cut(),
            Event::Header(_) | Event::End(_) => {}
        }
        Ok(())
    }

    /// The object in pieces stays without its end.
    fn cut(&mut self) {
        if let Some((key, _, _)) = self.long.take() {
            self.cut += 1;
            warn(&format!(
                "shoal: {:?} in bucket {:?} is not whole in the backup, and is left out",
                show_key(key.key()),
                key.bucket()
            ));
        }
    }

    fn done(&mut self, joined: Result<anyhow::Result<u64>, tokio::task::JoinError>) -> anyhow::Result<()> {
        self.value_bytes += joined.context("a write of the restore broke off")??;
        self.restored += 1;
        Ok(())
    }

    /// The options of the object's put; none: it is not to be restored.
    fn wanted(&mut self, head: &ObjectHead) -> Option<PutOptions> {
        let is_of_bucket = self.arguments.bucket.as_deref().is_none_or(|bucket| bucket == head.key.bucket());
        if !is_of_bucket || !head.key.key().starts_with(self.prefix) {
            return None;
        }
        let expiry = match head.expiry {
            None => Expiry::Never,
            Some(ExpiresAt { at_ns, is_relative }) => {
                let now_ns =
                    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
                if at_ns <= now_ns {
                    self.expired += 1;
                    return None;
                }
                if is_relative {
                    Expiry::After(Duration::from_nanos(at_ns - now_ns))
                } else {
                    Expiry::At(at_ns)
                }
            }
        };
        let metadata = head.metadata.clone();
        Some(PutOptions { metadata, modified_ns: Some(head.modified_ns), expiry, ..PutOptions::default() })
    }
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
