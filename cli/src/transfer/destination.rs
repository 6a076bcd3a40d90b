//! The store as the other end of an import.

use std::sync::Arc;

use shoal_client::Error;
use tokio::runtime::Handle;

use crate::objects::{Objects, is_lasting};
use crate::transfer::filter::Filter;
use crate::transfer::report::Report;

/// The store that an import fills. `transfer/feed.rs` and `tree/load.rs` bring a source to it.
pub(crate) struct Destination {
    pub(crate) objects: Objects,
    pub(crate) handle: Handle,
    pub(crate) bucket: String,
    /// Put before every key.
    pub(crate) prefix: Vec<u8>,
    pub(crate) filter: Filter,
    pub(crate) report: Arc<Report>,
}

impl Destination {
    /// Reports that `name` could not be stored. A failure that others will have, too, stops the import.
    pub(crate) fn failed(&self, name: &str, error: &Error) {
        self.report.failed(name, &error.to_string());
        if is_lasting(error) {
            self.report.stop(&error.to_string());
        }
    }
}
