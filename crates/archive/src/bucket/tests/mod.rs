//! The bucket against a store that fails and breaks its promises, on the virtual clock.

mod faults;
mod folder;
mod outcomes;
mod probe;

use super::ArchiveBucket;
use super::fault::FaultStore;

/// The bucket over `store`, without a limit of PUTs.
pub(super) fn over(store: &FaultStore, seed: u64) -> ArchiveBucket {
    store.bucket(seed)
}
