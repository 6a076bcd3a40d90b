//! Damaged ranges: keys whose existence is unknown. A command that lists shows the other keys, names the ranges at its
//! end, and fails.

use serde_json::{Map, Value};
use shoal_client::DamagedRange;

use crate::failure::Reported;
use crate::output::{counted, set_bytes, show_key, warn};

/// Ranges that are named one by one; the rest is only counted.
const NAMED_MAX: usize = 100;

/// The damaged ranges of a whole listing, each once.
#[derive(Default)]
pub(crate) struct Damage {
    /// In order of tablet and first key; those of one tablet do not touch.
    ranges: Vec<DamagedRange>,
}

impl Damage {
    /// Takes the ranges of one page.
    pub(crate) fn add(&mut self, ranges: Vec<DamagedRange>) {
        if ranges.is_empty() {
            return;
        }
        self.ranges.extend(ranges);
        self.ranges.sort();
        self.ranges.dedup_by(|next, last| last.join(next));
    }

    /// The ranges, for programs.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.ranges.iter().map(range_json).collect()
    }

    /// Names the ranges on standard error, if there are any; objects in them `are_what`.
    ///
    /// # Errors
    /// [`Reported`], if there are any.
    pub(crate) fn conclude(&self, are_what: &str) -> anyhow::Result<()> {
        if self.ranges.is_empty() {
            return Ok(());
        }
        for range in self.ranges.iter().take(NAMED_MAX) {
            warn(&format!("shoal: warning: {}", words(range)));
        }
        let more = self.ranges.len().saturating_sub(NAMED_MAX);
        if more > 0 {
            warn(&format!("shoal: warning: {} more", counted(more as u64, "damaged range")));
        }
        warn(&format!(
            "shoal: objects in damaged ranges {are_what}; stop the server and use `shoal check --repair` to restore those in \
             the log, and `--acknowledge` to give up the rest"
        ));
        Err(Reported.into())
    }
}

fn words(range: &DamagedRange) -> String {
    let from =
        if range.from.is_empty() { "the first".to_owned() } else { format!("{:?}", show_key(&range.from)) };
    let to = range.to.as_ref().map_or("the last".to_owned(), |to| format!("before {:?}", show_key(to)));
    format!("keys of tablet {} from {from} to {to} cannot be read: {}", range.tablet, range.why)
}

fn range_json(range: &DamagedRange) -> Value {
    let mut object = Map::new();
    object.insert("tablet".into(), range.tablet.0.into());
    set_bytes(&mut object, "from", &range.from);
    match &range.to {
        Some(to) => set_bytes(&mut object, "to", to),
        None => _ = object.insert("to".into(), Value::Null),
    }
    object.insert("block".into(), range.block.into());
    object.insert("why".into(), range.why.clone().into());
    object.into()
}

#[cfg(test)]
mod tests {
    use shoal_client::TabletId;

    use super::*;

    fn range(tablet: u16, from: &str, to: Option<&str>) -> DamagedRange {
        let to = to.map(Into::into);
        DamagedRange { tablet: TabletId(tablet), from: from.into(), to, block: 7, why: "torn".into() }
    }

    #[test]
    fn a_range_that_many_pages_name_is_named_once() {
        let mut damage = Damage::default();
        assert!(damage.conclude("are missing").is_ok());
        damage.add(vec![range(1, "b", Some("d")), range(0, "b", Some("d"))]);
        damage.add(vec![range(1, "b", Some("d")), range(1, "d", None)]);
        assert_eq!(damage.ranges, [range(0, "b", Some("d")), range(1, "b", None)]);
        let json = damage.json();
        assert_eq!((&json[0]["from"], &json[0]["to"]), (&"b".into(), &"d".into()));
        assert!(json[1]["to"].is_null());
        assert!(damage.conclude("are missing").unwrap_err().is::<Reported>());
        assert_eq!(words(&damage.ranges[1]), "keys of tablet 1 from \"b\" to the last cannot be read: torn");
    }
}
