//! The first failed write or flush of log, pages or superblock makes the store read-only for the life of the process (R20).
//! A store that is opened read-only is so from its first moment: whoever asks before a write or a flush is refused.

use std::future::Future;
use std::sync::OnceLock;

use crate::common::error::{Error, Result};
use crate::log::fence::Fence;
use crate::testing::injected_bug::{Bug, injected};

/// Whether the store is poisoned, and by what.
#[derive(Default)]
pub(crate) struct Poison {
    reason: OnceLock<String>,
    /// Nothing failed: the store was opened so.
    opened_read_only: bool,
    fence: Fence,
}

impl Poison {
    /// Of a store that is opened read-only.
    pub(crate) fn read_only() -> Self {
        let reason = OnceLock::from("it was opened read-only".to_owned());
        Self { reason, opened_read_only: true, fence: Fence::default() }
    }

    /// Poisons the store; the first reason stays. Says so in the log, once.
    pub(crate) fn set(&self, reason: String) {
        if injected(Bug::NotPoisoned) {
            return;
        }
        if self.reason.set(reason.clone()).is_ok() {
            tracing::error!(
                "the store is read-only from now on: {reason}; reads go on; restart to recover from the device"
            );
        }
    }

    /// The same where the data file is not at its place any more: a restart would not find it.
    pub(crate) fn set_displaced(&self, reason: String) {
        if self.reason.set(reason.clone()).is_ok() {
            tracing::error!(
                "the store is read-only from now on: {reason}; reads go on; do not restart before that"
            );
        }
    }

    /// The reason, where it is poisoned or was opened read-only.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// The reason, where something failed.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.reason().filter(|_| !self.opened_read_only)
    }

    /// Nothing, where the store may be written.
    ///
    /// # Errors
    /// [`Error::Poisoned`]; [`Error::ReadOnly`] where it was opened so.
    pub(crate) fn check(&self) -> Result<()> {
        if self.opened_read_only {
            return Err(Error::ReadOnly);
        }
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
