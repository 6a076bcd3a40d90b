//! Lists the buckets that hold objects.

use shoal_api::v1;
use shoal_engine::{BucketPage, check_bucket};

use crate::auth::Authenticated;
use crate::failure::Failure;

pub(crate) async fn list_buckets(
    request: Authenticated<v1::ListBucketsRequest>,
) -> Result<v1::ListBucketsResponse, Failure> {
    let (message, admitted) = request.take();
    if !message.start_after.is_empty() {
        check_bucket(&message.start_after).map_err(|error| Failure::of(&error))?;
    }
    let store = admitted.to_whole_store::<v1::ListBuckets>()?;
    let page = store.buckets(&message.start_after, message.page_size as usize).await;
    let BucketPage { names: buckets, is_cut: more, damaged } = page.map_err(|error| Failure::of(&error))?;
    Ok(v1::ListBucketsResponse { buckets, more, damaged })
}
