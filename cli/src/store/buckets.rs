//! Hints about buckets: other buckets with a key or with objects, and the bucket of Redis clients.

use shoal_client::{Error, ListRequest, Result};
use shoal_engine::DEFAULT_BUCKET;
use shoal_transfer::objects::Objects;

use crate::failure::NotFound;
use crate::output::warn;

/// The bucket of Redis clients if it has objects, unless `--resp-bucket` names another one. It has the keys of stores from before the
/// frontends shared a bucket.
const REDIS_BUCKET: &str = "redis";

/// Other buckets in which an absent key is looked up.
const LOOKED_INTO_MAX: usize = 32;

/// Other buckets that a hint names.
const NAMED_MAX: usize = 8;

/// The error for an absent object at `key`, for the context of [`about`](shoal_transfer::text::about). It names another bucket with the
/// key.
pub(crate) async fn no_such_object(objects: &Objects, bucket: &str, key: &[u8]) -> anyhow::Error {
    let hint = match holder(objects, bucket, key).await {
        Some(other) => format!("bucket {other:?} has one with this key (--bucket {other})"),
        None => "`shoal ls` lists its objects".to_owned(),
    };
    NotFound(format!("there is no such object; {hint}")).into()
}

/// The first other bucket with an object at `key`; none if the buckets cannot be listed.
async fn holder(objects: &Objects, bucket: &str, key: &[u8]) -> Option<String> {
    for other in others(objects, bucket).await.into_iter().take(LOOKED_INTO_MAX) {
        if matches!(objects.head(&other, key).await, Ok(Some(_))) {
            return Some(other);
        }
    }
    None
}

/// Names the other buckets on standard error if `bucket` has no objects.
pub(crate) async fn hint_if_empty(objects: &Objects, bucket: &str) {
    if !matches!(contents(objects, bucket).await, Ok(Contents::None)) {
        return;
    }
    let others = others(objects, bucket).await;
    let Some(example) = others.first() else { return };
    let mut names: Vec<_> = others.iter().take(NAMED_MAX).map(String::as_str).collect();
    if others.len() > NAMED_MAX {
        names.push("...");
    }
    let names = names.join(", ");
    warn(&format!(
        "shoal: note: bucket {bucket:?} has no objects; other buckets have some: {names} (as --bucket {example})"
    ));
}

/// One page of the names of other buckets with objects. They are a hint: a failure returns an empty list.
async fn others(objects: &Objects, bucket: &str) -> Vec<String> {
    let page = objects.list_buckets("").await;
    page.map_or_else(|_| Vec::new(), |page| page.names.into_iter().filter(|name| name != bucket).collect())
}

/// The contents of a bucket, by one page of its listing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contents {
    /// There are objects, or further pages that may have some.
    Objects,
    /// There are only damaged ranges, which may have had some.
    Damage,
    None,
}

async fn contents(objects: &Objects, bucket: &str) -> Result<Contents> {
    let request = ListRequest { bucket: bucket.to_owned(), limit: 1, ..ListRequest::default() };
    let page = objects.list(&request).await?;
    Ok(match page {
        _ if !page.entries.is_empty() || page.next.is_some() => Contents::Objects,
        _ if !page.damaged.is_empty() => Contents::Damage,
        _ => Contents::None,
    })
}

/// The bucket of Redis clients, unless `--resp-bucket` names one: that of all other clients, or [`REDIS_BUCKET`] if it has objects. If
/// damage may hide objects, the bucket with readable objects is the one in use.
pub(crate) async fn default_of_redis(objects: &Objects) -> Result<&'static str> {
    Ok(match contents(objects, REDIS_BUCKET).await? {
        Contents::Objects => REDIS_BUCKET,
        Contents::Damage if contents(objects, DEFAULT_BUCKET).await? != Contents::Objects => REDIS_BUCKET,
        Contents::Damage | Contents::None => DEFAULT_BUCKET,
    })
}

/// The bucket of Redis clients of this server; without a Redis frontend, the default one.
pub(crate) async fn of_redis_clients(objects: &Objects) -> Result<String> {
    let named = match objects.stat().await {
        Ok(stat) => stat.bucket_of("redis").map(str::to_owned),
        // A token for one bucket may not read figures or other buckets.
        Err(Error::Denied(_)) => Some(DEFAULT_BUCKET.to_owned()),
        Err(error) => return Err(error),
    };
    match named {
        Some(bucket) => Ok(bucket),
        None => Ok(default_of_redis(objects).await?.to_owned()),
    }
}

/// Logs the bucket of Redis clients, if this program chose another one than that of all other clients.
pub(crate) async fn log_choice(objects: &Objects, chosen: &str) {
    if chosen == DEFAULT_BUCKET {
        return;
    }
    let what = "Redis clients see bucket \"redis\", because it has objects; other clients use \"default\" unless they name a bucket";
    let how = "--resp-bucket redis keeps it so, --resp-bucket default lets Redis clients use the bucket of the others";
    if matches!(contents(objects, DEFAULT_BUCKET).await, Ok(Contents::None)) {
        tracing::info!("{what}; {how}");
    } else {
        tracing::warn!("{what}, and that has objects, too; {how}");
    }
}
