//! Raises the cap of the store while it serves.

use shoal_api::v1;
use shoal_base::BLOCK_BYTES_U64;
use shoal_engine::{Error, Store, block_on};
use tokio::sync::oneshot;

use crate::auth::Authenticated;
use crate::failure::Failure;

/// The growth is complete when the answer goes out. A caller that disconnects does not stop it.
pub(crate) async fn grow(request: Authenticated<v1::GrowRequest>) -> Result<v1::GrowResponse, Failure> {
    let (message, admitted) = request.take();
    let store = admitted.to_whole_store::<v1::Grow>()?.clone();
    let blocks = message.bytes.map(|bytes| bytes / BLOCK_BYTES_U64);
    if let Some(blocks) = blocks.filter(|_| !message.force) {
        check_room(&store, blocks)?;
    }
    // It writes the map of the free space, and waits for it: other calls run meanwhile.
    let (done, growth) = oneshot::channel();
    let grow = move || {
        let grown = block_on(store.grow(blocks)).map(|grown| (grown, store.room_blocks()));
        // The caller may be gone.
        let _ = done.send(grown);
    };
    let thread = std::thread::Builder::new().name("shoal-cap".into()).spawn(grow);
    // tokio's own threads would panic at the limit of tasks.
    thread.map_err(|_| Failure::busy("cannot start a thread: the process has reached its limit"))?;
    let (grown, room) = match growth.await {
        Ok(Ok(answer)) => answer,
        // The store is as before, and the same call would fail again.
        Ok(Err(Error::Unopenable(why))) => return Err(Failure::invalid(why)),
        Ok(Err(error)) => return Err(Failure::of(&error)),
        Err(_) => {
            let what = "the growth failed by an internal error";
            return Err(Failure::of(&Error::Unknown(what.into())));
        }
    };
    Ok(v1::GrowResponse {
        bytes_before: grown.before.saturating_mul(BLOCK_BYTES_U64),
        bytes: grown.now.saturating_mul(BLOCK_BYTES_U64),
        bytes_of_room: room.unwrap_or(0).saturating_mul(BLOCK_BYTES_U64),
    })
}

/// Checks that the file system has room for a store of `blocks` blocks. The engine checks sizes that no store can have, or that this one
/// has already.
///
/// # Errors
/// A size beyond the room, which could not be undone.
fn check_room(store: &Store, blocks: u64) -> Result<(), Failure> {
    let stat = store.stat();
    let map = |of: u64| Store::map_bytes(blocks, of).map(mib);
    let (Some(room), Some(now), Some(later)) = (store.room_blocks(), map(stat.device_blocks), map(blocks))
    else {
        return Ok(());
    };
    if blocks <= stat.blocks_max || blocks <= room {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "the store cannot get {}: its file system has room for {} of it. A size cannot be taken back. The map of the free space of such a \
         store takes {now} of the disk now, and up to {later} as it fills. Give a size that fits; if the file system is to be enlarged, \
         `force` takes this one all the same (`shoal grow --force`)",
        mib(blocks.saturating_mul(BLOCK_BYTES_U64)),
        mib(room.saturating_mul(BLOCK_BYTES_U64)),
    )))
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}
