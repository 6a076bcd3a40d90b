//! `shoal stat`: the attributes of an object, or the state of the store.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde_json::{Map, Value, json};
use shoal_client::{FrontendFigures, ObjectAttributes, RequestFigures, Stat};
use shoal_transfer::objects::Objects;
use shoal_transfer::text::{about, counted, show_count, show_key};
use tokio::time::sleep;

use crate::arguments::size::Size;
use crate::arguments::target::Target;
use crate::output::space_map::{SpaceMap, read_space};
use crate::output::summary::{Summary, show_ns};
use crate::output::{Output, bytes_of, object_json, show_time};
use crate::store::buckets::no_such_object;
use crate::store::file::Access;

/// The time between the two looks that rates follow from.
const RATE_TIME: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  shoal stat notes/today             size, version, time and metadata of an object
  shoal stat                         objects, room, rates and health
  shoal stat --all                   every figure, with its unit
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
    /// Show every figure about the store and the server, with its unit.
    #[arg(long, conflicts_with_all = ["key", "json", "map"])]
    all: bool,
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
    let store = arguments.target.store.over_one_connection();
    store.with(Access::Read, async |objects| stat(objects, &arguments).await).await
}

async fn stat(objects: &Objects, arguments: &Arguments) -> anyhow::Result<()> {
    let mut output = Output::new();
    match &arguments.key {
        Some(key) => {
            let (bucket, key) = (arguments.target.bucket(), bytes_of(key));
            let info = match objects.head(bucket, key).await {
                Ok(Some(info)) => Ok(info),
                Ok(None) => Err(no_such_object(objects, bucket, key).await),
                Err(error) => Err(error.into()),
            };
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
                if arguments.all {
                    let stat = objects.stat().await.context("cannot get the figures of the store")?;
                    print_all(&mut output, &stat)?;
                } else {
                    print_summary(&mut output, objects).await?;
                }
            }
        }
    }
    output.finish()
}

fn print_object(output: &mut Output, key: &[u8], info: &ObjectAttributes) -> anyhow::Result<()> {
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

/// Prints a few lines for people; the rates need a short wait.
async fn print_summary(output: &mut Output, objects: &Objects) -> anyhow::Result<()> {
    const WHAT: &str = "cannot get the figures of the store";
    let (first, began) = (objects.stat().await.context(WHAT)?, Instant::now());
    let lines = if first.frontends.is_empty() {
        Summary::new(&first).lines()
    } else {
        sleep(RATE_TIME).await;
        let now = objects.stat().await.context(WHAT)?;
        Summary::between(&first, &now, began.elapsed()).without_own().lines()
    };
    for (name, text) in lines {
        output.line(&format!("{name:13} {text}"))?;
    }
    Ok(())
}

/// Prints every figure with its unit.
fn print_all(output: &mut Output, stat: &Stat) -> anyhow::Result<()> {
    let block_bytes = u64::from(stat.block_bytes);
    for (name, value) in [("objects", stat.objects), ("block_bytes", block_bytes)] {
        output.line(&format!("{name:32} {}", show_count(value)))?;
    }
    for (name, blocks) in [("blocks", stat.blocks), ("free_blocks", stat.free_blocks)] {
        let bytes = Size(blocks.saturating_mul(block_bytes));
        output.line(&format!("{name:32} {} ({bytes})", counted(blocks, "block")))?;
    }
    for figure in &stat.figures {
        let count = show_count(figure.value);
        let value = match figure.unit.as_str() {
            "bytes" => format!("{} ({})", counted(figure.value, "byte"), Size(figure.value)),
            "blocks" => {
                let bytes = Size(figure.value.saturating_mul(block_bytes));
                format!("{} ({bytes})", counted(figure.value, "block"))
            }
            "count" | "" => count,
            unit => format!("{count} {unit}"),
        };
        output.line(&format!("{:32} {value}", figure.name))?;
    }
    for frontend in &stat.frontends {
        for request in &frontend.requests {
            let name = format!("{}.{}.{}", frontend.name, request.operation, request.result);
            let durations = &request.durations;
            let quantile = |permille| show_ns(durations.quantile_ns(permille));
            output.line(&format!(
                "{name:32} {} requests, half of them up to {}, 99 % up to {}",
                show_count(durations.count()),
                quantile(500),
                quantile(990)
            ))?;
        }
    }
    Ok(())
}

/// All figures for programs.
pub(crate) fn store_json(stat: &Stat, map: Option<&SpaceMap>) -> Value {
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
        "last_backup": last_backup_json(stat),
        "requests": stat.frontends.iter().map(requests_json).collect::<Map<_, _>>(),
    });
    if let (Some(object), Some(map)) = (object.as_object_mut(), map) {
        object.insert("map".into(), map.json());
    }
    object
}

/// The last backup; null if there was none.
fn last_backup_json(stat: &Stat) -> Value {
    match stat.figure("backup.taken") {
        0 => Value::Null,
        taken_s => json!({
            "version": stat.figure("backup.version"),
            "taken": show_time(taken_s.saturating_mul(1_000_000_000)),
            "taken_s": taken_s,
        }),
    }
}

/// The requests of a frontend by operation and result: their number and durations.
fn requests_json(frontend: &FrontendFigures) -> (String, Value) {
    let request = |request: &RequestFigures| {
        let durations = &request.durations;
        let us = |permille| durations.quantile_ns(permille).map(|ns| ns as f64 / 1e3);
        json!({
            "operation": request.operation,
            "result": request.result,
            "count": durations.count(),
            "sum_ns": durations.sum_ns,
            "p50_us": us(500),
            "p99_us": us(990),
        })
    };
    (frontend.name.clone(), frontend.requests.iter().map(request).collect())
}
