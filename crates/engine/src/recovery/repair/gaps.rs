//! The ranges of keys that damage hides.

use shoal_common::error::Result;
use shoal_pool::Pool;
use shoal_tablets::tablet::tree_io::{PoolPages, Remembers, tree_of};
use shoal_tree::layers::Trees;
use shoal_tree::layers::cursor::TreesCursor;
use shoal_tree::layers::walk::DamagedPlace;
use shoal_tree::{Gap, Tree};

/// All damaged ranges of the trees of a tablet, of encoded keys, those of reserved keys included. Neighbours are not
/// joined. Reads every page.
///
/// # Errors
/// As the device, except for failed reads.
pub(crate) async fn gaps_of(pool: &Pool, tree: Tree, trees: &Trees) -> Result<Vec<Gap>> {
    let mut cursor =
        TreesCursor::new(tree, &PoolPages::new(pool).giving_up(true).of_pass(), trees, None, None);
    cursor.approach(&[]);
    let mut gaps = Vec::new();
    while cursor.next().await?.is_some() {
        gaps.extend(cursor.take_gaps());
    }
    gaps.extend(cursor.take_gaps());
    Ok(gaps)
}

/// As [`gaps_of`] for trees of which a walk found these damaged places: reads only the pages on the way to each of them.
/// `None` if a place hides no range that its page alone explains: then only [`gaps_of`] knows.
pub(crate) async fn gaps_at(
    pool: &Pool,
    tree: Tree,
    trees: &Trees,
    damaged: &[DamagedPlace],
) -> Option<Vec<Gap>> {
    let mut gaps = Vec::with_capacity(damaged.len());
    for place in damaged {
        let mut gap = gap_at(pool, tree, trees, place, Remembers::All).await?;
        if place.tree < trees.layers.list.len() {
            // Below the frontier of a merge the base has the entries of this layer (INV-28).
            let from = trees.layers.valid_from(place.tree);
            if gap.high.as_ref().is_some_and(|high| &high[..] <= from) {
                continue;
            }
            if *gap.low < *from {
                gap.low = from.to_vec();
            }
        }
        gaps.push(gap);
    }
    gaps.sort_unstable_by(|one, other| (&one.low, one.block).cmp(&(&other.low, other.block)));
    gaps.dedup();
    assert!(gaps.len() <= damaged.len(), "a page hides one range");
    Some(gaps)
}

/// The range that the page at this place hides; `None` if a search for its first key meets no damage, or that of another
/// page.
async fn gap_at(
    pool: &Pool,
    tree: Tree,
    trees: &Trees,
    place: &DamagedPlace,
    remembers: Remembers,
) -> Option<Gap> {
    let source = PoolPages::new(pool).giving_up(true).remembering(remembers);
    let gap = tree.gap_at(&source, trees.root(place.tree), &place.low).await?;
    (gap.block == place.block).then_some(gap)
}

/// Returns true if none of the pages at these places can be read now either. Reads each of them from the device.
pub(crate) async fn are_still_damaged(
    pool: &Pool,
    identity: [u8; 16],
    (tablet, trees): (shoal_base::TabletId, &Trees),
    damaged: &[DamagedPlace],
) -> bool {
    let tree = tree_of(identity, tablet);
    for place in damaged {
        if gap_at(pool, tree, trees, place, Remembers::Nothing).await.is_none() {
            return false;
        }
    }
    true
}

/// Keys as ranges in order that do not overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyRanges(Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl KeyRanges {
    /// The keys of these ranges: first key and end (exclusive); `None` is the end of the tree.
    pub(crate) fn new(mut ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>) -> Self {
        ranges.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        ranges.dedup_by(|(low, high), (_, last)| {
            let overlaps = last.as_ref().is_none_or(|last| *low <= *last);
            if overlaps {
                *last = last.take().zip(high.take()).map(|(one, two)| one.max(two));
            }
            overlaps
        });
        debug_assert!(
            ranges.is_sorted_by(|one, other| one.1.as_ref().is_some_and(|end| *end < other.0)),
            "ranges overlap"
        );
        Self(ranges)
    }

    /// The keys that these gaps hide.
    pub(crate) fn of(gaps: &[Gap]) -> Self {
        Self::new(gaps.iter().map(|gap| (gap.low.clone(), gap.high.clone())).collect())
    }

    /// Every key.
    pub(crate) fn all() -> Self {
        Self(vec![(Vec::new(), None)])
    }

    /// The keys of these ranges and `keys`.
    pub(crate) fn and(self, keys: Vec<Vec<u8>>) -> Self {
        let each = keys.into_iter().map(|key| {
            let behind = [&key[..], &[0]].concat();
            (key, Some(behind))
        });
        Self::new(self.0.into_iter().chain(each).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        let behind = self.0.partition_point(|(low, _)| &low[..] <= key);
        let last = behind.checked_sub(1).and_then(|at| self.0.get(at));
        last.is_some_and(|(_, high)| high.as_ref().is_none_or(|high| key < &high[..]))
    }
}
