//! `shoal stat`: the attributes of an object, or the state of the store.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::{Map, Value, json};
use shoal_client::{ObjectInfo, Stat};

use crate::commands::{about, no_such_object};
use crate::objects::Objects;
use crate::output::{Output, bytes_of, object_json, show_count, show_key, show_time};
use crate::size::Size;
use crate::space_map::{SpaceMap, read_space};
use crate::store_file::Access;
use crate::target::Target;

const EXAMPLES: &str = "\
Examples:
  shoal stat notes/today             size, version, time and metadata of an object
  shoal stat                         figures about the store
  shoal stat notes/today --json
  shoal stat --map                   how full and how fragmented the device is
  shoal stat --dump-space free.txt   every free run, a line each: first block and number of blocks";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The key; without it the store as a whole.
    key: Option<OsString>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    /// Show a map of the device: fill and fragmentation by group, free runs by length.
    #[arg(long, conflicts_with = "key")]
    map: bool,
    /// Write every free run into this file.
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    dump_space: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let store = &arguments.target.store;
    store.with(Access::Read, async |objects| stat(objects, &arguments).await).await
}

async fn stat(objects: &Objects, arguments: &Arguments) -> anyhow::Result<()> {
    let mut output = Output::new();
    match &arguments.key {
        Some(key) => {
            let (bucket, key) = (&arguments.target.bucket, bytes_of(key));
            let found = objects.head(bucket, key).await.map_err(anyhow::Error::new);
            let info = found.and_then(|info| info.ok_or_else(no_such_object));
            let info = info.with_context(|| about("cannot look up", bucket, key))?;
            if arguments.json {
                output.json(&object_json(key, &info))?;
            } else {
                print_object(&mut output, key, &info)?;
            }
        }
        None => {
            let dump = arguments.dump_space.as_deref();
            let space = if arguments.map || dump.is_some() {
                Some(read_space(objects, dump).await.context("cannot read the free runs of the store")?)
            } else {
                None
            };
            // The map is shown only with --map, also if the free runs were read for a dump.
            let map = space.filter(|_| arguments.map);
            if arguments.json {
                let stat = objects.stat().await.context("cannot get the figures of the store")?;
                output.json(&store_json(&stat, map.as_ref()))?;
            } else if let Some(map) = &map {
                map.print(&mut output)?;
            } else if dump.is_none() {
                let stat = objects.stat().await.context("cannot get the figures of the store")?;
                print_store(&mut output, &stat)?;
            }
        }
    }
    output.finish()
}

fn print_object(output: &mut Output, key: &[u8], info: &ObjectInfo) -> anyhow::Result<()> {
    output.line(&format!("key           {}", show_key(key)))?;
    output.line(&format!("bytes         {}", info.bytes))?;
    output.line(&format!("version       {}", info.version))?;
    output.line(&format!("modified      {}", show_time(info.modified_ns)))?;
    if let (Some(ttl_ns), Some(at_ns)) = (info.ttl_ns, info.expire_time_ns) {
        output.line(&format!("time left     {:.1} s, until {}", ttl_ns as f64 / 1e9, show_time(at_ns)))?;
    }
    if !info.metadata.content_type.is_empty() {
        output.line(&format!("content type  {}", show_key(info.metadata.content_type.as_bytes())))?;
    }
    for (name, value) in &info.metadata.user {
        output.line(&format!("meta          {}={}", show_key(name.as_bytes()), show_key(value)))?;
    }
    Ok(())
}

fn print_store(output: &mut Output, stat: &Stat) -> anyhow::Result<()> {
    let bytes = |blocks: u64| Size(blocks.saturating_mul(stat.block_bytes.into()));
    output.line(&format!("objects       {}", show_count(stat.objects)))?;
    output.line(&format!("space         {} of {} free", bytes(stat.free_blocks), bytes(stat.blocks)))?;
    if let Some(reason) = &stat.read_only {
        output.line(&format!("read-only     {reason}"))?;
    }
    if stat.uptime_ns > 0 {
        let uptime = Duration::from_nanos(stat.uptime_ns);
        output.line(&format!("server        {}, up {} s", stat.server_version, uptime.as_secs()))?;
    }
    for figure in &stat.figures {
        let value = match figure.unit.as_str() {
            "bytes" => Size(figure.value).to_string(),
            "count" | "" => show_count(figure.value),
            unit => format!("{} {unit}", show_count(figure.value)),
        };
        output.line(&format!("{:32} {value}", figure.name))?;
    }
    Ok(())
}

fn store_json(stat: &Stat, map: Option<&SpaceMap>) -> Value {
    let figures: Map<String, Value> =
        stat.figures.iter().map(|figure| (figure.name.clone(), figure.value.into())).collect();
    let mut object = json!({
        "objects": stat.objects,
        "block_bytes": stat.block_bytes,
        "blocks": stat.blocks,
        "free_blocks": stat.free_blocks,
        "read_only": stat.read_only,
        "uptime_ns": stat.uptime_ns,
        "server_version": stat.server_version,
        "figures": figures,
    });
    if let (Some(object), Some(map)) = (object.as_object_mut(), map) {
        object.insert("map".into(), map.json());
    }
    object
}
