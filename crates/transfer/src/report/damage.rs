//! Damaged ranges: keys whose existence is unknown. A listing skips them and names them.

use shoal_client::DamagedRange;

/// The damaged ranges of a whole listing, each once.
#[derive(Clone, Debug, Default)]
pub struct DamagedRanges {
    /// By tablet and first key; ranges of one tablet do not touch.
    ranges: Vec<DamagedRange>,
}

impl DamagedRanges {
    /// Adds the ranges of one page. Ranges that touch are joined.
    pub fn add(&mut self, ranges: Vec<DamagedRange>) {
        if ranges.is_empty() {
            return;
        }
        self.ranges.extend(ranges);
        self.ranges.sort();
        self.ranges.dedup_by(|next, last| last.join(next));
    }

    /// The ranges, in order of tablet and first key.
    pub fn ranges(&self) -> &[DamagedRange] {
        &self.ranges
    }
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
    fn a_range_of_several_pages_is_listed_once() {
        let mut damage = DamagedRanges::default();
        damage.add(vec![range(1, "b", Some("d")), range(0, "b", Some("d"))]);
        damage.add(vec![range(1, "b", Some("d")), range(1, "d", None)]);
        assert_eq!(damage.ranges(), [range(0, "b", Some("d")), range(1, "b", None)]);
    }
}
