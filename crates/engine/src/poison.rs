//! The first failed write or flush of log, pages or superblock makes the store read-only for the life of the process (R20).

use std::future::Future;
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::plant::{Plant, planted};

/// Whether the store is poisoned, and by what.
#[derive(Default)]
pub(crate) struct Poison {
    reason: OnceLock<String>,
    fence: Fence,
}

impl Poison {
    /// Poisons the store; the first reason stays. Says so in the log, once.
    pub(crate) fn set(&self, reason: String) {
        if planted(Plant::NotPoisoned) {
            return;
        }
        if self.reason.set(reason.clone()).is_ok() {
            tracing::error!(
                "the store is read-only from now on: {reason}; reads go on; restart to recover from the device"
            );
        }
    }

    /// The reason, where it is poisoned.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// Nothing, where the store may be written.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub(crate) fn check(&self) -> Result<()> {
        self.reason().map_or(Ok(()), |reason| Err(Error::Poisoned(reason.to_owned())))
    }

    /// Runs something that ends with a flush, or is a durable write. It is done only if no flush beside it or before it failed
    /// (`fence.rs`); where it fails, the store is poisoned before anybody can rely on another one.
    ///
    /// # Errors
    /// As `flush`; [`Error::Poisoned`] where another one failed.
    pub(crate) async fn flushed(&self, flush: impl Future<Output = Result<()>>) -> Result<()> {
        let failed =
            |error: &Error| self.set(format!("what was written could not be made durable ({error})"));
        self.fence.pass(flush, failed).await?;
        self.check()
    }
}
