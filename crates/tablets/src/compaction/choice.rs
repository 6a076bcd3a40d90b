//! Picks the next compaction of a tablet's layers: by their number and size, or because reads have paid for one.
//!
//! A get searches every layer above its entry, a listing reads all layers, and a compaction costs a few such searches for each entry.
//! So reads pay for compactions: after as many searches as a compaction costs, layers are compacted even if they are too few or too
//! small for a compaction by size. A store that is loaded and then read soon reads like one tree, and a store without reads is not
//! rewritten for readers. Either costs at most twice the optimum, as in every rent-or-buy problem.
//!
//! An entry below a newer one or a tombstone takes space until a compaction into the base drops it. Under load it stays until the layers are
//! large; once little is written, the layers are compacted if enough entries are dead.

use shoal_tree::Root;
use shoal_tree::layers::{LAYERS_MAX, Layers, Trees};

use crate::checkpoint::checkpointer::Checkpointer;
use crate::checkpoint::pause;
use crate::tablet::view::Tablet;

/// The time after which an unreadable layer is tried again.
const TRY_AGAIN_NS: u64 = 600_000_000_000;
/// Layers of about one size that are compacted into one.
pub const LAYERS_A_TIER: usize = 8;
/// Entries of the largest layers of the lowest tier but one; each tier has eight times as many.
const TIER_ENTRIES: u64 = 1024;
const TIERS_MAX: u32 = 12;
/// Reads pay for a compaction into the base only if the layers have at least this fraction of its entries. The compaction may rewrite the
/// whole base, so this bounds the rewritten entries per entry of a layer.
const BASE_FOR_READERS: u64 = 16;

/// Dead entries pay for a compaction into the base in a quiet store if they are at least this fraction of the live ones: nine entries are
/// written for a dead one at most.
const DEAD_FOR_SPACE: u64 = 8;

/// A step of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextCompaction {
    /// Compact this many of the newest layers into one.
    Newest(usize),
    /// Compact a slice of the oldest layers into the base.
    Base,
}

/// The number of the newest layers that become one, with `least` layers of one size or more among them: such layers are expensive
/// to search, and cheap to compact.
pub fn full_tier(list: &[Root], least: usize) -> Option<usize> {
    let tier_of = |root: &Root| (root.entries / TIER_ENTRIES).max(1).ilog(LAYERS_A_TIER as u64);
    (0..TIERS_MAX).find_map(|tier| {
        let leading = list.iter().take_while(|root| tier_of(root) <= tier).count();
        let full = list[..leading].iter().filter(|root| tier_of(root) == tier).count();
        (full >= least).then_some(leading)
    })
}

/// The number of layers of one size that become one, in a tablet of `layers` layers. While a compaction into the base runs, new layers come
/// above it: the fewer places are left, the sooner these are compacted with each other.
pub fn tier_for(layers: usize) -> usize {
    match LAYERS_MAX.saturating_sub(layers) {
        0..=8 => 2,
        9..=16 => LAYERS_A_TIER / 2,
        _ => LAYERS_A_TIER,
    }
}

/// The reason for a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The layers are many or large, or reads have paid for a compaction.
    BySize,
    /// Their pages block relocation, or the number of layers is at its limit.
    ByForce,
    /// A write finds no room. Compacts into the base only, because a compaction among layers frees no more than it takes.
    ForRoom,
}

impl Checkpointer {
    /// The tablets that need a compaction, the most urgent first: compactions among layers, which are short and keep gets cheap; then
    /// started compactions into the base, which free the pages of their layers only at the end; then by the ratio of entries in layers
    /// to entries in the base.
    pub fn wanting_compaction(&self) -> Vec<&Tablet> {
        let urgency = |tablet: &Tablet| {
            let trees = tablet.view().trees.clone();
            let layers = &trees.layers;
            let by_base = layers.entries().saturating_mul(1000) / self.due_entries(&trees.base).max(1);
            Some(match self.next_compaction(tablet, &trees)? {
                NextCompaction::Newest(_) => (2, layers.list.len() as u64),
                NextCompaction::Base => (u8::from(layers.compacting > 0), by_base),
            })
        };
        let all = self.tablets.all().iter();
        let mut wanting: Vec<_> = all.filter_map(|tablet| Some((urgency(tablet)?, &**tablet))).collect();
        wanting.sort_by_key(|&(urgency, _)| std::cmp::Reverse(urgency));
        wanting.into_iter().map(|(_, tablet)| tablet).collect()
    }

    /// Returns true if layers are to be compacted, or are being compacted.
    pub(crate) fn wants_compaction(&self) -> bool {
        !self.wanting_compaction().is_empty()
    }

