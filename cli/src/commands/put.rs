//! `shoal put`: a file, or standard input, becomes an object.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use serde_json::Map;
use shoal_base::limits::VALUE_BYTES_MAX;
use shoal_client::{Error, Expiry, Metadata, PutOptions, PutResult};
use shoal_transfer::objects::Objects;
use shoal_transfer::text::{about, value_too_large};
use tokio::sync::mpsc;

use crate::arguments::conditions::Conditions;
use crate::arguments::target::Target;
use crate::failure::Usage;
use crate::output::{Output, bytes_of, set_bytes, warn};
use crate::store::file::Access;

/// Values up to here travel in one message.
const SINGLE_BYTES_MAX: usize = 1 << 20;
/// The words by which server and engine refuse a value that is too large.
const VALUE_REFUSAL: &str = "a value has at most";
/// Pieces that were read and wait to be sent.
const WAITING_PIECES_MAX: usize = 2;

const EXAMPLES: &str = "Examples:
  shoal put notes/today today.txt
  echo hello | shoal put greeting
  shoal put page index.html --content-type text/html --meta author=ann
  shoal put lock /dev/null --if-absent      fails if the key exists
  shoal put session state --ttl 1h          expires in an hour
  shoal put config new.toml --if-version 17 fails if another client was faster
  version=$(shoal put k file --json | jq .version)

The version of the object is printed on standard error, if that is a terminal, and with --json on standard output. Exit code 4: a
condition failed, and nothing was stored.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The key: any 1 to 1,024 bytes.
    key: OsString,
    /// The file that holds the value; standard input if there is none, or -.
    file: Option<PathBuf>,
    /// MIME type to store with the object.
    #[arg(long, value_name = "TYPE", default_value = "")]
    content_type: String,
    /// Metadata to store with the object, as NAME=VALUE; may be repeated (2 KiB in all).
    #[arg(long = "meta", value_name = "NAME=VALUE", value_parser = meta)]
    meta: Vec<(String, String)>,
    /// The time to live: 90 (seconds), 1.5h, 7days. Without it, the object does not expire.
    #[arg(long, value_name = "TIME", value_parser = time_to_live)]
    ttl: Option<Duration>,
    /// Print a JSON object with the version.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    target: Target,
}

fn time_to_live(text: &str) -> Result<Duration, String> {
    const HOW: &str = "write seconds, as 60 or 0.5, or a time with its units, as 90m or 1h 30m";
    let time = match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?,
        Err(_) => humantime::parse_duration(text).map_err(|_| HOW)?,
    };
    if time.is_zero() { Err("a time to live is above 0".into()) } else { Ok(time) }
}

fn meta(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".into()),
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let pieces = Pieces::read(arguments.file.as_deref())?;
    let user = arguments.meta.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
    let options = PutOptions {
        rules: arguments.conditions.rules(),
        metadata: Metadata { content_type: arguments.content_type, user, ..Metadata::default() },
        modified_ns: None,
        expiry: arguments.ttl.map_or(Expiry::Never, Expiry::After),
    };
    let key = bytes_of(&arguments.key);
    let bucket = arguments.target.bucket();
    let json = arguments.json;
    let put = async |objects: &Objects| {
        let done = put(objects, bucket, key, pieces, options).await;
        let done = done.map_err(with_way_out).with_context(|| about("cannot put", bucket, key))?;
        say(bucket, key, done, json)
    };
    arguments.target.store.with(Access::Create, put).await
}

/// Reports the version. Scripts that do not ask for it see no new output.
fn say(bucket: &str, key: &[u8], (done, bytes): (PutResult, u64), json: bool) -> anyhow::Result<()> {
    if !json {
        if io::stderr().is_terminal() {
            warn(&format!("stored, version {}", done.version));
        }
        return Ok(());
    }
    let mut object = Map::new();
    set_bytes(&mut object, "key", key);
    object.insert("bucket".into(), bucket.into());
    object.insert("bytes".into(), bytes.into());
    object.insert("version".into(), done.version.0.into());
    let mut output = Output::new();
    output.json(&object.into())?;
    output.finish()
}

