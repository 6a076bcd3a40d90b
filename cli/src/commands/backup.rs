//! `shoal backup`: all objects of one version in one file; and the check of such a file.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use shoal_backup::{Contents, Decoder, End, Event, Header, IncrementWriter, Loss};
use shoal_base::{Entropy, SystemEntropy};
use shoal_engine::Lsn;
use shoal_transfer::objects::Objects;
use shoal_transfer::text::{counted, show_key};

use crate::arguments::size::Size;
use crate::arguments::target::StoreArguments;
use crate::backup::chain::{Link, check_link};
use crate::backup::last::Last;
use crate::backup::part;
use crate::backup::progress::{self, Sofar};
use crate::backup::sink::{self, Sink, beside};
use crate::backup::source::Source;
use crate::failure::{Reported, Usage};
use crate::output::{Output, show_time, warn};
use crate::process::signals::stop_in_order;
use crate::store::file::Access;

const EXAMPLES: &str = "Examples:
  shoal backup /backup/monday.shoal                    all buckets of a running server, as they are at one moment
  shoal backup /backup/monday.shoal --rate 20M         ... with 20 MiB a second at most
  shoal backup - | zstd | ssh other 'cat > shoal.zst'  into a pipe
  shoal backup copy.shoal --data shoal.data            of a store that no server has open
  shoal backup /backup/tuesday.shoal --incremental-from /backup/monday.shoal
                                                       only the changes since then, including deletions
  shoal backup /backup/monday.shoal --resume           continues an interrupted one, and keeps monday.shoal.part beside it
  shoal backup verify /backup/monday.shoal             reads it and checks everything, without a store
  shoal backup verify /backup/monday.shoal /backup/tuesday.shoal
                                                       ... a chain of backups, and that each follows the one before
  shoal restore --data new.data /backup/monday.shoal   creates a store from it

The file gets its name when it is complete and durable. Keys, values, metadata, times and deadlines are kept.

Exit codes: 0 the backup is complete, 1 it failed, or reported damage in the store or in a backup.";

#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Arguments {
    /// The file to write, or - for standard output.
    #[arg(required = true)]
    dest: Option<PathBuf>,
    /// Write an increment: the changes since this backup, which is a full one or an increment of the same store. That file is
    /// read and verified first.
    #[arg(long, value_name = "LAST")]
    incremental_from: Option<PathBuf>,
    /// Resume a full backup that was interrupted: DEST.unfinished becomes DEST.part, and DEST an increment from it. Both are needed
    /// for a restore.
    #[arg(long, conflicts_with = "incremental_from")]
    resume: bool,
    /// Overwrite an existing file.
    #[arg(long)]
    force: bool,
    /// Write at most this many bytes a second.
    #[arg(long, value_name = "BYTES")]
    rate: Option<Size>,
    /// Print one JSON object, and no progress; with - as DEST on standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArguments,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Read backups and verify everything in them. No store is needed.
    Verify(Verify),
}

#[derive(Args)]
struct Verify {
    /// The backup, or - for standard input. Several must form a chain: a full backup, then increments, each from the one before.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one JSON object for each file, and no progress.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if let Some(Command::Verify(verify)) = &arguments.command {
        return run_verify(verify);
    }
    let dest = arguments.dest.as_deref().ok_or_else(|| Usage("name the file of the backup".into()))?;
    if arguments.rate.is_some_and(|rate| rate.0 == 0) {
        return Err(Usage("--rate is above 0".into()).into());
    }
    let sofar = Arc::new(Sofar::default());
    let stopped = sofar.clone();
    stop_in_order(move || stopped.stop())?;
    let part = if arguments.resume { Some(part_of(dest)?) } else { None };
    let mut last = part.as_deref().or(arguments.incremental_from.as_deref()).map(Last::open).transpose()?;
    if arguments.incremental_from.as_deref().is_some_and(|last| is_same_file(last, dest)) {
        return Err(Usage("an increment cannot replace the backup that it continues".into()).into());
    }
    // The destination first: a backup that cannot be kept is not started.
    let mut sink = Sink::open(dest, arguments.force, sink::Contents::Backup)?;
    let shown = progress::start("backup", &sofar, arguments.json);
    let mut found = None;
    let work = async |objects: &Objects| {
        found = Some(copy(objects, &mut last, &mut sink, arguments.rate, &sofar).await?);
        Ok(())
    };
    let result = arguments.store.with(Access::Read, work).await;
    drop(shown);
    result.with_context(|| {
        let kept = sink.kept().map_or(String::new(), |kept| {
            format!("; {} has the data so far, and --resume continues it", kept.display())
        });
        format!("no backup was made in {}{kept}", dest.display())
    })?;
    sink.finish()?;
    let found = found.ok_or_else(|| anyhow!("no backup was made"))?;
    found.tell(dest, dest == Path::new("-"), arguments.json)?;
    if found.losses.is_empty() { Ok(()) } else { Err(Reported.into()) }
}

