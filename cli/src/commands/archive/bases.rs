//! `shoal archive bases`.

use serde_json::json;
use shoal_transfer::text::{counted, show_count};

use super::{Shown, hex, read};
use crate::arguments::size::Size;
use crate::output::{Output, show_time};

pub(super) async fn run(arguments: Shown) -> anyhow::Result<()> {
    let reader = read(&arguments.archive).await?;
    let record = reader.record();
    let mut output = Output::new();
    let mut list = Vec::new();
    for base in &record.bases {
        let pins: Vec<_> = record.pins.iter().filter(|pin| pin.base == base.id).collect();
        let continues = reader.logs_after(base).is_some();
        if arguments.json {
            let pins: Vec<_> = pins
                .iter()
                .map(|pin| json!({ "name": pin.name, "until": pin.until_ns.map(show_time) }))
                .collect();
            list.push(json!({
                "id": hex(base.id), "version": base.version.0, "taken": show_time(base.taken_ns),
                "objects": base.objects, "bytes": base.bytes, "parts": base.parts,
                "log": hex(base.log), "seq": base.seq, "moments_after": continues, "pins": pins,
            }));
            continue;
        }
        let mut line = format!(
            "{}  {}  version {}  {}, {}",
            hex(base.id),
            show_time(base.taken_ns),
            base.version,
            counted(base.objects, "object"),
            Size(base.bytes)
        );
        if !continues {
            line.push_str(&format!("  this moment alone (--version {})", base.version));
        }
        for pin in pins {
            let until = pin.until_ns.map_or("for ever".to_owned(), |ns| format!("until {}", show_time(ns)));
            line.push_str(&format!("  pinned {until}: {}", pin.name));
        }
        output.line(&line)?;
    }
    if arguments.json {
        output.json(
            &json!({ "bases": list, "building": (record.building != 0).then(|| hex(record.building)) }),
        )?;
    } else {
        let building = if record.building == 0 { "" } else { ", one more is being uploaded" };
        output.line(&format!("{} bases{building}", show_count(record.bases.len() as u64)))?;
    }
    output.finish()
}
