//! Lists the buckets that hold objects.

use shoal_api::v1;
use shoal_engine::check_bucket;

use super::list::page_limit;
use crate::auth::Authenticated;
use crate::call::parted::Parted;
use crate::failure::Failure;

pub(crate) async fn list_buckets(
    request: Authenticated<Parted<v1::ListBucketsRequest>>,
) -> Result<v1::ListBucketsResponse, Failure> {
    let (Parted { message, .. }, admitted) = request.take();
    let limit = page_limit(message.page_size, "buckets")?;
    if !message.start_after.is_empty() {
        check_bucket(&message.start_after).map_err(|error| Failure::of(&error))?;
    }
    let store = admitted.to_read_all()?;
    let page = store.buckets(&message.start_after, limit).await.map_err(|error| Failure::of(&error))?;
    let damaged = u32::try_from(page.damaged).unwrap_or(u32::MAX);
    Ok(v1::ListBucketsResponse { buckets: page.names, more: page.is_cut, damaged })
}
