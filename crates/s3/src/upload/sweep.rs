//! Aborts uploads that nobody completes: their parts take space, and no list of objects shows them.

use std::sync::Arc;
use std::time::Duration;

use shoal_base::limits::LIST_PAGE_MAX;

use crate::request::error::S3Result;
use crate::state::S3State;

/// A sweep starts at least this often.
const EVERY_MAX: Duration = Duration::from_secs(3_600);

/// A sweep starts at most this often.
const EVERY_MIN: Duration = Duration::from_millis(100);

/// Sweeps until it is dropped. A sweep that fails is tried again at the next turn.
pub(crate) async fn sweep_uploads(state: Arc<S3State>, life: Option<Duration>) {
    let Some(life) = life else { return std::future::pending().await };
    let every = (life / 24).clamp(EVERY_MIN, EVERY_MAX);
    loop {
        match sweep_once(&state, life).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "aborted uploads that were older than {life:?}"),
            Err(error) => tracing::warn!("old uploads were not aborted: {error}"),
        }
        tokio::time::sleep(every).await;
    }
}

/// Aborts the open uploads that are older than `life`. Returns their number.
async fn sweep_once(state: &S3State, life: Duration) -> S3Result<usize> {
    let life_ns = u64::try_from(life.as_nanos()).unwrap_or(u64::MAX);
    let (mut after, mut count) = (None, 0);
    loop {
        let page = state.store.all_uploads(after.as_ref(), LIST_PAGE_MAX).await?;
        for info in page.uploads.iter().filter(|info| info.completed.is_none()) {
            if info.created_ns.saturating_add(life_ns) <= state.now_ns()
                && state.store.abort_upload(&info.upload).await?
            {
                count += 1;
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(count),
        }
    }
}