/// Stores the value; returns its length, too.
async fn put(
    objects: &Objects,
    bucket: &str,
    key: &[u8],
    mut pieces: Pieces,
    options: PutOptions,
) -> anyhow::Result<(PutResult, u64)> {
    let first = pieces.next().await?.unwrap_or_default();
    let mut bytes = first.len() as u64;
    let mut next = pieces.next().await?;
    if next.is_none() {
        return Ok((objects.put(bucket, key, first, options).await?, bytes));
    }
    let mut stream = objects.put_stream(bucket, key, options)?;
    stream.write(first).await?;
    while let Some(piece) = next {
        bytes += piece.len() as u64;
        stream.write(piece).await?;
        next = pieces.next().await?;
    }
    Ok((stream.finish().await?, bytes))
}

/// Opens a file, unless it holds more than a value may: that is known before any of it is sent.
fn open(path: &Path) -> anyhow::Result<File> {
    let cannot = |verb: &str| format!("cannot {verb} {}", path.display());
    let file = File::open(path).with_context(|| cannot("open"))?;
    let metadata = file.metadata().with_context(|| cannot("read"))?;
    if metadata.is_file() && metadata.len() > VALUE_BYTES_MAX {
        bail!("cannot put {}: {}", path.display(), value_too_large(Some(metadata.len())));
    }
    Ok(file)
}

/// Adds the way out to the refusal of a value that is too large.
fn with_way_out(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(Error::Invalid(why)) if why.contains(VALUE_REFUSAL) => anyhow!(value_too_large(None)),
        _ => error,
    }
}

/// A value as it is read by a separate thread: a read may block for long.
struct Pieces {
    receiver: mpsc::Receiver<anyhow::Result<Bytes>>,
}

impl Pieces {
    /// Opens the file, or standard input if `path` is none or `-`. If the file was left out by mistake, the command would wait at a
    /// terminal, so a terminal is read only on request.
    fn read(path: Option<&Path>) -> anyhow::Result<Self> {
        if path.is_none() && io::stdin().is_terminal() {
            let problem = "name the FILE that holds the value, or - to type it: standard input is a terminal";
            return Err(Usage(problem.into()).into());
        }
        let (source, name): (Box<dyn Read + Send>, _) = match path.filter(|path| *path != Path::new("-")) {
            Some(path) => (Box::new(open(path)?), path.display().to_string()),
            None => (Box::new(io::stdin()), "standard input".to_owned()),
        };
        let (sender, receiver) = mpsc::channel(WAITING_PIECES_MAX);
        std::thread::spawn(move || read_pieces(source, &name, &sender));
        Ok(Self { receiver })
    }

    /// The next piece; none at the end.
    async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        self.receiver.recv().await.transpose()
    }
}

fn read_pieces(mut source: Box<dyn Read + Send>, name: &str, sender: &mpsc::Sender<anyhow::Result<Bytes>>) {
    loop {
        let mut piece = Vec::new();
        let read = source.by_ref().take(SINGLE_BYTES_MAX as u64).read_to_end(&mut piece);
        let message = match read {
            Ok(0) => return,
            Ok(_) => Ok(piece.into()),
            Err(error) => Err(anyhow::Error::new(error).context(format!("cannot read {name}"))),
        };
        let failed = message.is_err();
        // The receiver is dropped if the put failed: the rest is not needed.
        if sender.blocking_send(message).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_live_are_seconds_or_have_units() {
        for (text, ms) in
            [("60", 60_000), ("0.5", 500), ("90m", 5_400_000), ("1h 30m", 5_400_000), ("7days", 604_800_000)]
        {
            assert_eq!(time_to_live(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for wrong in ["", "0", "-1", "soon", "1x", "0s", "inf", "1e300"] {
            assert!(time_to_live(wrong).is_err(), "{wrong}");
        }
    }
}
