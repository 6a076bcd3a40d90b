//! The settings of buckets: items of their records. Each operation reads, replaces or removes one of them.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use shoal_engine::BucketConfig;

use super::documents::lifecycle::{parse_lifecycle, write_lifecycle};
use super::documents::public_access::{ObjectOwnership, PublicAccessBlock};
use super::lifecycle::{decode_lifecycle, encode_lifecycle};
use super::website::{Website, encode_website};
use super::{FoundBucket, item, new_config};
use crate::access::acl::CannedAcl;
use crate::access::cors::{CorsRule, cors_headers, decode_cors, encode_cors, preflight};
use crate::access::documents::acl::parse_acl;
use crate::access::documents::cors::{parse_cors, write_cors};
use crate::access::policy::BucketPolicy;
use crate::answer::S3Answer;
use crate::answer::body::S3Body;
use crate::answer::result::policy_status;
use crate::object::documents::tagging::{parse_tagging, write_tagging};
use crate::object::tags::{BUCKET_TAGS_MAX, TagSet};
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::serve::call::S3Call;
use crate::state::{S3State, owner};
use crate::time::SECOND_NS;

impl FoundBucket {
    /// A stored setting, read by `decode`; `None` without one.
    ///
    /// # Errors
    /// `InternalError` if this program cannot read it: the bucket must not be served as if it had none.
    pub(super) fn setting<T, E>(
        &self,
        tag: u8,
        decode: impl Fn(&[u8]) -> Result<T, E>,
    ) -> S3Result<Option<T>> {
        let Some(stored) = self.items().and_then(|items| items.get(tag)) else { return Ok(None) };
        let unusable = |_| {
            let bucket = self.record.as_ref().map_or("", |record| record.name());
            let repairs: Vec<_> = item::repairs_of(tag).iter().map(|operation| operation.name()).collect();
            let (setting, repairs) = (item::name_of(tag), repairs.join(" or "));
            let why = format!("The {setting} of bucket {bucket:?} cannot be read. {repairs} repairs it.");
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
    // A bucket without a record has no setting to remove.
    if value.is_some() || call.found.record.is_some() {
        update(state, call, move |config| config.items.set(tag, value.as_deref())).await?;
    }
    Ok(S3Answer::empty(status))
}

/// Changes the settings of the bucket of a request. One without a record gets one, which belongs to the caller.
async fn update(
    state: &S3State,
    call: &S3Call,
    change: impl FnOnce(&mut BucketConfig) + Send + 'static,
) -> S3Result<()> {
    let new = match call.found.record {
        Some(_) => None,
        None => Some(new_config(call.caller.id(), state.etags)),
    };
    state.buckets.update(&state.store, call.bucket(), new, change).await
}

/// Checks the ACL that a request gives an object, and notes in the bucket's record that its objects may have ACLs, before the
/// first one has.
///
/// # Errors
/// `AccessControlListNotSupported`, `AccessDenied`.
pub(crate) async fn allow_object_acl(state: &S3State, call: &S3Call, acl: Option<CannedAcl>) -> S3Result<()> {
    let Some(acl) = acl else { return Ok(()) };
    let access = call.found.access.as_ref();
    access.map_or(Ok(()), |access| access.check_new_acl(acl))?;
    if !acl.lets_others_in() || access.is_some_and(|access| access.has_object_acls) {
        return Ok(());
    }
    update(state, call, |config| config.has_object_acls = true).await
}

/// The canned ACL that a request sets, in a header or in its document.
pub(crate) async fn asked_acl(state: &S3State, call: &mut S3Call) -> S3Result<CannedAcl> {
    let document = call.document(state).await?;
    match header(&call.headers, "x-amz-acl")? {
        Some(name) if document.trim_ascii().is_empty() => CannedAcl::parse(name),
        Some(_) => {
            let why = "An ACL is in the header x-amz-acl or in the document, and not in both.";
            Err(S3Error::new(ErrorCode::InvalidRequest, why))
        }
        None => {
            let now_s = state.now_ns() / SECOND_NS;
            let is_key = |id: &str| state.secrets(id, now_s).iter().any(Option::is_some);
            parse_acl(&document, call.found.owner(), &is_key)
        }
    }
}

/// GetBucketAcl.
pub(crate) fn get_acl(call: &S3Call) -> S3Answer {
    let acl = call.found.access.as_ref().map(|access| access.acl).unwrap_or_default();
    S3Answer::xml(acl.document(&owner(call.found.owner())))
}

/// PutBucketAcl.
pub(crate) async fn put_acl(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let acl = asked_acl(state, &mut call).await?;
    call.found.access.as_ref().map_or(Ok(()), |access| access.check_new_acl(acl))?;
    update(state, &call, move |config| config.items.set(item::ACL, acl_item(acl).as_deref())).await?;
    Ok(S3Answer::empty(StatusCode::OK))
}

/// The item that stores the ACL of a bucket. That of a private one takes no bytes.
pub(super) fn acl_item(acl: CannedAcl) -> Option<Vec<u8>> {
    (acl != CannedAcl::default()).then(|| vec![acl as u8])
}

/// GetBucketPolicy: the document as it came.
pub(crate) fn get_policy(call: &S3Call) -> S3Result<S3Answer> {
    let policy = call.found.items().and_then(|items| items.get(item::POLICY));
    let policy = policy.ok_or(ErrorCode::NoSuchBucketPolicy)?;
    let mut answer = S3Answer::empty(StatusCode::OK);
    answer.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer.body = S3Body::of_document(policy.to_vec());
    Ok(answer)
}

/// GetBucketPolicyStatus.
pub(crate) fn get_policy_status(call: &S3Call) -> S3Result<S3Answer> {
    let policy = call.found.access.as_ref().and_then(|access| access.policy.as_ref());
    let policy = policy.ok_or(ErrorCode::NoSuchBucketPolicy)?;
    Ok(S3Answer::xml(policy_status(policy.is_public())))
}

/// PutBucketPolicy.
pub(crate) async fn put_policy(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let document = call.document(state).await?;
    let policy = BucketPolicy::parse(&document, call.bucket())?;
    let blocks = call.found.access.as_ref().is_some_and(|access| access.block.block_policy);
    if blocks && policy.is_public() {
        let why = "Access Denied: the bucket's public access block refuses public policies.";
        return Err(S3Error::new(ErrorCode::AccessDenied, why));
    }
    set(state, &call, item::POLICY, Some(document)).await?;
    Ok(S3Answer::empty(StatusCode::NO_CONTENT))
}

/// DeleteBucketPolicy.
pub(crate) async fn delete_policy(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    set(state, &call, item::POLICY, None).await
}

/// GetBucketTagging.
pub(crate) fn get_tags(call: &S3Call) -> S3Result<S3Answer> {
    let tags = call.found.setting(item::TAGS, TagSet::of_attribute)?.ok_or(ErrorCode::NoSuchTagSet)?;
    Ok(S3Answer::xml(write_tagging(&tags)))
}

/// PutBucketTagging. No tags are as none.
pub(crate) async fn put_tags(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let tags = parse_tagging(&call.document(state).await?, BUCKET_TAGS_MAX)?;
    let stored = (!tags.pairs().is_empty()).then(|| tags.attribute());
    set(state, &call, item::TAGS, stored).await?;
    Ok(S3Answer::empty(StatusCode::NO_CONTENT))
}

/// DeleteBucketTagging.
pub(crate) async fn delete_tags(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    set(state, &call, item::TAGS, None).await
}

/// GetPublicAccessBlock.
pub(crate) fn get_block(call: &S3Call) -> S3Result<S3Answer> {
    let block = call.found.items().and_then(|items| items.get(item::BLOCK)).and_then(<[u8]>::first);
    let block = block.and_then(|number| PublicAccessBlock::of_number(*number));
    let block = block.ok_or(ErrorCode::NoSuchPublicAccessBlockConfiguration)?;
    Ok(S3Answer::xml(block.document()))
}

/// PutPublicAccessBlock.
pub(crate) async fn put_block(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let block = PublicAccessBlock::parse(&call.document(state).await?)?;
    set(state, &call, item::BLOCK, Some(vec![block.number()])).await
}

/// DeletePublicAccessBlock.
pub(crate) async fn delete_block(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    set(state, &call, item::BLOCK, None).await
}

/// GetBucketOwnershipControls.
pub(crate) fn get_ownership(call: &S3Call) -> S3Result<S3Answer> {
    let ownership = call.found.access.as_ref().and_then(|access| access.ownership);
    let ownership = ownership.ok_or(ErrorCode::OwnershipControlsNotFoundError)?;
    Ok(S3Answer::xml(ownership.document()))
}

/// PutBucketOwnershipControls.
pub(crate) async fn put_ownership(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let ownership = ObjectOwnership::parse(&call.document(state).await?)?;
    let acl = call.found.access.as_ref().map(|access| access.acl).unwrap_or_default();
    if ownership == ObjectOwnership::BucketOwnerEnforced && acl.lets_others_in() {
        return Err(ErrorCode::InvalidBucketAclWithObjectOwnership.into());
    }
    set(state, &call, item::OWNERSHIP, Some(vec![ownership as u8])).await
}

/// DeleteBucketOwnershipControls.
pub(crate) async fn delete_ownership(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    set(state, &call, item::OWNERSHIP, None).await
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

/// GetBucketLifecycleConfiguration.
pub(crate) fn get_lifecycle(call: &S3Call) -> S3Result<S3Answer> {
    let rules = call.found.setting(item::LIFECYCLE, decode_lifecycle)?;
    Ok(S3Answer::xml(write_lifecycle(&rules.ok_or(ErrorCode::NoSuchLifecycleConfiguration)?)))
}

/// PutBucketLifecycleConfiguration.
pub(crate) async fn put_lifecycle(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let rules = parse_lifecycle(&call.document(state).await?)?;
    set(state, &call, item::LIFECYCLE, Some(encode_lifecycle(&rules))).await
}

/// DeleteBucketLifecycle.
pub(crate) async fn delete_lifecycle(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    set(state, &call, item::LIFECYCLE, None).await
}

/// GetBucketWebsite.
pub(crate) fn get_website(call: &S3Call) -> S3Result<S3Answer> {
    let website = call.found.website()?.ok_or(ErrorCode::NoSuchWebsiteConfiguration)?;
    Ok(S3Answer::xml(website.document()))
}

/// PutBucketWebsite.
pub(crate) async fn put_website(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let website = Website::parse(&call.document(state).await?)?;
    set(state, &call, item::WEBSITE, Some(encode_website(&website))).await
}

/// DeleteBucketWebsite.
pub(crate) async fn delete_website(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    set(state, &call, item::WEBSITE, None).await
}

/// Answers the question of a browser, which has no signature. A caller learns nothing about buckets without rules.
pub(crate) fn answer_preflight(state: &S3State, bucket: &str, headers: &HeaderMap) -> S3Result<S3Answer> {
    let headers = preflight(|| rules_of(state, bucket), headers)?;
    Ok(S3Answer { headers, ..S3Answer::empty(StatusCode::OK) })
}

/// The headers that the rules of a bucket add to the answer of a request from a page. A preflight has its own.
pub(crate) fn headers_for_page(
    state: &S3State,
    bucket: &str,
    method: &Method,
    headers: &HeaderMap,
) -> HeaderMap {
    let Ok(origin @ Some(_)) = header(headers, "origin") else { return HeaderMap::new() };
    if method == Method::OPTIONS {
        return HeaderMap::new();
    }
    let Ok(Some(rules)) = rules_of(state, bucket) else { return HeaderMap::new() };
    // As AWS does it, also if the request is no preflight.
    let asked = header(headers, "access-control-request-method").ok().flatten();
    cors_headers(&rules, asked.unwrap_or(method.as_str()), origin)
}

/// The rules of a bucket with a record.
fn rules_of(state: &S3State, bucket: &str) -> S3Result<Option<Vec<CorsRule>>> {
    FoundBucket { record: state.store.bucket(bucket)?, ..FoundBucket::default() }.cors()
}
