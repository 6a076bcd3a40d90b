//! Opening LMDB.

use std::path::Path;

use anyhow::Result;

/// Opens the environment in `folder`, which no other process has open; it may grow to `map_bytes`.
pub fn open(folder: &Path, map_bytes: usize) -> Result<heed::Env> {
    let mut options = heed::EnvOpenOptions::new();
    options.map_size(map_bytes).max_dbs(1);
    // SAFETY: no other process has these files open or changes them while they are mapped.
    Ok(unsafe { options.open(folder) }?)
}
