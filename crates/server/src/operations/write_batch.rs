//! Several puts as one write batch (`MultiPut` with `atomic`).

use shoal_api::v1;
use shoal_engine::{Error, Write, WriteBatch};

use super::batch::Batch;
use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;

/// All puts as one batch: applied as a whole or not at all, also over a crash.
pub(crate) async fn write_batch(
    admitted: &Authenticated<()>,
    batch: &Batch<()>,
) -> Result<Vec<v1::MultiPutResult>, Failure> {
    let store = admitted.to_each::<v1::MultiPut>(batch.bucket_name()?, batch.key_bytes())?;
    let mut puts = Vec::with_capacity(batch.items.len());
    for item in &batch.items {
        let key = batch.key(item)?;
        let item: v1::MultiPutItem = batch.whole(item)?;
        let end = (item.ttl_ns, item.expire_time_ns);
        let options = convert::put_options(item.rules, item.metadata, item.modified_ns, end)?;
        puts.push((key, item.value.into(), options));
    }
    if puts.is_empty() {
        return Ok(Vec::new());
    }
    let failed = |error: Error| {
        let rules = match &error {
            Error::ConditionFailed { at, .. } => puts.get(*at).map(|(_, _, options)| options.rules),
            _ => None,
        };
        Failure::of_write(&error, &rules.unwrap_or_default())
    };
    let writes: WriteBatch<'_> =
        puts.iter().map(|(key, value, options)| Write::put(key, value, options)).collect();
    let pending = store.write(writes.with_request_id(admitted.request_id())).await.map_err(failed)?;
    let versions = pending.clone();
    let last = pending.durable().await.map_err(failed)?;
    let result = |version| v1::MultiPutResult { status: Some(v1::KeyStatus::default()), version };
    Ok(versions.versions(last).map(|version| result(version.0)).collect())
}
