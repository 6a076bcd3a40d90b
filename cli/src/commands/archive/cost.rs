//! `shoal archive cost`.

use anyhow::Context;
use clap::Args;
use serde_json::json;
use shoal_archive::format::{ArchiveName, TOMBSTONE_BYTES};
use shoal_archive::restore::ArchiveReader;
use shoal_transfer::text::{counted, show_count};

use super::{read, subject};
use crate::arguments::archive::ArchiveArguments;
use crate::arguments::size::Size;
use crate::output::Output;

/// Seconds of a month.
const MONTH_S: f64 = 30.0 * 86_400.0;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    archive: ArchiveArguments,
    /// The price of a million PUT requests.
    #[arg(long, value_name = "PRICE", default_value_t = 5.0)]
    put_price: f64,
    /// The price of a million GET requests.
    #[arg(long, value_name = "PRICE", default_value_t = 0.4)]
    get_price: f64,
    /// The price of a gigabyte (10^9 bytes) stored for a month.
    #[arg(long, value_name = "PRICE", default_value_t = 0.023)]
    gigabyte_price: f64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Objects of one kind, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Objects {
    count: u64,
    bytes: u64,
}

impl Objects {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

/// All objects of an archive.
#[derive(Clone, Copy, Debug, Default)]
struct Contents {
    slots: Objects,
    tombstones: Objects,
    bases: Objects,
}

async fn count(archive: &ArchiveArguments) -> anyhow::Result<Contents> {
    let (bucket, _) = archive.open()?;
    let mut found = Contents::default();
    for folder in ["log", "base"] {
        let take = |object: shoal_archive::bucket::BucketEntry| match ArchiveName::parse(&object.name) {
            Some(ArchiveName::Slot(_)) if object.bytes == TOMBSTONE_BYTES as u64 => {
                found.tombstones.add(object.bytes)
            }
            Some(ArchiveName::Slot(_)) => found.slots.add(object.bytes),
            Some(ArchiveName::Part { .. } | ArchiveName::BaseEnd { .. }) => found.bases.add(object.bytes),
            Some(ArchiveName::Record) | None => {}
        };
        bucket.list(folder, take).await.with_context(|| subject(archive))?;
    }
    Ok(found)
}

/// PUT requests of a month, and bytes that are stored, as far as the archive shows.
struct Month {
    puts: f64,
    /// GETs of a restore, and of a verification, once each.
    gets: f64,
    gigabytes: f64,
    /// Seconds of the log from which the rate of PUTs is.
    seconds: f64,
}

fn month(reader: &ArchiveReader, found: &Contents, newest_ns: u64) -> Month {
    // The slots that are there were created since the oldest moment.
    let seconds = newest_ns.saturating_sub(reader.record().oldest_ns) as f64 / 1e9;
    let a_month = if seconds > 0.0 { MONTH_S / seconds } else { 0.0 };
    let puts = found.slots.count as f64 * a_month;
    let gets = (2 * found.slots.count + found.bases.count) as f64;
    let bytes = found.slots.bytes + found.tombstones.bytes + found.bases.bytes;
    Month { puts, gets, gigabytes: bytes as f64 / 1e9, seconds }
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let reader = read(&arguments.archive).await?;
    let newest = reader.newest().await.with_context(|| subject(&arguments.archive))?;
    let found = count(&arguments.archive).await?;
    let month = month(&reader, &found, newest.wall_ns);
    let put_price = month.puts / 1e6 * arguments.put_price;
    let get_price = month.gets / 1e6 * arguments.get_price;
    let room_price = month.gigabytes * arguments.gigabyte_price;
    let price = put_price + get_price + room_price;
    let mut output = Output::new();
    if arguments.json {
        let objects = |objects: Objects| json!({ "objects": objects.count, "bytes": objects.bytes });
        output.json(&json!({
            "slots": objects(found.slots), "tombstones": objects(found.tombstones), "bases": objects(found.bases),
            "log_seconds": month.seconds, "puts": month.puts, "gets": month.gets, "gigabytes": month.gigabytes,
            "put_price": put_price, "get_price": get_price, "room_price": room_price, "price": price,
        }))?;
        return output.finish();
    }
    let row = |name: &str, objects: Objects| {
        format!("{name:<10} {}, {}", counted(objects.count, "object"), Size(objects.bytes))
    };
    output.line(&row("log", found.slots))?;
    output.line(&row("ends", found.tombstones))?;
    output.line(&row("bases", found.bases))?;
    let hours = month.seconds / 3_600.0;
    output.line(&format!(
        "a month    {} PUTs {put_price:.2}, at the rate of the last {hours:.1} h; a restore and a verification {get_price:.2}; room {room_price:.2}",
        show_count(month.puts as u64)
    ))?;
    output.line(&format!("together   about {price:.2}, without traffic out of the provider's network"))?;
    output.finish()
}
