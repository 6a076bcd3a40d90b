//! The opening of a store on a device that another machine can open, too ([`OpenOptions::shared_device`]).
//!
//! The server that has the device looks for foreign superblocks after each flush, and acknowledges nothing once it finds one. So an opening
//! publishes a superblock first, the *claim*, and reads the log afterwards: every batch that the other server acknowledged was flushed before
//! its look, the look came before the claim, and the log has it (INV-45). A batch that is flushed after the claim is not acknowledged; it may
//! overwrite the log of this opening, which only the device can prevent.

use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::options::OpenOptions;
use shoal_device::Device;
use shoal_image::copies;

use crate::recovery::read::Recovery;

/// Readings of a log that another server writes to, until one meets a moment between two of its writes.
const READINGS_MAX: usize = 20;

impl Recovery {
    /// As [`read`](Self::read). Under a server that still writes, a reading finds pieces of different moments, which look like damage; real
    /// damage is the same in the next reading.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::Unopenable`] if the contents change with each reading.
    pub(crate) async fn read_shared(device: Device, options: &OpenOptions) -> Result<Self> {
        let mut before = String::new();
        for _ in 0..READINGS_MAX {
            match Self::read(device.clone(), options).await {
                Err(error @ Error::Corrupt { .. }) => {
                    let words = error.to_string();
                    if words == before {
                        return Err(error);
                    }
                    before = words;
                }
                read => return read,
            }
        }
        Err(Error::Unopenable(
            "another server writes to the device: its log changes with each reading. Stop that server, or let the device refuse its writes, \
             before you start this one again; nothing was repaired, and nothing has to be"
                .into(),
        ))
    }

    /// Claims the device, and reads the store again. The first reading showed that the store may be opened: a claim of a store whose newest
    /// superblock is lost would hide the loss.
    ///
    /// # Errors
    /// [`Error::Unopenable`] if reads may come from a cache of this machine, or if another server publishes at the same time; as
    /// [`Recovery::read`].
    pub(crate) async fn claim(self, options: &OpenOptions) -> Result<Self> {
        if self.device.inner().is_cached() {
            return Err(Error::Unopenable(format!(
                "{} is read through the page cache of this machine, which lacks the writes of others: a shared device needs direct I/O \
                 (O_DIRECT), which its file system refuses. Use the block device itself, or open the store without --shared-device",
                self.device.inner().describe()
            )));
        }
        if injected(Bug::ReadBeforeClaim) {
            return Ok(self);
        }
        let claim = match copies::claim(&self.device).await {
            // As the superblock of an opening: it is published when there is room.
            Err(Error::NoRoom(why)) => {
                tracing::warn!("the device is not claimed before the log is read: {why}");
                return Ok(self);
            }
            claimed => claimed?,
        };
        let device = self.device.clone();
        drop(self);
        let again = Self::read_shared(device, options).await?;
        copies::check_newest(&again.device, &claim).await?;
        Ok(again)
    }
}
