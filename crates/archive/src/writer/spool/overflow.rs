//! The task that keeps the store's log free: it moves records to the spool while the bucket does not keep up, and releases the log.

use std::sync::Arc;
use std::time::Duration;

use shoal_base::Lsn;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::super::progress::Shared;
use super::super::unit::Unit;
use super::append::{SpoolAppender, SpoolFailure, SpoolLimits};
use crate::source::SourceError;

/// From this share of the store's log on, in thousandths, records go to the spool.
const FILL_PERMILLE: u32 = 250;
/// Time between two flushes of the spool, and between two looks at a store that is written to.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Runs until the store is closed.
pub(in crate::writer) async fn overflow(shared: Arc<Shared>, appender: Arc<Mutex<SpoolAppender>>) {
    let mut seen = Lsn::NONE;
    loop {
        shared.release();
        match keep_up(&shared, &appender).await {
            Ok(()) => {}
            Err(SourceError::Closed(_)) => return,
            Err(SourceError::Lost(why)) => {
                shared.gap(why);
                // If that fails, the next log starts with another try.
                let _ = appender.lock().await.clear().await;
                sleep(LOOK_EVERY).await;
                continue;
            }
        }
        let after = seen.max(shared.progress.lock().released);
        tokio::select! {
            () = shared.store.wait_for(after) => {}
            () = shared.overflow.notified() => {}
        }
        seen = shared.store.durable();
        if seen <= after && matches!(shared.store.next_batch(seen).await, Err(SourceError::Closed(_))) {
            return;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Moves records to the spool until the bucket keeps up, and empties a spool that is archived.
async fn keep_up(shared: &Shared, appender: &Mutex<SpoolAppender>) -> Result<(), SourceError> {
    loop {
        let mut appender = appender.lock().await;
        let (archived, released, is_behind, follows) = {
            let progress = shared.progress.lock();
            (progress.archived, progress.released, progress.is_behind, progress.follows)
        };
        let last = shared.spool.last();
        if last > Lsn::NONE && (archived >= last || follows) {
            appender.clear().await.map_err(|error| lost(shared, SpoolFailure::Io(error)))?;
        }
        if follows || !is_behind && shared.store.log_fill_permille() < FILL_PERMILLE {
            return Ok(());
        }
        let has_more = spool_some(shared, &mut appender, released.max(archived).max(last)).await?;
        shared.release();
        if !has_more {
            return Ok(());
        }
    }
}

/// Spools for some time, at least a batch of the store's log; returns false if no more is flushed.
async fn spool_some(
    shared: &Shared,
    appender: &mut SpoolAppender,
    mut kept: Lsn,
) -> Result<bool, SourceError> {
    let (start, mut has_more) = (Instant::now(), true);
    let limits = SpoolLimits {
        segment_bytes: shared.options.segment_bytes(),
        file_bytes: shared.options.spool_bytes_max,
    };
    while start.elapsed() < FLUSH_EVERY {
        // The archive may have passed the next record in the meantime: then this stops, and continues after that one.
        let found = shared.store.next_batch(kept).await;
        if shared.progress.lock().released > kept {
            break;
        }
        let Some(batch) = found? else {
            has_more = false;
            break;
        };
        let mut unit = Unit::new(batch, kept)?;
        while let Some(batch) = unit.next(&*shared.store).await? {
            let owner = unit.owner().filter(|_| batch.count == 0);
            let last = batch.last_lsn();
            let pushed = appender.push(batch, kept, owner, limits).await;
            pushed.map_err(|failure| lost(shared, failure))?;
            kept = kept.max(last);
        }
    }
    appender.flush().await.map_err(|failure| lost(shared, failure))?;
    Ok(has_more)
}

/// The spool is given up: its records are lost for the archive.
fn lost(shared: &Shared, failure: SpoolFailure) -> SourceError {
    let path = shared.options.spool.display();
    SourceError::Lost(match failure {
        SpoolFailure::Full => {
            let bytes = shared.options.spool_bytes_max;
            format!("the bucket is away, and the spool {path} has the {bytes} bytes that it may have")
        }
        SpoolFailure::Io(error) => format!("the spool {path} cannot be written: {error}"),
    })
}
