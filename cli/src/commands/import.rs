//! `shoal import`: stores a folder, a tar or the strings of a server of Redis.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use shoal_transfer::import::Import;
use shoal_transfer::objects::Objects;
use shoal_transfer::redis::load::{PasswordWanted, RedisSource};
use shoal_transfer::text::{one_line, show_count};
use shoal_transfer::tree::walk::Walk;
use shoal_transfer::work::JOBS_MAX;
use tokio::runtime::Handle;

use crate::arguments::credentials::read_secret;
use crate::arguments::filter::FilterArguments;
use crate::arguments::target::Target;
use crate::output::{bytes_of, warn};
use crate::store::buckets::of_redis_clients;
use crate::store::file::Access;
use crate::transfer::{IMPORT, IMPORT_STRINGS, IMPORT_TAR, Shown};

/// Databases of a server of Redis that a note names.
const DATABASES_NAMED_MAX: usize = 8;

const EXAMPLES: &str = "Examples:
  shoal import ./photos                       photos/2024/a.jpg becomes the key 2024/a.jpg
  shoal import ./photos --prefix photos/      ... the key photos/2024/a.jpg
  shoal import ./photos --prefix photos/      again: stores only what is new or changed
  shoal import ./photos --exclude 'tmp/*' --dry-run
                                              prints the keys, and stores nothing
  shoal export photos/ ./restored             reads it back
  zcat photos.tar.gz | shoal import --tar -   the files in a tar
  shoal import --from-redis 127.0.0.1:6379    the strings of a Redis server, with their deadlines, into the
                                              bucket that Redis clients of this server see, or --bucket

The key of a file is the prefix and the file's path below DIR, byte by byte. Modes, modification times (to the nanosecond),
symlinks (not followed) and folders are kept; owners are not. Extended attributes user.shoal.* that an export wrote become metadata,
content type and deadline again; expired objects are left out. Files that the store already has with the same size, type, mode,
time and attributes are skipped, so running an interrupted import again continues it. Hard links are stored as separate
files. Sockets, fifos and devices are skipped. A file that changes while it is read is reported and not stored.

A tar may have the format ustar, pax or GNU, without compression. Its entries are stored as files are; sparse files are failures. A tar that is cut off
or damaged is an error that names the entry and the offset; the entries before it are stored.

Exit codes: 0 everything was stored (special files do not count), 1 something failed, 5 stored, except for the parts that --lossy skipped.";

const USAGE: &str = "shoal import [OPTIONS] <DIR>
       shoal import [OPTIONS] --tar <FILE>
       shoal import [OPTIONS] --from-redis <HOST:PORT>";

#[derive(Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub(crate) struct Arguments {
    /// The folder.
    #[arg(required_unless_present_any = ["tar", "from_redis"])]
    dir: Option<PathBuf>,
    /// Import the entries of this tar, - for standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    tar: Option<PathBuf>,
    #[command(flatten)]
    redis: Redis,
    /// Prepend this to every key; end it with / to make it a folder.
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    prefix: OsString,
    #[command(flatten)]
    filter: FilterArguments,
    /// Batches of files that are read and sent at the same time.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=i64::from(JOBS_MAX)))]
    jobs: u16,
    /// With --tar and --from-redis: skip and report everything that the store cannot hold: keys of more than 1,024 bytes; of
    /// Redis values above 4 MiB, and all types but strings.
    #[arg(long, conflicts_with = "dir")]
    lossy: bool,
    /// Store nothing; print the keys that would be stored.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object at the end, and no progress.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// A server of the Redis protocol as a source.
#[derive(Args)]
struct Redis {
    /// Import the strings of this Redis server.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["dir", "tar"], value_parser = address)]
    from_redis: Option<String>,
    /// The number of the database.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "from_redis")]
    redis_db: u32,
    /// The file with the password of that server. It may not be open to other users.
    #[arg(long, value_name = "FILE", requires = "from_redis")]
    redis_password_file: Option<PathBuf>,
}

fn address(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err("write HOST:PORT".into()),
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { json, dry_run, lossy, .. } = arguments;
    let verb = match (&arguments.tar, &arguments.redis.from_redis) {
        (Some(_), _) => IMPORT_TAR,
        (None, Some(_)) => IMPORT_STRINGS,
        (None, None) => IMPORT,
    };
    let work = Work { shown: Shown::new(verb, (dry_run, lossy), json, false), arguments };
    match (&work.arguments.tar, &work.arguments.redis.from_redis, &work.arguments.dir) {
        (Some(tar), ..) => work.tar(tar).await,
        (None, Some(address), _) => work.redis(address).await,
        (None, None, dir) => work.folder(dir.as_deref().unwrap_or(Path::new(""))).await,
    }
}