    /// The next step of the compactions of a tablet.
    pub fn next_compaction(&self, tablet: &Tablet, trees: &Trees) -> Option<NextCompaction> {
        let layers = &*trees.layers;
        let is_blocked = self.is_blocked(tablet, layers);
        // A compaction that met damage is blocked: its layers above the damage can be compacted with each other, too.
        let free =
            if is_blocked { readable_above(tablet, layers) } else { layers.list.len() - layers.compacting };
        // Skip the layers of running compactions.
        let free = &layers.list[..free.min(tablet.compactions.unclaimed(&layers.list))];
        let due = self.due_entries(&trees.base);
        if let Some(count) = full_tier(free, tier_for(layers.list.len())) {
            let entries: u64 = free[..count].iter().map(|root| root.entries).sum();
            // A compaction into the base takes large layers soon: do not write them twice.
            if is_blocked || entries < due / 2 || layers.list.len() >= LAYERS_MAX / 2 {
                return Some(NextCompaction::Newest(count));
            }
        }
        if is_blocked {
            return (layers.list.len() >= LAYERS_MAX / 2 && free.len() > 1)
                .then_some(NextCompaction::Newest(free.len()));
        }
        let is_heavy = layers.entries() >= due;
        let is_due = layers.compacting > 0 || is_heavy || layers.list.len() >= LAYERS_MAX * 3 / 4;
        let gives_space = self.quiet.is_quiet() && has_many_dead(trees);
        if (is_due || gives_space) && !layers.list.is_empty() {
            return Some(NextCompaction::Base);
        }
        self.paid_compaction(tablet, trees, free)
    }

    /// The compaction that reads have paid for, if none is due by size. `free` are the layers that can be compacted with each other.
    fn paid_compaction(&self, tablet: &Tablet, trees: &Trees, free: &[Root]) -> Option<NextCompaction> {
        let searches = tablet.layer_searches.count();
        let entries = trees.layers.entries();
        let is_worth_a_base = entries > 0 && entries >= trees.base.entries / BASE_FOR_READERS;
        if is_worth_a_base && searches >= self.base_price(trees) {
            return Some(NextCompaction::Base);
        }
        let count = full_tier(free, 2)?;
        let price = self.price(free[..count].iter().map(|root| root.entries).sum());
        (searches >= price).then_some(NextCompaction::Newest(count))
    }

    /// Subtracts the price of a compaction from the searches that reads have paid: of layers of `trees` with `entries` entries, or, if
    /// `None`, into the base.
    pub fn pay(&self, tablet: &Tablet, trees: &Trees, entries: Option<u64>) {
        let most = self.base_price(trees);
        tablet.layer_searches.pay(entries.map_or(most, |entries| self.price(entries)), most);
    }

    /// The searches that pay for a compaction of all layers of a tablet into its base.
    fn base_price(&self, trees: &Trees) -> u64 {
        self.price(trees.base.entries + trees.layers.entries())
    }

    /// The searches that pay for a compaction of this many entries, read or written.
    fn price(&self, entries: u64) -> u64 {
        entries.saturating_mul(self.tuning.searches_per_entry)
    }

    /// Entries of layers that make a compaction into the base due.
    fn due_entries(&self, base: &Root) -> u64 {
        base.entries * self.tuning.merge_permille / 1000
    }

    /// The length of the pause after an apply of `tablet`, in thousandths of the time of the apply. Zero if compactions keep up or are
    /// blocked.
    pub fn pause_permille(&self, tablet: &Tablet) -> u64 {
        let trees = tablet.view().trees.clone();
        if self.helpers.is_none() || self.closing.is_begun() || self.is_blocked(tablet, &trees.layers) {
            return 0;
        }
        pause::permille(&trees.layers, self.due_entries(&trees.base).max(self.tuning.layers_from))
    }

    /// Returns true if one of these layers could not be read a short time ago.
    pub(crate) fn is_blocked(&self, tablet: &Tablet, layers: &Layers) -> bool {
        let mut unreadable = tablet.unreadable.lock();
        if unreadable.is_some_and(|(_, since)| self.now_ns().saturating_sub(since) >= TRY_AGAIN_NS) {
            *unreadable = None;
        }
        unreadable.is_some_and(|(root, _)| layers.list.contains(&root))
    }
}

/// Returns true if a compaction into the base would drop enough entries: shadowed ones, deleted ones and tombstones.
fn has_many_dead(trees: &Trees) -> bool {
    let entries = trees.base.entries.saturating_add(trees.layers.entries());
    entries.saturating_sub(trees.live()) >= (trees.live() / DEAD_FOR_SPACE).max(1)
}

/// Layers above the one that could not be read.
pub(crate) fn readable_above(tablet: &Tablet, layers: &Layers) -> usize {
    let unreadable = tablet.unreadable.lock().map(|(root, _)| root);
    layers.list.iter().position(|root| Some(*root) == unreadable).unwrap_or(layers.list.len())
}
