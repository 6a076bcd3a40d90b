//! Raises the cap of the store while it serves.

use shoal_api::v1;
use shoal_base::BLOCK_BYTES_U64;
use shoal_engine::{Error, block_on};

use crate::auth::Authenticated;
use crate::call::parted::Parted;
use crate::failure::Failure;

/// The growth has ended when the answer goes out. A caller that goes away does not stop it.
pub(crate) async fn grow(
    request: Authenticated<Parted<v1::GrowRequest>>,
) -> Result<v1::GrowResponse, Failure> {
    let (Parted { message, .. }, admitted) = request.take();
    let store = admitted.to_administer()?.clone();
    let blocks = message.bytes.map(|bytes| bytes / BLOCK_BYTES_U64);
    // It writes the map of the free space, and waits for it: other calls go on meanwhile.
    let growth = tokio::task::spawn_blocking(move || {
        let grown = block_on(store.grow(blocks))?;
        Ok::<_, Error>((grown, store.room_blocks()))
    });
    let (grown, room) = match growth.await {
        Ok(Ok(answer)) => answer,
        // The store is as before, and the same call would fail again.
        Ok(Err(Error::Unopenable(why))) => return Err(Failure::invalid(why)),
        Ok(Err(error)) => return Err(Failure::of(&error)),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    Ok(v1::GrowResponse {
        bytes_before: grown.before.saturating_mul(BLOCK_BYTES_U64),
        bytes: grown.now.saturating_mul(BLOCK_BYTES_U64),
        bytes_of_room: room.unwrap_or(0).saturating_mul(BLOCK_BYTES_U64),
    })
}
