//! Raises the cap of the server's store.

use shoal_api::v1;
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::Result;

/// The result of a growth, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// The cap before.
    pub before: u64,
    /// The cap now.
    pub now: u64,
    /// The size that its file could reach with the current free space of its file system; `None`: a block device, or unknown.
    pub room: Option<u64>,
}

impl Client {
    /// Raises the cap of the store to `bytes`; without a size, to all of its block device. It keeps serving meanwhile. A
    /// repeated call changes nothing more. With `force`, it also accepts a size for which its file system has no room.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the store cannot have that size, because it cannot shrink, or its file
    /// system has no room for it; [`Error::Denied`](crate::Error::Denied) if the credentials do not allow administration; as
    /// [`Self::stat`].
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
