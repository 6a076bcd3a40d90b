//! The runs that an entry owns.

use shoal_base::{Lsn, Run};
use shoal_device::Device;
use shoal_pool::Pool;

use crate::common::error::Error;
use crate::value::entry::{Entry, Home};
use crate::value::read::Located;

/// All runs of an entry, and why the manifest cannot be read that names the others, where that is so: then they are the manifest's.
pub(crate) async fn owned_runs(
    device: &Device,
    pool: &Pool,
    entry: &Entry,
    version: Lsn,
) -> (Vec<Run>, Option<Error>) {
    match &entry.home {
        // A packed run is the tablet's, and freed when nothing in it is alive.
        Home::Inline | Home::Packed { .. } => (Vec::new(), None),
        Home::Extents { runs, .. } => (runs.to_vec(), None),
        Home::Manifest { runs, .. } => match Located::find(device, pool, entry, version).await {
            Ok(located) => (located.runs().iter().chain(runs).copied().collect(), None),
            Err(error) => (runs.to_vec(), Some(error)),
        },
    }
}
