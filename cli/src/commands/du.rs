//! `shoal du`: the bytes and the number of objects, by prefix.

use std::ffi::OsString;

use clap::Args;
use serde_json::{Map, Value, json};
use shoal_transfer::objects::Objects;
use shoal_transfer::report::DamagedRanges;
use shoal_transfer::text::show_count;

use crate::arguments::size::Size;
use crate::arguments::target::Target;
use crate::output::damage;
use crate::output::{Output, bytes_of, set_bytes};
use crate::store::buckets::hint_if_empty;
use crate::store::file::Access;

const EXAMPLES: &str = "Examples:
  shoal du                          each top-level folder, and the total
  shoal du photos/ --depth 2        two levels below photos/
  shoal du --depth 0                one line: the total
  shoal du --json | jq .bytes

A folder is the common part of keys up to a delimiter. Bytes are those of values: keys, metadata and the index are not counted
(`shoal stat` shows the space in use). The command reads all keys.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Only keys that start with this.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: OsString,
    /// Levels of folders to show below PREFIX.
    #[arg(short = 'L', long, value_name = "N", default_value_t = 1)]
    depth: usize,
    /// The delimiter of folder names.
    #[arg(long, value_name = "D", default_value = "/")]
    delimiter: OsString,
    /// Show exact byte counts.
    #[arg(long, conflicts_with = "json")]
    bytes: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let store = &arguments.target.store;
    store.with(Access::Read, async |objects| du(objects, &arguments).await).await
}

async fn du(objects: &Objects, arguments: &Arguments) -> anyhow::Result<()> {
    let prefix = bytes_of(&arguments.prefix);
    let mut pages = objects.pages(arguments.target.bucket(), prefix);
    let (mut output, mut damaged) = (Output::new(), DamagedRanges::default());
    let mut folders = Folders::new(prefix.len(), bytes_of(&arguments.delimiter), arguments.depth);
    while let Some(page) = pages.next().await? {
        damaged.add(page.damaged);
        for entry in page.entries {
            folders
                .add(&entry.key, entry.info.bytes, |name, usage| show(&mut output, arguments, name, usage))?;
        }
    }
    let total = folders.end(|name, usage| show(&mut output, arguments, name, usage))?;
    if arguments.json {
        for range in damage::json(&damaged) {
            output.json(&json!({ "damaged": range }))?;
        }
        output.json(&json!({ "total": true, "bytes": total.bytes, "objects": total.objects }))?;
    } else {
        columns(&mut output, arguments, total)?;
        output.line("total")?;
    }
    output.finish()?;
    if total.objects == 0 {
        hint_if_empty(objects, arguments.target.bucket()).await;
    }
    damage::conclude(&damaged, "are not counted here")
}

fn show(output: &mut Output, arguments: &Arguments, name: &[u8], usage: Usage) -> anyhow::Result<()> {
    if arguments.json {
        let mut object = Map::new();
        set_bytes(&mut object, "prefix", name);
        object.insert("bytes".into(), usage.bytes.into());
        object.insert("objects".into(), usage.objects.into());
        return output.json(&Value::from(object));
    }
    columns(output, arguments, usage)?;
    output.key_line(name)
}

fn columns(output: &mut Output, arguments: &Arguments, usage: Usage) -> anyhow::Result<()> {
    let bytes = if arguments.bytes { usage.bytes.to_string() } else { Size(usage.bytes).to_string() };
    let noun = if usage.objects == 1 { "object" } else { "objects" };
    output.bytes(format!("{bytes:>14}  {:>12} {noun:<7}  ", show_count(usage.objects)).as_bytes())
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Usage {
    bytes: u64,
    objects: u64,
}

impl Usage {
    fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.objects += 1;
    }
}

/// The folders that the present key is in. Keys come in order, so a folder is complete when a key outside of it comes, and
/// only those of one key are in memory.
struct Folders<'a> {
    /// Bytes of the prefix of all keys.
    from: usize,
    delimiter: &'a [u8],
    depth: usize,
    /// From the outermost in: its name, and the objects in it so far.
    open: Vec<(Vec<u8>, Usage)>,
    total: Usage,
}

impl<'a> Folders<'a> {
    fn new(from: usize, delimiter: &'a [u8], depth: usize) -> Self {
        // Without a delimiter there are no folders.
        let depth = if delimiter.is_empty() { 0 } else { depth };
        Self { from, delimiter, depth, open: Vec::new(), total: Usage::default() }
    }

    /// Counts the object at `key`; shows the folders that are complete, the inner ones first.
    fn add(
        &mut self,
        key: &[u8],
        bytes: u64,
        mut show: impl FnMut(&[u8], Usage) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let same = self.open.iter().take_while(|(name, _)| key.starts_with(name)).count();
        self.close(same, &mut show)?;
        while self.open.len() < self.depth {
            let from = self.open.last().map_or(self.from, |(name, _)| name.len());
            let rest = key.get(from..).unwrap_or_default();
            let Some(at) = rest.windows(self.delimiter.len()).position(|window| window == self.delimiter)
            else {
                break;
            };
            self.open.push((key[..from + at + self.delimiter.len()].to_vec(), Usage::default()));
        }
        self.total.add(bytes);
        self.open.iter_mut().for_each(|(_, usage)| usage.add(bytes));
        Ok(())
    }

    fn close(
        &mut self,
        remaining: usize,
        show: &mut impl FnMut(&[u8], Usage) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for (name, usage) in self.open.drain(remaining..).rev() {
            show(&name, usage)?;
        }
        Ok(())
    }

    /// Shows the remaining folders; returns the sum of all.
    fn end(mut self, mut show: impl FnMut(&[u8], Usage) -> anyhow::Result<()>) -> anyhow::Result<Usage> {
        self.close(0, &mut show)?;
        Ok(self.total)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each folder of up to `depth` levels is shown once, with the sums over all keys that start with its name.
        #[test]
        fn folders_have_the_sums_of_their_keys(
            keys in prop::collection::btree_set("[ab/]{1,6}", 0..40),
            prefix in "[ab/]{0,2}",
            depth in 0..4_usize,
        ) {
            let keys: BTreeSet<String> = keys.into_iter().filter(|key| key.starts_with(&prefix)).collect();
            let mut expected: BTreeMap<String, Usage> = BTreeMap::new();
            for key in &keys {
                let ends = key.match_indices('/').map(|(at, _)| at + 1).filter(|&end| end > prefix.len());
                for end in ends.take(depth) {
                    expected.entry(key[..end].to_owned()).or_default().add(key.len() as u64);
                }
            }
            let mut folders = Folders::new(prefix.len(), b"/", depth);
            let mut shown = Vec::new();
            let mut show = |name: &[u8], usage| {
                shown.push((String::from_utf8(name.to_vec()).unwrap(), usage));
                Ok(())
            };
            for key in &keys {
                folders.add(key.as_bytes(), key.len() as u64, &mut show).unwrap();
            }
            let total = folders.end(&mut show).unwrap();
            prop_assert_eq!(total.objects, keys.len() as u64);
            prop_assert_eq!(shown.len(), expected.len());
            prop_assert_eq!(shown.into_iter().collect::<BTreeMap<_, _>>(), expected);
        }
    }
}
