//! Raises the cap of the server's store.

use shoal_api::v1;
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::Result;

/// The result of a growth, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// The largest size that the store could have before.
    pub before: u64,
    /// The largest size that it may have now.
    pub now: u64,
    /// How large its file could become with what its file system has free now; `None`: a block device, or not known.
    pub room: Option<u64>,
}

impl Client {
    /// Lets the store grow to `bytes`; without a size, to all of the block device that it lies on. It goes on serving meanwhile. A repeated
    /// call changes nothing more. With `force` it takes a size that its file system has no room for, too.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the store cannot have that size, as it cannot shrink, or its file system has no room
    /// for it; [`Error::Denied`](crate::Error::Denied) if the credentials do not allow administration; as [`Self::stat`].
    pub fn grow(&self, bytes: Option<u64>, force: bool) -> Boxed<'_, Result<Grown>> {
        Box::pin(async move {
            let grow = || async {
                let grown = self.transport.call::<v1::Grow>(v1::GrowRequest { bytes, force }).await?;
                let room = Some(grown.bytes_of_room).filter(|&room| room > 0);
                Ok(Grown { before: grown.bytes_before, now: grown.bytes, room })
            };
            self.retry.read(grow).await
        })
    }
}
