//! The alarm of a shared device: after the flush of a batch, and before its answers, a look whether another opening has the device.
//!
//! The look makes one direction safe. Another opening writes a superblock before it reads the log, so a batch whose look finds none of
//! another opening is in the log that the other one reads later. In the other direction it is an alarm only: the batch itself may have
//! overwritten a batch of the other opening at the same place. A device that refuses the writes of the former owner is the fence.

use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};

use super::Committer;

/// The superblocks of a shared device, as seen by the commits of one opening.
pub trait DeviceWatch: Send + Sync {
    /// Looks at the device itself; returns the evidence of another opening.
    ///
    /// # Errors
    /// As the device: whether another opening has it is not known.
    fn look(&self) -> Boxed<'_, Result<Option<String>>>;
}

impl Committer {
    /// Checks that no other opening has the device; poisons the store if one does, or if that cannot be known (R45). Does nothing
    /// without a [`DeviceWatch`].
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    #[inline]
    pub(super) async fn check_owner(&self) -> Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let reason = match watch.look().await {
            Ok(None) => return Ok(()),
            Ok(Some(reason)) => {
                self.poison.set_displaced(reason.clone());
                reason
            }
            Err(error) => {
                let reason = format!(
                    "the superblocks of a shared device cannot be read after a flush ({error}): whether another server has it is not known"
                );
                self.poison.set(reason.clone());
                reason
            }
        };
        Err(Error::Poisoned(reason))
    }
}
