//! `shoal put`: a file, or standard input, becomes an object.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use shoal_client::{Expiry, Metadata, PutOptions};
use tokio::sync::mpsc;

use crate::commands::about;
use crate::conditions::Conditions;
use crate::objects::Objects;
use crate::output::bytes_of;
use crate::store_file::Access;
use crate::target::Target;

/// Values up to here travel in one message.
const SINGLE_BYTES_MAX: usize = 1 << 20;
/// Pieces that were read and wait to be sent.
const WAITING_PIECES_MAX: usize = 2;

const EXAMPLES: &str = "\
Examples:
  shoal put notes/today today.txt
  echo hello | shoal put greeting -
  shoal put page index.html --content-type text/html --meta author=ann
  shoal put lock /dev/null --if-absent      fails where the key exists
  shoal put session state --ttl 3600        exists for an hour
  shoal put config new.toml --if-version 17 fails where somebody was faster";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The key: any 1 to 1,024 bytes.
    key: OsString,
    /// The file that holds the value; - for standard input.
    file: PathBuf,
    /// MIME type to store with the object.
    #[arg(long, value_name = "TYPE", default_value = "")]
    content_type: String,
    /// Metadata to store with the object, as NAME=VALUE; may be repeated (2 KiB in all).
    #[arg(long = "meta", value_name = "NAME=VALUE", value_parser = meta)]
    meta: Vec<(String, String)>,
    /// The object exists for so many seconds from now on, in elapsed time. Without it, it does not end.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    ttl: Option<Duration>,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    target: Target,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "write a number of seconds, as 60 or 0.5")?;
    let time = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if time.is_zero() { Err("a time to live is above 0".into()) } else { Ok(time) }
}

fn meta(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".into()),
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let pieces = Pieces::read(&arguments.file)?;
    let user = arguments.meta.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
    let options = PutOptions {
        rules: arguments.conditions.rules(),
        metadata: Metadata { content_type: arguments.content_type, user },
        modified_ns: None,
        expiry: arguments.ttl.map_or(Expiry::Never, Expiry::After),
    };
    let key = bytes_of(&arguments.key);
    let bucket = &arguments.target.bucket;
    let put = async |objects: &Objects| {
        put(objects, bucket, key, pieces, options).await.with_context(|| about("cannot put", bucket, key))
    };
    arguments.target.store.with(Access::Create, put).await
}

async fn put(
    objects: &Objects,
    bucket: &str,
    key: &[u8],
    mut pieces: Pieces,
    options: PutOptions,
) -> anyhow::Result<()> {
    let first = pieces.next().await?.unwrap_or_default();
    let second = pieces.next().await?;
    let Some(second) = second else {
        objects.put(bucket, key, first, options).await?;
        return Ok(());
    };
    let mut stream = objects.put_stream(bucket, key, options)?;
    stream.write(first).await?;
    stream.write(second).await?;
    while let Some(piece) = pieces.next().await? {
        stream.write(piece).await?;
    }
    stream.finish().await?;
    Ok(())
}

/// A value as it is read, by a thread of its own: reading may block for long.
struct Pieces {
    receiver: mpsc::Receiver<anyhow::Result<Bytes>>,
}

impl Pieces {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let source: Box<dyn Read + Send> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).with_context(|| format!("cannot open {}", path.display()))?)
        };
        let name =
            if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
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
