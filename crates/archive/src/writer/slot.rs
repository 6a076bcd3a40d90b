//! Sends the bytes of a slot until its outcome is known. They never change, and nothing is sent to a later slot in their place.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::chain::MadeSlot;
use super::progress::Shared;
use crate::bucket::CreateOutcome;
use crate::format::{SlotHead, TOMBSTONE_BYTES};

/// The pause after a request without an outcome.
const PAUSE: Duration = Duration::from_secs(5);
/// A slot whose bytes are neither a segment nor a tombstone is read again this number of times: a reader may get the wrong bytes.
const READS: u32 = 8;

/// Returns once the slot has these bytes.
///
/// # Errors
/// It has others, so this server is not the owner of the log any more: the observation.
pub(super) async fn send(shared: &Shared, made: &MadeSlot) -> Result<(), String> {
    let name = made.slot.to_string();
    let mut reads = 0;
    loop {
        let why = match shared.bucket.create(&name, made.bytes.clone()).await {
            Ok(CreateOutcome::Created) => {
                shared.progress.lock().trouble = None;
                return Ok(());
            }
            Ok(CreateOutcome::Exists { head, object_bytes }) => {
                reads += 1;
                match SlotHead::decode(&head, shared.volume(), made.slot) {
                    Ok(SlotHead::Segment(_)) => return Err(format!("{name} has another segment")),
                    Ok(SlotHead::Tombstone(_)) if object_bytes == TOMBSTONE_BYTES as u64 => {
                        return Err(format!("{name} has the tombstone of another server"));
                    }
                    Ok(SlotHead::Tombstone(_)) => format!("{name} has {object_bytes} bytes"),
                    Err(error) if reads >= READS => return Err(error.to_string()),
                    Err(error) => error.to_string(),
                }
            }
            Err(error) => error.to_string(),
        };
        {
            let mut progress = shared.progress.lock();
            let since = progress.trouble.as_ref().map_or_else(Instant::now, |(_, since)| *since);
            progress.trouble = Some((why, since));
        }
        sleep(PAUSE).await;
    }
}
