//! An import: the store that it fills, and its rules.
//!
//! Three sources fill a store: `tree/load.rs` (a folder), `tarball/load.rs` (a tar) and `redis/load.rs` (a server of the Redis
//! protocol). The last two are read in order and only once; `feed` puts their values.

pub(crate) mod feed;

use std::sync::Arc;

use shoal_client::Error;
use tokio::runtime::Handle;

use crate::filter::Filter;
use crate::objects::{Objects, is_lasting};
use crate::report::TransferReport;

/// An import.
#[derive(Clone)]
pub struct Import {
    /// The store.
    pub objects: Objects,
    /// The runtime on which the threads of the import wait for the store.
    pub handle: Handle,
    /// The bucket of the new objects.
    pub bucket: String,
    /// Prepended to every key.
    pub prefix: Vec<u8>,
    /// Selects the items that take part.
    pub filter: Filter,
    /// Gets the fate of each item.
    pub report: Arc<TransferReport>,
}

impl Import {
    /// Returns true if `key`, which has the prefix, takes part.
    pub(crate) fn takes(&self, key: &[u8]) -> bool {
        self.filter.takes(key.get(self.prefix.len()..).unwrap_or_default())
    }

    /// Reports that `name` was not stored. Stops the import if all further puts would fail the same way.
    pub(crate) fn failed(&self, name: &str, error: &Error) {
        self.report.failed(name, &error.to_string());
        if is_lasting(error) {
            self.report.stop(&error.to_string());
        }
    }
}
