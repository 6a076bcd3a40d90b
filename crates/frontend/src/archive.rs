//! The archive of the store, as frontends see it: a write can be waited for until it is safe outside of this machine.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use shoal_base::task::Boxed;

/// An archive that runs beside the store.
pub trait ArchiveFrontier: Send + Sync {
    /// Waits until every write that is durable now is in the archive, for at most this time (`None`: as long as it takes). Returns whether
    /// it is.
    fn wait(&self, time: Option<Duration>) -> Boxed<'static, bool>;
}

/// The archive of a server, once it runs. Clones share it.
#[derive(Clone, Default)]
pub struct ArchiveLink(Arc<OnceLock<Arc<dyn ArchiveFrontier>>>);

impl std::fmt::Debug for ArchiveLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArchiveLink({})", if self.0.get().is_some() { "on" } else { "off" })
    }
}

impl ArchiveLink {
    /// Sets the archive. A second call has no effect: a server has one.
    pub fn set(&self, archive: Arc<dyn ArchiveFrontier>) {
        let _ = self.0.set(archive);
    }

    /// The archive; `None` if the server has none.
    #[must_use]
    pub fn get(&self) -> Option<&Arc<dyn ArchiveFrontier>> {
        self.0.get()
    }
}
