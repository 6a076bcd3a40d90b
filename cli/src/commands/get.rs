//! `shoal get`: writes an object's value to standard output or into a file.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use rustix::fs::{Mode, OFlags};
use shoal_client::ByteRange;
use shoal_transfer::objects::{ObjectReader, Objects};
use shoal_transfer::text::{about, counted};
use shoal_transfer::tree::temporary;

use crate::arguments::range::RangeArgument;
use crate::arguments::size::Size;
use crate::arguments::target::Target;
use crate::failure::output_error;
use crate::output::bytes_of;
use crate::store::buckets::no_such_object;
use crate::store::file::{Access, folder_of};

/// Attempts to get an object that changed between the request for its length and the one for its end.
const CHANGED_ATTEMPTS_MAX: u32 = 10;

const EXAMPLES: &str = "\
Examples:
  shoal get notes/today                  to standard output
  shoal get photos/1.jpg -o 1.jpg        into a file
  shoal get log --range 0-99             the first 100 bytes
  shoal get log --range=-100             the last 100 bytes";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The key.
    key: OsString,
    /// The file to write; it appears, or is replaced, when it is complete. - is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only these bytes, first and last included, as in HTTP: A-B, A- or -N (the last N).
    #[arg(long, value_name = "A-B", allow_hyphen_values = true)]
    range: Option<RangeArgument>,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let store = &arguments.target.store;
    store.with(Access::Read, async |objects| get(objects, &arguments).await).await
}

async fn get(objects: &Objects, arguments: &Arguments) -> anyhow::Result<()> {
    let (bucket, key) = (arguments.target.bucket(), bytes_of(&arguments.key));
    let context = || about("cannot get", bucket, key);
    let mut stream = open(objects, bucket, key, arguments.range).await.with_context(context)?;
    match &arguments.output {
        Some(path) if path != Path::new("-") => write_file(&mut stream, path).await.with_context(context),
        _ => {
            let mut stdout = io::stdout();
            while let Some(piece) = stream.next().await.with_context(context)? {
                stdout.write_all(&piece).map_err(output_error)?;
            }
            stdout.flush().map_err(output_error)
        }
    }
}

async fn open(
    objects: &Objects,
    bucket: &str,
    key: &[u8],
    range: Option<RangeArgument>,
) -> anyhow::Result<ObjectReader> {
    let Some(range) = range else {
        return match objects.get_stream(bucket, key, ByteRange::ALL).await? {
            Some(stream) => Ok(stream),
            None => Err(no_such_object(objects, bucket, key).await),
        };
    };
    for _ in 0..CHANGED_ATTEMPTS_MAX {
        // The end of a value counts only for the version whose length was read.
        let (bytes, version) = match range.fixed() {
            Some(bytes) => (bytes, None),
            None => {
                let Some(info) = objects.head(bucket, key).await? else {
                    return Err(no_such_object(objects, bucket, key).await);
                };
                (range.within(info.bytes), Some(info.version))
            }
        };
        let Some(stream) = objects.get_stream(bucket, key, bytes).await? else {
            return Err(no_such_object(objects, bucket, key).await);
        };
        if version.is_some_and(|version| version != stream.info().version) {
            continue;
        }
        if !range.reaches(stream.info().bytes) {
            bail!(
                "the range starts after the end of the value, which has {}",
                counted(stream.info().bytes, "byte")
            );
        }
        return Ok(stream);
    }
    bail!("the object keeps changing; try again")
}

async fn write_file(stream: &mut ObjectReader, path: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    // A device or a pipe cannot be replaced by a file.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let mut file = File::options().write(true).open(path).with_context(failed)?;
        return copy(stream, &mut file).await.with_context(failed);
    }
    let folder = folder_of(path);
    let create = |name: &str| {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::open(folder.join(name), flags, Mode::from_raw_mode(0o666))
    };
    let (name, file) = temporary::create(create).with_context(failed)?;
    let (temporary, mut file) = (folder.join(name), File::from(file));
    let result = match copy(stream, &mut file).await {
        Ok(()) => fs::rename(&temporary, path).map_err(anyhow::Error::new),
        Err(error) => Err(error),
    };
    if result.is_err() {
        // Best effort: the error of the write is more useful.
        let _ = fs::remove_file(&temporary);
    }
    result.with_context(failed)
}

async fn copy(stream: &mut ObjectReader, file: &mut File) -> anyhow::Result<()> {
    let mut bytes = 0;
    while let Some(piece) = stream.next().await? {
        file.write_all(&piece)?;
        bytes += piece.len() as u64;
    }
    tracing::debug!("{} written", Size(bytes));
    Ok(())
}
