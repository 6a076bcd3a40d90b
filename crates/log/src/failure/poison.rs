//! The first failed write or flush of log, pages or superblock makes the store read-only for the life of the process
//! (R20). A store opened read-only is so from its first moment: every check before a write or a flush fails.

use std::future::Future;
use std::sync::OnceLock;

use shoal_common::error::{Error, Result};
use shoal_common::event::Notifier;
use shoal_common::injected_bug::{Bug, injected};

use super::fence::Fence;

/// The poison of a store, with its reason once it is set.
#[derive(Default)]
pub struct Poison {
    reason: OnceLock<String>,
    /// The reason why the data file is not this store's any more: acknowledged writes may be gone.
    displaced: OnceLock<String>,
    /// The store was opened read-only: no operation failed.
    opened_read_only: bool,
    fence: Fence,
    /// Notifies when the reason is set.
    happened: Notifier,
}

impl Poison {
    /// The poison of a store that is opened read-only.
    pub fn read_only() -> Self {
        let reason = OnceLock::from("it was opened read-only".to_owned());
        Self { reason, opened_read_only: true, ..Self::default() }
    }

    /// Poisons the store, and logs it once; the first reason stays.
    pub fn set(&self, reason: String) {
        if injected(Bug::NotPoisoned) {
            return;
        }
        if self.reason.set(reason.clone()).is_ok() {
            tracing::error!(
                "the store is read-only from now on: {reason}; reads continue; restart to recover from the device"
            );
            self.happened.notify();
        }
    }

    /// Poisons a store whose data file was moved, removed or cut, or that another program writes to: a restart would not find all of it.
    pub(crate) fn set_displaced(&self, reason: String) {
        let _ = self.displaced.set(reason.clone());
        if self.reason.set(reason.clone()).is_ok() {
            tracing::error!(
                "the store is read-only from now on: {reason}; reads continue; do not restart before that"
            );
            self.happened.notify();
        }
    }

    /// The reason if the data file is not this store's any more.
    pub fn displaced(&self) -> Option<&str> {
        self.displaced.get().map(String::as_str)
    }

    /// The reason if the store is poisoned or was opened read-only.
    #[inline]
    pub fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// The reason if an operation failed.
    pub fn failure(&self) -> Option<&str> {
        self.reason().filter(|_| !self.opened_read_only)
    }

    /// Waits until an operation fails; returns the reason.
    pub async fn failed(&self) -> String {
        self.happened.wait_until(|| self.failure().map(str::to_owned)).await
    }

    /// Checks that the store may be written.
    ///
    /// # Errors
    /// [`Error::Poisoned`]; [`Error::ReadOnly`] if it was opened so.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.opened_read_only {
            return Err(Error::ReadOnly);
        }
        self.reason().map_or(Ok(()), |reason| Err(Error::Poisoned(reason.to_owned())))
    }

    /// Runs an operation that finishes with a flush, or is a durable write. It succeeds only if no earlier or overlapping flush
    /// failed (`fence.rs`). If it fails, the store is poisoned before any caller can rely on another flush. A durable write
    /// without room is no failed flush: only that write is lost.
    ///
    /// # Errors
    /// As `flush`; [`Error::Poisoned`] if another flush failed.
    pub async fn flushed(&self, flush: impl Future<Output = Result<()>>) -> Result<()> {
        let failed = |error: &Error| {
            if !matches!(error, Error::NoRoom(_)) {
                self.set(format!("cannot make written data durable ({error})"));
            }
        };
        self.fence.pass(flush, failed).await?;
        self.check()
    }
}
