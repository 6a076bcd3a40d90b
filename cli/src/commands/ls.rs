//! `shoal ls`: keys in the order of their bytes.

use std::ffi::OsString;

use clap::Args;
use serde_json::{Map, Value, json};
use shoal_client::{ListEntry, ListRequest, Page};
use shoal_transfer::objects::Objects;
use shoal_transfer::report::DamagedRanges;

use crate::arguments::target::Target;
use crate::output::damage;
use crate::output::{Output, bytes_of, object_json, set_bytes, show_time};
use crate::store::buckets::hint_if_empty;
use crate::store::file::Access;

const EXAMPLES: &str = "Examples:
  shoal ls                          all keys
  shoal ls photos/ --long           with size, time and version
  shoal ls --delimiter /            only the top level, folders ending with /
  shoal ls --json | jq .bytes       one JSON object a line

If a part of the index is damaged, everything else is listed, standard error names the ranges of keys that are missing (--json: a line
with \"damaged\" each, too), and the exit code is 1.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Only keys that start with this.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: OsString,
    /// Also show size, modification time (UTC) and version.
    #[arg(short, long)]
    long: bool,
    /// Print one JSON object a line.
    #[arg(long, conflicts_with = "long")]
    json: bool,
    /// Print keys with D after the prefix as one line up to that D: with / as in a file browser.
    #[arg(short, long, value_name = "D", default_value = "", hide_default_value = true)]
    delimiter: OsString,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let store = &arguments.target.store;
    store.with(Access::Read, async |objects| ls(objects, &arguments).await).await
}

async fn ls(objects: &Objects, arguments: &Arguments) -> anyhow::Result<()> {
    let request = ListRequest {
        bucket: arguments.target.bucket().to_owned(),
        prefix: bytes_of(&arguments.prefix).to_vec(),
        delimiter: bytes_of(&arguments.delimiter).to_vec(),
        ..ListRequest::default()
    };
    let (mut output, mut damaged, mut is_empty) = (Output::new(), DamagedRanges::default(), true);
    let mut pages = objects.pages_of(request);
    while let Some(mut page) = pages.next().await? {
        damaged.add(std::mem::take(&mut page.damaged));
        for line in merged(page) {
            is_empty = false;
            print(&mut output, arguments, line)?;
        }
    }
    if arguments.json {
        for range in damage::json(&damaged) {
            output.json(&json!({ "damaged": range }))?;
        }
    }
    output.finish()?;
    if is_empty {
        hint_if_empty(objects, arguments.target.bucket()).await;
    }
    damage::conclude(&damaged, "are missing here")
}

/// A key, or the common prefix of several.
enum Line {
    Object(ListEntry),
    Prefix(Vec<u8>),
}

impl Line {
    fn key(&self) -> &[u8] {
        match self {
            Self::Object(entry) => &entry.key,
            Self::Prefix(prefix) => prefix,
        }
    }
}

/// The keys and the common prefixes of a page, each of which are in order, in one order.
fn merged(page: Page<ListEntry>) -> impl Iterator<Item = Line> {
    let mut entries = page.entries.into_iter().peekable();
    let mut prefixes = page.common_prefixes.into_iter().peekable();
    std::iter::from_fn(move || match (entries.peek(), prefixes.peek()) {
        (Some(entry), Some(prefix)) if prefix[..] < entry.key[..] => prefixes.next().map(Line::Prefix),
        (Some(_), _) => entries.next().map(Line::Object),
        (None, _) => prefixes.next().map(Line::Prefix),
    })
}

fn print(output: &mut Output, arguments: &Arguments, line: Line) -> anyhow::Result<()> {
    if arguments.json {
        return match &line {
            Line::Object(entry) => output.json(&object_json(&entry.key, &entry.info)),
            Line::Prefix(prefix) => {
                let mut object = Map::new();
                set_bytes(&mut object, "prefix", prefix);
                output.json(&Value::from(object))
            }
        };
    }
    if arguments.long {
        let columns = match &line {
            Line::Object(ListEntry { info, .. }) => {
                format!("{:>12}  {}  {:>10}  ", info.bytes, show_time(info.modified_ns), info.version)
            }
            Line::Prefix(_) => format!("{:>12}  {:20}  {:>10}  ", "-", "-", "-"),
        };
        output.bytes(columns.as_bytes())?;
    }
    output.key_line(line.key())
}
