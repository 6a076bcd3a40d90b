//! Damaged ranges: keys whose existence is unknown. A command that lists shows the other keys, names the ranges at its end, and fails.

use serde_json::{Map, Value};
use shoal_client::DamagedRange;
use shoal_transfer::report::DamagedRanges;
use shoal_transfer::text::{counted, show_key};

use crate::failure::Reported;
use crate::output::{set_bytes, warn};

/// Ranges that are named one by one; the rest is only counted.
const NAMED_MAX: usize = 100;

/// The ranges as JSON.
pub(crate) fn json(damage: &DamagedRanges) -> Vec<Value> {
    damage.ranges().iter().map(range_json).collect()
}

/// Names the ranges on standard error, if there are any; objects in them `are_what`.
///
/// # Errors
/// [`Reported`], if there are any.
pub(crate) fn conclude(damage: &DamagedRanges, are_what: &str) -> anyhow::Result<()> {
    let ranges = damage.ranges();
    if ranges.is_empty() {
        return Ok(());
    }
    for range in ranges.iter().take(NAMED_MAX) {
        warn(&format!("shoal: warning: {}", words(range)));
    }
    let more = ranges.len().saturating_sub(NAMED_MAX);
    if more > 0 {
        warn(&format!("shoal: warning: {} more", counted(more as u64, "damaged range")));
    }
    warn(&format!(
        "shoal: objects in damaged ranges {are_what}; stop the server and use `shoal check --repair` to restore those in \
         the log, and `--acknowledge` to give up the rest"
    ));
    Err(Reported.into())
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

    #[test]
    fn a_damaged_range_is_a_failure_with_its_keys() {
        let mut damage = DamagedRanges::default();
        assert!(conclude(&damage, "are missing").is_ok());
        let range =
            DamagedRange { tablet: TabletId(1), from: "b".into(), to: None, block: 7, why: "torn".into() };
        assert_eq!(words(&range), "keys of tablet 1 from \"b\" to the last cannot be read: torn");
        damage.add(vec![range]);
        let json = json(&damage);
        assert!(json[0]["from"] == "b" && json[0]["to"].is_null());
        assert!(conclude(&damage, "are missing").unwrap_err().is::<Reported>());
    }
}