/// An import.
struct Work {
    arguments: Arguments,
    shown: Shown,
}

impl Work {
    async fn folder(&self, dir: &Path) -> anyhow::Result<()> {
        let prefix = bytes_of(&self.arguments.prefix);
        let start = || Walk::new(dir, prefix).with_context(|| format!("cannot read {}", dir.display()));
        let (walk, counting_walk) = (start()?, start()?);
        let objects = self.open().await?;
        let import = self.import(&objects, self.arguments.target.bucket());
        if self.shown.has_bar() {
            let import = import.clone();
            std::thread::spawn(move || import.count(counting_walk));
        }
        let jobs = self.arguments.jobs;
        self.finish(objects, move || import.folder(walk, jobs)).await
    }

    async fn tar(&self, path: &Path) -> anyhow::Result<()> {
        let input: Box<dyn Read + Send> = match path == Path::new("-") {
            true => Box::new(io::stdin()),
            false => {
                let file = File::open(path);
                Box::new(file.with_context(|| format!("cannot open the tar {}", path.display()))?)
            }
        };
        let objects = self.open().await?;
        let (import, jobs) = (self.import(&objects, self.arguments.target.bucket()), self.arguments.jobs);
        let input = io::BufReader::with_capacity(1 << 20, input);
        self.finish(objects, move || import.tar(input, jobs)).await
    }

    async fn redis(&self, address: &str) -> anyhow::Result<()> {
        let redis = &self.arguments.redis;
        let password = redis.redis_password_file.as_deref().map(|path| read_secret(path, "a password"));
        let password = password.transpose()?;
        let password = password.as_deref().map(<[u8]>::trim_ascii_end);
        let (source, others) = tokio::task::block_in_place(|| {
            let mut source = RedisSource::connect(address, password, redis.redis_db).map_err(with_option)?;
            let others = source.other_databases(redis.redis_db);
            anyhow::Ok((source, others))
        })?;
        if !others.is_empty() {
            warn(&other_databases(redis.redis_db, &others));
        }
        let objects = self.open().await?;
        let bucket = match self.arguments.target.named_bucket() {
            Some(bucket) => bucket.to_owned(),
            None => {
                of_redis_clients(&objects).await.context("cannot learn which bucket Redis clients see")?
            }
        };
        let (import, jobs) = (self.import(&objects, &bucket), self.arguments.jobs);
        let address = address.to_owned();
        self.finish(objects, move || import.redis(source, &address, jobs)).await
    }

    async fn open(&self) -> anyhow::Result<Objects> {
        let access = if self.arguments.dry_run { Access::Read } else { Access::Create };
        let objects = self.arguments.target.store.open(access).await?;
        self.shown.stop_on_signal()?;
        Ok(objects)
    }

    fn import(&self, objects: &Objects, bucket: &str) -> Import {
        Import {
            objects: objects.clone(),
            handle: Handle::current(),
            bucket: bucket.to_owned(),
            prefix: bytes_of(&self.arguments.prefix).to_vec(),
            filter: self.arguments.filter.filter(),
            report: self.shown.report.clone(),
        }
    }

    async fn finish(&self, objects: Objects, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
        self.shown.run(objects, work, async |_| ()).await
    }
}

/// Adds the option to the error of a server that wants a password.
fn with_option(error: anyhow::Error) -> anyhow::Error {
    match error.is::<PasswordWanted>() {
        true => anyhow!("{}: --redis-password-file names its file", one_line(&error)),
        false => error,
    }
}

/// The note about other databases of the source.
fn other_databases(db: u32, others: &[(u32, u64)]) -> String {
    let named = others.iter().take(DATABASES_NAMED_MAX);
    let mut named: Vec<_> = named.map(|(number, keys)| format!("{number} ({})", show_count(*keys))).collect();
    if others.len() > DATABASES_NAMED_MAX {
        named.push("...".into());
    }
    let named = named.join(", ");
    format!(
        "shoal: note: only database {db} is imported; others have keys: {named}; --redis-db imports another one"
    )
}
