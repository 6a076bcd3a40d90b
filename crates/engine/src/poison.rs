//! The first failed write or flush of log, pages or superblock makes the store read-only for the life of the process (R20).

use std::sync::OnceLock;

use crate::error::Error;
use crate::plant::{Plant, planted};

/// Whether the store is poisoned, and by what.
#[derive(Default)]
pub(crate) struct Poison(OnceLock<String>);

impl Poison {
    /// Poisons the store; the first reason stays. Says so in the log, once.
    pub(crate) fn set(&self, reason: String) {
        if planted(Plant::NotPoisoned) {
            return;
        }
        if self.0.set(reason).is_ok() {
            tracing::error!(
                "the store is read-only from now on: {}; reads go on; restart to recover from the device",
                self.0.get().map_or("", String::as_str)
            );
        }
    }

    /// The reason, where it is poisoned.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Nothing, where the store may be written.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.reason().map_or(Ok(()), |reason| Err(Error::Poisoned(reason.to_owned())))
    }
}
