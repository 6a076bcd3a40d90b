//! The bucket against a store that fails and lies, on the virtual clock.

mod faults;
mod folder;
mod outcomes;
mod probe;

use std::sync::Arc;
use std::time::Duration;

use shoal_base::SeededEntropy;

use super::fault::FaultStore;
use super::{ArchiveBucket, BucketOptions};

/// The bucket over `store`, without a limit of PUTs.
pub(super) fn over(store: &FaultStore, seed: u64) -> ArchiveBucket {
    let options = BucketOptions { puts_per_second: 1_000_000, patience: Duration::from_secs(300) };
    ArchiveBucket::over(Box::new(store.clone()), options, Arc::new(SeededEntropy::new(seed)))
}
