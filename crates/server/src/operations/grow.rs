//! Raises the cap of the store while it serves.

use shoal_api::v1;
use shoal_base::BLOCK_BYTES_U64;
use shoal_engine::{Error, block_on};
use tokio::sync::oneshot;

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
    let (done, growth) = oneshot::channel();
    let grow = move || {
        let grown = block_on(store.grow(blocks)).map(|grown| (grown, store.room_blocks()));
        // The caller may be gone.
        let _ = done.send(grown);
    };
    let thread = std::thread::Builder::new().name("shoal-cap".into()).spawn(grow);
    // tokio's own threads would panic at the limit of tasks.
    thread
        .map_err(|_| Failure::busy("no thread can be started now: the process has as many as it may have"))?;
    let (grown, room) = match growth.await {
        Ok(Ok(answer)) => answer,
        // The store is as before, and the same call would fail again.
        Ok(Err(Error::Unopenable(why))) => return Err(Failure::invalid(why)),
        Ok(Err(error)) => return Err(Failure::of(&error)),
        Err(_) => {
            let what = "the growth ended by an error of the program";
            return Err(Failure::of(&Error::Unknown(what.into())));
        }
    };
    Ok(v1::GrowResponse {
        bytes_before: grown.before.saturating_mul(BLOCK_BYTES_U64),
        bytes: grown.now.saturating_mul(BLOCK_BYTES_U64),
        bytes_of_room: room.unwrap_or(0).saturating_mul(BLOCK_BYTES_U64),
    })
}
