//! The free runs of the store's space, for a map or a dump of it.

use std::sync::Arc;

use futures_util::{Stream, stream};
use shoal_api::v1;
use shoal_base::BLOCK_BYTES;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::Authenticated;
use crate::failure::Failure;

/// Runs in one message: less than 1 MiB of varints.
const RUNS_MAX: usize = 1 << 16;
/// Readers at the same time: the flow does not count the memory from which each of them reads.
pub(crate) const READERS_MAX: usize = 1;

/// The free runs as they are now, a message at a time.
pub(crate) fn free_space(
    request: Authenticated<v1::FreeSpaceRequest>,
    permits: &Arc<Semaphore>,
) -> Result<impl Stream<Item = Result<v1::FreeSpaceResponse, Failure>> + Send + 'static, Failure> {
    let (_, admitted) = request.take();
    let store = admitted.to_whole_store::<v1::FreeSpace>()?;
    let busy = |_| Failure::busy("the free runs are being read by another caller");
    let permit = Arc::clone(permits).try_acquire_owned().map_err(busy)?;
    let runs = store.free_space();
    let start = Sending { runs, end: 0, is_first: true, _permit: permit };
    Ok(stream::iter(start.map(Ok)))
}

/// The free runs on their way out.
struct Sending {
    runs: shoal_engine::FreeRunIter,
    /// The end of the run that was sent last.
    end: u64,
    is_first: bool,
    _permit: OwnedSemaphorePermit,
}

impl Iterator for Sending {
    type Item = v1::FreeSpaceResponse;

    fn next(&mut self) -> Option<v1::FreeSpaceResponse> {
        let mut message = v1::FreeSpaceResponse::default();
        let is_first = std::mem::take(&mut self.is_first);
        if is_first {
            message.block_bytes = BLOCK_BYTES as u32;
            message.blocks = self.runs.device_blocks();
            message.group_blocks = self.runs.group_blocks();
        }
        for run in self.runs.by_ref().take(RUNS_MAX) {
            message.gaps_and_blocks.extend([run.block - self.end, u64::from(run.blocks)]);
            self.end = run.end();
        }
        (is_first || !message.gaps_and_blocks.is_empty()).then_some(message)
    }
}
