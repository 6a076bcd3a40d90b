//! `shoal archive status`.

use anyhow::Context;
use serde_json::json;
use shoal_archive::restore::ArchiveReader;
use shoal_archive::status::{ArchiveStatus, status};
use shoal_transfer::text::{counted, show_count};

use super::{Shown, hex, read, subject};
use crate::arguments::size::Size;
use crate::output::{Output, show_time};

pub(super) async fn run(arguments: Shown) -> anyhow::Result<()> {
    let reader = read(&arguments.archive).await?;
    let found = status(&reader).await.with_context(|| subject(&arguments.archive))?;
    let mut output = Output::new();
    if arguments.json {
        output.json(&as_json(&arguments.archive.archive, &reader, &found))?;
    } else {
        for line in lines(&arguments.archive.archive, &reader, &found) {
            output.line(&line)?;
        }
    }
    output.finish()
}

fn volume(reader: &ArchiveReader) -> String {
    reader.record().volume.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn lines(url: &str, reader: &ArchiveReader, found: &ArchiveStatus) -> Vec<String> {
    let record = reader.record();
    let mut lines = vec![format!("archive    {url}, volume {}", volume(reader))];
    let name = &record.owner_name;
    let address = [&name.grpc, &name.resp].into_iter().find(|address| !address.is_empty());
    let address = address.map_or(String::new(), |address| format!(" ({address})"));
    let node = if name.node.is_empty() { "a server without a name" } else { &name.node };
    lines.push(match record.owner_log() {
        Some(log) => {
            format!("owner      {node}{address} since {}, epoch {}", show_time(log.claimed_ns), record.epoch)
        }
        None => format!("owner      nobody; the last one was {node}{address}, epoch {}", record.epoch),
    });
    lines.push(format!(
        "archived   version {} of {}; {}",
        show_count(found.newest.version.0),
        show_time(found.newest.wall_ns),
        counted(record.logs.len() as u64, "log")
    ));
    lines.push(match record.bases.last() {
        None => "restore    nothing is restorable yet: the archive has no base".to_owned(),
        Some(base) => format!(
            "restore    every moment since {}; newest base {} ({}), log since then about {}; about {}",
            show_time(record.oldest_ns),
            show_time(base.taken_ns),
            Size(base.bytes),
            Size(found.bytes_since_base),
            duration(found.restore_seconds)
        ),
    });
    lines.push(format!(
        "bases      {}, {}{}",
        show_count(record.bases.len() as u64),
        counted(record.pins.len() as u64, "pin"),
        if record.building == 0 { "" } else { "; one more is being uploaded" }
    ));
    // The first log of an archive starts behind a gap, too, which nothing of a new store is in.
    for gap in found.gaps.iter().filter(|gap| gap.last.0 > 0) {
        let end = if gap.is_bridged {
            "a base after it exists"
        } else {
            "no base after it exists yet: later moments cannot be restored"
        };
        let last = show_count(gap.last.0);
        lines.push(format!(
            "gap        writes up to version {last} are in no log, before {}; {end}",
            show_time(gap.claimed_ns)
        ));
    }
    lines
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{:.1} h", seconds as f64 / 3_600.0),
    }
}

fn as_json(url: &str, reader: &ArchiveReader, found: &ArchiveStatus) -> serde_json::Value {
    let record = reader.record();
    let log = |log: &shoal_archive::format::RecordLog| {
        json!({
            "id": hex(log.id), "epoch": log.epoch, "first": log.first, "end": log.end,
            "claimed": show_time(log.claimed_ns),
        })
    };
    let gap = |gap: &shoal_archive::status::ArchiveGap| {
        json!({
            "log": hex(gap.log), "last_version": gap.last.0, "claimed": show_time(gap.claimed_ns),
            "has_base_after": gap.is_bridged,
        })
    };
    json!({
        "archive": url,
        "volume": volume(reader),
        "epoch": record.epoch,
        "owned": record.owner.is_some(),
        "node": record.owner_name.node,
        "grpc": record.owner_name.grpc,
        "resp": record.owner_name.resp,
        "owner_since": record.owner_log().map(|log| show_time(log.claimed_ns)),
        "version": found.newest.version.0,
        "archived": show_time(found.newest.wall_ns),
        "restorable": !record.bases.is_empty(),
        "oldest": (!record.bases.is_empty()).then(|| show_time(record.oldest_ns)),
        "oldest_version": record.oldest_lsn.0,
        "bases": record.bases.len(),
        "pins": record.pins.len(),
        "building": record.building != 0,
        "newest_base": record.bases.last().map(|base| hex(base.id)),
        "newest_base_bytes": record.bases.last().map(|base| base.bytes),
        "slots_since_base": found.slots_since_base,
        "log_bytes_since_base": found.bytes_since_base,
        "restore_seconds": found.restore_seconds,
        "logs": record.logs.iter().map(log).collect::<Vec<_>>(),
        "gaps": found.gaps.iter().map(gap).collect::<Vec<_>>(),
    })
}