/// The part of the backup `dest` that was broken off; made of its unfinished file, unless an earlier run did.
fn part_of(dest: &Path) -> anyhow::Result<PathBuf> {
    if dest == Path::new("-") {
        return Err(Usage("--resume needs a file: standard output cannot be continued".into()).into());
    }
    let part = beside(dest, ".part");
    if !part.exists() {
        part::make(&beside(dest, ".unfinished"), &part)?;
    }
    Ok(part)
}

/// Returns true if both are names of one file that exists.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| path.metadata().ok().map(|it| (it.dev(), it.ino()));
    place(one).is_some_and(|one| place(other) == Some(one))
}

/// Turns the bytes of the store into those of the file: a backup stays as it is, changes become an increment.
struct Transform<'a> {
    last: Option<(&'a mut Last, IncrementWriter, Decoder)>,
}

impl<'a> Transform<'a> {
    fn new(last: Option<&'a mut Last>) -> Self {
        let number = SystemEntropy.next_u64();
        let with_writer = |last: &'a mut Last| {
            let writer = IncrementWriter::new(number).behind_part(last.part);
            (last, writer, Decoder::new())
        };
        Self { last: last.map(with_writer) }
    }

    fn take(&mut self, chunk: Bytes) -> anyhow::Result<Bytes> {
        let Some((last, writer, decoder)) = &mut self.last else { return Ok(chunk) };
        let mut out = Vec::new();
        decoder.push(&chunk);
        while let Some(event) = decoder.next_event()? {
            writer.take(event, &mut || last.next_keys(), &mut out)?;
        }
        Ok(out.into())
    }
}

/// Copies a backup of the store, or an increment from `last`, into `sink`, and reads it on the way.
async fn copy(
    objects: &Objects,
    last: &mut Option<Last>,
    sink: &mut Sink,
    rate: Option<Size>,
    sofar: &Sofar,
) -> anyhow::Result<Found> {
    let (since, is_full) = (last.as_ref().map(|last| &last.backup), last.is_none());
    let mut backup = objects.backup(since).await.context("cannot start the backup")?;
    let mut transform = Transform::new(last.as_mut());
    let (mut decoder, mut found) = (Decoder::new(), Found::default());
    let (began, mut bytes) = (Instant::now(), 0);
    while let Some(chunk) = backup.next().await? {
        sofar.go_on()?;
        let chunk = tokio::task::block_in_place(|| {
            let chunk = transform.take(chunk)?;
            sink.write(&chunk)?;
            anyhow::Ok(chunk)
        })?;
        bytes += chunk.len() as u64;
        decoder.push(&chunk);
        while let Some(event) = decoder.next_event()? {
            if matches!(event, Event::Index(_)) && is_full {
                sink.keep();
            }
            found.add(&event, sofar);
        }
        sofar.set(decoder.counts(), bytes);
        if let Some(rate) = rate {
            let due = Duration::from_secs_f64(bytes as f64 / rate.0 as f64);
            tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
        }
    }
    if found.end.is_none() {
        bail!("the backup ended before its end record; make it again");
    }
    found.bytes = bytes;
    Ok(found)
}

fn run_verify(verify: &Verify) -> anyhow::Result<()> {
    let mut is_sound = true;
    let mut before: Option<Link> = None;
    for path in &verify.files {
        let (found, number) = verify_one(path, verify.json)?;
        is_sound &= found.damage.is_empty() && found.losses.is_empty();
        let Some(header) = found.header else { continue };
        let link = Link { path: path.clone(), header, number };
        if verify.files.len() > 1 {
            check_link(before.as_ref(), &link)?;
        }
        before = Some(link);
    }
    if is_sound { Ok(()) } else { Err(Reported.into()) }
}

/// Returns the contents of a backup, and its random number.
fn verify_one(path: &Path, as_json: bool) -> anyhow::Result<(Found, u64)> {
    let mut source = Source::open(path)?;
    let (sofar, mut found) = (Arc::new(Sofar::default()), Found::default());
    let shown = progress::start("verify", &sofar, as_json);
    while let Some(next) = source.next()? {
        match next {
            Ok(event) => found.add(&event, &sofar),
            Err(damage) => {
                warn(&format!("shoal: {}: {damage}", path.display()));
                found.damage.push(damage);
            }
        }
        let (counts, bytes) = source.counts();
        sofar.set(counts, bytes);
    }
    drop(shown);
    let ((objects, value_bytes), bytes) = source.counts();
    found.bytes = bytes;
    (found.objects, found.value_bytes) = (objects, value_bytes);
    if let Some(Header { contents: Contents::Changes { .. }, .. }) = found.header {
        bail!("{} is a stream of changes, and no backup", path.display());
    }
    found.tell(path, false, as_json)?;
    Ok((found, source.number()))
}

