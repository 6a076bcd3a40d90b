//! `shoal cp`: an object gets a copy under another key.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use shoal_client::{ByteRange, Expiry, PutOptions};

use crate::commands::{about, no_such_object};
use crate::conditions::Conditions;
use crate::objects::Objects;
use crate::output::bytes_of;
use crate::store_file::Access;
use crate::target::{Target, bucket};

const EXAMPLES: &str = "\
Examples:
  shoal cp notes/today notes/archive/2026-01-15
  shoal cp config config.bak --if-absent
  shoal cp report report --to-bucket public

The copy has the content type, the metadata and the modification time of the source. It is of one version of the source,
but not one step with it: who writes to the source meanwhile is not waited for.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The key to copy.
    source: OsString,
    /// The key of the copy; an existing object is replaced.
    destination: OsString,
    /// The bucket of the copy [default: that of the source].
    #[arg(long, value_name = "B", value_parser = bucket)]
    to_bucket: Option<String>,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let store = &arguments.target.store;
    store.with(Access::Write, async |objects| cp(objects, &arguments).await).await
}

async fn cp(objects: &Objects, arguments: &Arguments) -> anyhow::Result<()> {
    let (bucket, key) = (&arguments.target.bucket, bytes_of(&arguments.source));
    let to_bucket = arguments.to_bucket.as_ref().unwrap_or(bucket);
    let to_key = bytes_of(&arguments.destination);
    let reading = || about("cannot read", bucket, key);
    let writing = || about("cannot write", to_bucket, to_key);

    let source = objects.get_stream(bucket, key, ByteRange::ALL).await.with_context(reading)?;
    let mut source = source.ok_or_else(no_such_object).with_context(reading)?;
    let options = PutOptions {
        rules: arguments.conditions.rules(),
        metadata: source.info().metadata.clone(),
        modified_ns: Some(source.info().modified_ns),
        // A moment of the wall clock becomes the time that is left.
        expiry: source
            .info()
            .ttl_ns
            .map_or(Expiry::Never, |ttl_ns| Expiry::After(Duration::from_nanos(ttl_ns.max(1)))),
    };
    let first = source.next().await.with_context(reading)?.unwrap_or_default();
    if first.len() as u64 == source.info().bytes {
        objects.put(to_bucket, to_key, first, options).await.with_context(writing)?;
        return Ok(());
    }
    let mut copy = objects.put_stream(to_bucket, to_key, options).with_context(writing)?;
    copy.write(first).await.with_context(writing)?;
    while let Some(piece) = source.next().await.with_context(reading)? {
        copy.write(piece).await.with_context(writing)?;
    }
    copy.finish().await.with_context(writing)?;
    Ok(())
}
