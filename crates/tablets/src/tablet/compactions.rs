//! The layers that running compactions claim, and the searches that pay for compactions.
//!
//! A compaction may take seconds, so it holds no view of its tablet and does not delay the reuse of blocks that applies free (R9).
//! The pages that it reads stay, because only compactions free pages of layers, and each claims its layers first.

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_common::event::Notifier;
use shoal_tree::Root;

/// The searches of reads in a tablet's layers, one per layer and key, that no compaction has used up yet.
#[derive(Default)]
pub struct LayerSearches(AtomicU64);

impl LayerSearches {
    /// Adds searches of layers.
    #[inline]
    pub fn note(&self, searches: usize) {
        if searches > 0 {
            // In one order with the announcement of a compactor that falls asleep (`common::event::Sleepers`).
            self.0.fetch_add(searches as u64, Ordering::SeqCst);
        }
    }

    /// The searches so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Subtracts `price`, and drops all searches above `most`: years of reads must not pay for the compactions of the next load.
    pub(crate) fn pay(&self, price: u64, most: u64) {
        // May lose a concurrent search.
        self.0.store(self.count().min(most).saturating_sub(price), Ordering::Relaxed);
    }
}

/// The running compactions of a tablet.
#[derive(Default)]
pub struct RunningCompactions {
    claimed: Mutex<Claimed>,
    ended: Notifier,
}

#[derive(Default)]
struct Claimed {
    /// Layers that compactions among layers have claimed.
    layers: Vec<Root>,
    /// True if a compaction into the base runs.
    base: bool,
}

/// The right of a compaction to read its layers and to free their pages, until it is dropped.
pub struct CompactionClaim<'a> {
    compactions: &'a RunningCompactions,
    /// `None`: the layers that are compacted into the base.
    layers: Option<Vec<Root>>,
}

impl RunningCompactions {
    /// Claims some layers for a compaction among them. Returns `None` if another compaction has claimed one of them.
    pub fn claim_layers(&self, layers: &[Root]) -> Option<CompactionClaim<'_>> {
        let mut claimed = self.claimed.lock();
        if claimed.base || layers.iter().any(|root| claimed.layers.contains(root)) {
            return None;
        }
        claimed.layers.extend(layers);
        Some(CompactionClaim { compactions: self, layers: Some(layers.to_vec()) })
    }

    /// Claims all layers for a slice of a compaction into the base. Returns `None` if another compaction runs.
    pub fn claim_base(&self) -> Option<CompactionClaim<'_>> {
        let mut claimed = self.claimed.lock();
        if claimed.base || !claimed.layers.is_empty() {
            return None;
        }
        claimed.base = true;
        Some(CompactionClaim { compactions: self, layers: None })
    }

    /// The number of leading layers of `list` that no compaction among layers has claimed.
    pub(crate) fn unclaimed(&self, list: &[Root]) -> usize {
        let claimed = self.claimed.lock();
        list.iter().position(|root| claimed.layers.contains(root)).unwrap_or(list.len())
    }

    /// Waits until no compaction runs.
    pub(crate) async fn wait(&self) {
        let is_idle = || {
            let claimed = self.claimed.lock();
            (!claimed.base && claimed.layers.is_empty()).then_some(())
        };
        self.ended.wait_until(is_idle).await;
    }
}

impl Drop for CompactionClaim<'_> {
    fn drop(&mut self) {
        let mut claimed = self.compactions.claimed.lock();
        match &self.layers {
            Some(layers) => {
                let before = claimed.layers.len();
                claimed.layers.retain(|root| !layers.contains(root));
                let freed = before - claimed.layers.len();
                assert_eq!(freed, layers.len(), "a claim ends once, for each of its layers");
            }
            None => {
                let was_claimed = std::mem::take(&mut claimed.base);
                assert!(was_claimed, "the claim of a base ends once");
            }
        }
        drop(claimed);
        self.compactions.ended.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(entries: u64) -> Root {
        Root { entries, ..Root::EMPTY }
    }

    #[test]
    fn compactions_of_different_layers_run_side_by_side() {
        let compactions = RunningCompactions::default();
        let list = [1, 2, 3, 4].map(layer);
        let older = compactions.claim_layers(&list[2..]).unwrap();
        assert!(compactions.claim_layers(&list[1..3]).is_none() && compactions.claim_base().is_none());
        assert_eq!(compactions.unclaimed(&list), 2);
        let newer = compactions.claim_layers(&list[..2]).unwrap();
        assert_eq!(compactions.unclaimed(&list), 0);
        drop(older);
        assert_eq!(compactions.unclaimed(&list[2..]), 2);
        drop(newer);
        let base = compactions.claim_base().unwrap();
        assert!(compactions.claim_base().is_none() && compactions.claim_layers(&list[..1]).is_none());
        drop(base);
        assert!(compactions.claim_base().is_some());
    }
}