/// The contents of a backup.
#[derive(Default)]
pub(crate) struct Found {
    header: Option<Header>,
    end: Option<End>,
    losses: Vec<Loss>,
    damage: Vec<shoal_backup::Damage>,
    objects: u64,
    value_bytes: u64,
    deleted: u64,
    bytes: u64,
}

impl Found {
    fn add(&mut self, event: &Event, sofar: &Sofar) {
        match event {
            Event::Header(header) => {
                if matches!(header.contents, Contents::Full | Contents::Base) {
                    sofar.expect(header.value_bytes);
                }
                self.header = Some(header.clone());
            }
            Event::Loss(loss) => {
                warn(&format!("shoal: warning: {}", words(loss)));
                self.losses.push(loss.clone());
            }
            Event::End(end) => {
                (self.objects, self.value_bytes) = (end.objects, end.value_bytes);
                self.end = Some(*end);
            }
            Event::Deleted(keys) => self.deleted += keys.len() as u64,
            Event::Objects(_)
            | Event::Begin(_)
            | Event::Piece { .. }
            | Event::Index(_)
            | Event::Bucket(_)
            | Event::Skipped(_) => {}
        }
    }

    /// Reports the contents of the backup; `on_error`: on standard error.
    fn tell(&self, path: &Path, on_error: bool, as_json: bool) -> anyhow::Result<()> {
        let line = if as_json { self.json(path).to_string() } else { self.line(path) };
        if on_error {
            warn(&line);
            return Ok(());
        }
        let mut output = Output::new();
        output.line(&line)?;
        output.finish()
    }

    fn line(&self, path: &Path) -> String {
        let of = self.header.as_ref().map_or("no header".to_owned(), |header| {
            let from = self.from().map_or(String::new(), |from| format!(" from version {from}"));
            format!("version {} of {}{from}", header.version, show_time(header.taken_ns))
        });
        let mut line = format!(
            "{}: {of}, {} with {} of values, {} in all",
            path.display(),
            counted(self.objects, "object"),
            Size(self.value_bytes),
            Size(self.bytes)
        );
        if self.from().is_some() {
            line.push_str(&format!("; an increment, with {}", counted(self.deleted, "deletion")));
        }
        if self.header.as_ref().is_some_and(|header| header.contents == Contents::Part) {
            line.push_str(
                "; the part of an interrupted backup, to be restored with the backup that continues it",
            );
        }
        if !self.losses.is_empty() {
            line.push_str(&format!(
                "; missing, as the store could not read them: {}",
                counted(self.losses.len() as u64, "thing")
            ));
        }
        line.push_str(match (self.damage.is_empty(), self.losses.is_empty()) {
            (false, _) => "; IT IS DAMAGED",
            (true, false) => "; all else is whole",
            (true, true) => "; it is whole",
        });
        line
    }

    /// The version that the increment continues; none: it is a full backup.
    fn from(&self) -> Option<Lsn> {
        match self.header.as_ref()?.contents {
            Contents::Increment { from } => Some(from),
            Contents::Full | Contents::Base | Contents::Part | Contents::Changes { .. } => None,
        }
    }

    fn json(&self, path: &Path) -> Value {
        let mut object = Map::new();
        object.insert("backup".into(), path.to_string_lossy().into());
        if let Some(header) = &self.header {
            let store: String = header.store.iter().map(|byte| format!("{byte:02x}")).collect();
            object.insert("store".into(), store.into());
            object.insert("version".into(), header.version.0.into());
            if let Some(from) = self.from() {
                object.insert("from_version".into(), from.0.into());
                object.insert("deleted".into(), self.deleted.into());
            }
            object.insert("taken".into(), show_time(header.taken_ns).into());
            object.insert("taken_ns".into(), header.taken_ns.into());
        }
        object.insert("objects".into(), self.objects.into());
        object.insert("value_bytes".into(), self.value_bytes.into());
        object.insert("bytes".into(), self.bytes.into());
        object.insert("missing".into(), self.losses.iter().map(words).collect::<Vec<_>>().into());
        object.insert("damage".into(), damage_json(&self.damage));
        object.into()
    }
}

/// Damaged places, for programs.
pub(crate) fn damage_json(damage: &[shoal_backup::Damage]) -> Value {
    let one = |it: &shoal_backup::Damage| json!({ "frame": it.frame, "offset": it.offset, "why": it.why });
    damage.iter().map(one).collect::<Vec<_>>().into()
}

/// A loss in words.
pub(crate) fn words(loss: &Loss) -> String {
    match loss {
        Loss::Object { key, why } => {
            format!("{:?} in bucket {:?} is not in the backup: {why}", show_key(key.key()), key.bucket())
        }
        Loss::Range(range) => {
            let to = range.to.as_deref().map_or("the end".into(), |to| format!("{:?}", show_key(to)));
            format!(
                "keys of tablet {} from {:?} up to {to} are not in the backup: {}",
                range.tablet,
                show_key(&range.from),
                range.why
            )
        }
    }
}
