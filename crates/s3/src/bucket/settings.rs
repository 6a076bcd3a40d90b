//! The settings of buckets: items of their records. Each operation reads, replaces or removes one of them.

use http::{HeaderMap, Method, StatusCode};

use super::{FoundBucket, item, new_config};
use crate::access::cors::{CorsRule, cors_headers, decode_cors, encode_cors, preflight};
use crate::access::documents::cors::{parse_cors, write_cors};
use crate::answer::S3Answer;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::serve::call::S3Call;
use crate::state::S3State;

impl FoundBucket {
    /// A stored setting, read by `decode`; `None` without one.
    ///
    /// # Errors
    /// `InternalError` if this program cannot read it: the bucket must not be served as if it had none.
    fn setting<T, E>(&self, tag: u8, decode: impl Fn(&[u8]) -> Result<T, E>) -> S3Result<Option<T>> {
        let Some(stored) = self.items().and_then(|items| items.get(tag)) else { return Ok(None) };
        let unusable = |_| {
            let why = format!(
                "Item {tag} of the bucket's record cannot be read: delete this setting, and set it again."
            );
            S3Error::new(ErrorCode::InternalError, why)
        };
        decode(stored).map(Some).map_err(unusable)
    }

    /// The rules for browsers.
    fn cors(&self) -> S3Result<Option<Vec<CorsRule>>> {
        self.setting(item::CORS, decode_cors)
    }
}

/// Replaces or removes a setting of the bucket of a request.
async fn set(state: &S3State, call: &S3Call, tag: u8, value: Option<Vec<u8>>) -> S3Result<S3Answer> {
    let status = if value.is_some() { StatusCode::OK } else { StatusCode::NO_CONTENT };
    let new = match call.found.record {
        Some(_) => None,
        None if value.is_none() => return Ok(S3Answer::empty(status)),
        None => Some(new_config(call.caller.id(), state.etags)),
    };
    state.buckets.set_item(&state.store, call.bucket(), new, (tag, value)).await?;
    Ok(S3Answer::empty(status))
}

/// GetBucketCors.
pub(crate) fn get_cors(call: &S3Call) -> S3Result<S3Answer> {
    let rules = call.found.cors()?.ok_or(ErrorCode::NoSuchCORSConfiguration)?;
    Ok(S3Answer::xml(write_cors(&rules)))
}

/// PutBucketCors.
pub(crate) async fn put_cors(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let rules = parse_cors(&call.document(state).await?)?;
    set(state, &call, item::CORS, Some(encode_cors(&rules))).await
}

/// DeleteBucketCors.
pub(crate) async fn delete_cors(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    set(state, &call, item::CORS, None).await
}

/// Answers the question of a browser, which has no signature. A caller learns nothing about buckets without rules.
pub(crate) fn answer_preflight(state: &S3State, bucket: &str, headers: &HeaderMap) -> S3Result<S3Answer> {
    let why = "CORSResponse: CORS is not enabled for this bucket.";
    let rules = rules_of(state, bucket)?.ok_or_else(|| S3Error::new(ErrorCode::AccessDenied, why))?;
    let headers = preflight(&rules, headers)?;
    Ok(S3Answer { headers, ..S3Answer::empty(StatusCode::OK) })
}

/// The headers that the rules of a bucket add to the answer of a request from a page.
pub(crate) fn headers_for_page(
    state: &S3State,
    bucket: &str,
    method: &Method,
    headers: &HeaderMap,
) -> HeaderMap {
    let Ok(origin @ Some(_)) = header(headers, "origin") else { return HeaderMap::new() };
    let Ok(Some(rules)) = rules_of(state, bucket) else { return HeaderMap::new() };
    cors_headers(&rules, method.as_str(), origin)
}

/// The rules of a bucket with a record.
fn rules_of(state: &S3State, bucket: &str) -> S3Result<Option<Vec<CorsRule>>> {
    FoundBucket { record: state.store.bucket(bucket)? }.cors()
}
