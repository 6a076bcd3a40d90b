//! `shoal archive pin` and `unpin`.

use std::time::SystemTime;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde_json::json;
use shoal_archive::format::{ArchiveRecord, RecordBase, RecordPin};
use shoal_archive::keeper::{ArchiveError, RecordKeeper};

use super::{hex, read, subject};
use crate::arguments::archive::ArchiveArguments;
use crate::commands::restore::parse_time;
use crate::failure::{NotFound, Usage};
use crate::output::{Output, show_time};

#[derive(Args)]
pub(super) struct PinArguments {
    /// The name of the pin.
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    archive: ArchiveArguments,
    /// The base, as `bases` prints it [default: the newest].
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    base: Option<u64>,
    /// The time until which the base stays, in UTC, such as 2027-01-31T00:00:00Z [default: until `unpin`].
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct UnpinArguments {
    /// The name of the pin.
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    archive: ArchiveArguments,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn parse_id(text: &str) -> Result<u64, String> {
    let is_id = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten();
    id.ok_or_else(|| "16 hexadecimal digits are expected, as `shoal archive bases` prints them".to_owned())
}

/// Changes the record of the archive; `change` may be called several times.
async fn update(
    archive: &ArchiveArguments,
    mut change: impl FnMut(&mut ArchiveRecord) -> anyhow::Result<()>,
) -> anyhow::Result<ArchiveRecord> {
    // The errors of an archive that does not exist are those of a reader.
    read(archive).await?;
    let (_, keeper): (_, RecordKeeper) = archive.open()?;
    let mut refused = None;
    let updated = keeper.update(|record| {
        change(record).map_err(|error| {
            refused = Some(error);
            ArchiveError::Refused("the change is refused".into())
        })
    });
    let updated = updated.await;
    match refused {
        Some(error) => Err(error),
        None => updated.with_context(|| subject(archive)),
    }
}

fn base_of(record: &ArchiveRecord, wanted: Option<u64>) -> anyhow::Result<RecordBase> {
    let found = match wanted {
        Some(id) => record.bases.iter().find(|base| base.id == id),
        None => record.bases.last(),
    };
    let missing = match wanted {
        Some(id) => format!("there is no base {}: `shoal archive bases` lists them", hex(id)),
        None => "the archive has no base yet: the server makes the first one after its start".to_owned(),
    };
    found.copied().ok_or_else(|| NotFound(missing).into())
}

pub(super) async fn pin(arguments: PinArguments) -> anyhow::Result<()> {
    let PinArguments { name, archive, base, until, json } = arguments;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    if let Some(ns) = until.filter(|ns| u128::from(*ns) <= now) {
        return Err(Usage(format!("--until {} is over already", show_time(ns))).into());
    }
    if name.is_empty() {
        return Err(Usage("a pin has a name".into()).into());
    }
    let record = update(&archive, |record| {
        let base = base_of(record, base)?;
        if record.pins.iter().any(|pin| pin.name == name) {
            bail!("there is a pin {name:?} already: `shoal archive unpin` removes it");
        }
        record.pins.push(RecordPin { base: base.id, until_ns: until, name: name.clone() });
        Ok(())
    });
    let record = record.await?;
    let pin = record.pins.iter().find(|pin| pin.name == name);
    let base = pin.and_then(|pin| record.bases.iter().find(|base| base.id == pin.base));
    let base = base.ok_or_else(|| anyhow!("the pin {name:?} was removed meanwhile"))?;
    let mut output = Output::new();
    if json {
        output.json(&json!({
            "name": name, "base": hex(base.id), "version": base.version.0, "taken": show_time(base.taken_ns),
            "until": until.map(show_time),
        }))?;
    } else {
        let until = until.map_or("until it is unpinned".to_owned(), |ns| format!("until {}", show_time(ns)));
        let (id, taken) = (hex(base.id), show_time(base.taken_ns));
        output.line(&format!("base {id} of {taken} (version {}) stays {until}", base.version))?;
    }
    output.finish()
}

pub(super) async fn unpin(arguments: UnpinArguments) -> anyhow::Result<()> {
    let UnpinArguments { name, archive, json } = arguments;
    let mut removed = None;
    update(&archive, |record| {
        let at = record.pins.iter().position(|pin| pin.name == name);
        let at = at
            .ok_or_else(|| NotFound(format!("there is no pin {name:?}: `shoal archive bases` shows them")))?;
        removed = Some(record.pins.remove(at).base);
        Ok(())
    })
    .await?;
    let base = removed.map(hex).unwrap_or_default();
    let mut output = Output::new();
    match json {
        true => output.json(&json!({ "name": name, "base": base }))?,
        false => output.line(&format!("base {base} stays as long as the retention needs it"))?,
    }
    output.finish()
}
