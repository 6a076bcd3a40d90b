//! The runs that an entry owns, and those that it adopts.

use shoal_base::{Lsn, Run};
use shoal_common::error::Error;
use shoal_device::Device;
use shoal_pool::Pool;
use smallvec::SmallVec;

use crate::entry::{Entry, Home};
use crate::read::{Located, read_joined};

/// All runs of an entry. If its manifest cannot be read, the result is the manifest's own runs and the error.
pub async fn owned_runs(
    device: &Device,
    pool: &Pool,
    entry: &Entry,
    version: Lsn,
) -> (Vec<Run>, Option<Error>) {
    match &entry.home {
        // A packed run belongs to the tablet, and is freed when none of its values is alive.
        Home::Inline | Home::Packed { .. } => (Vec::new(), None),
        Home::Extents { runs, .. } => (runs.to_vec(), None),
        Home::Manifest { runs, .. } => match Located::find(device, pool, entry, version).await {
            Ok(located) => (located.runs().iter().chain(runs).copied().collect(), None),
            Err(error) => (runs.to_vec(), Some(error)),
        },
    }
}

/// The runs of the manifest of a body; none if it has no manifest.
#[must_use]
pub fn manifest_of(body: &[u8]) -> SmallVec<[Run; 1]> {
    match Entry::decode(body) {
        Ok((Entry { home: Home::Manifest { runs, .. }, .. }, _)) => runs,
        _ => SmallVec::new(),
    }
}

/// The runs that the record of a joined value owns before its apply: those of the manifest and of the metadata before the value. The others
/// belong to the parts until then (INV-44). If the manifest cannot be read, the result is the manifest's own runs and the error.
pub async fn adopting_runs(
    device: &Device,
    pool: &Pool,
    entry: &Entry,
    version: Lsn,
) -> (Vec<Run>, Option<Error>) {
    match (read_joined(device, pool, entry, version).await, &entry.home) {
        (Ok(Some(manifest)), Home::Manifest { runs, .. }) => {
            (manifest.runs_in_front().iter().chain(runs).copied().collect(), None)
        }
        (Err(error), Home::Manifest { runs, .. }) => (runs.to_vec(), Some(error)),
        _ => owned_runs(device, pool, entry, version).await,
    }
}
