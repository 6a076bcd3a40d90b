//! The operations on buckets, and the lists of their objects.

use http::header::LOCATION;
use http::{HeaderName, HeaderValue, StatusCode};
use shoal_base::limits::{KEY_BYTES_MAX, LIST_PAGE_MAX};
use shoal_engine::{ListRequest, ListSink, ObjectInfo};

use super::documents::public_access::ObjectOwnership;
use super::settings::acl_item;
use super::{item, new_config};
use crate::access::acl::CannedAcl;
use crate::answer::S3Answer;
use crate::answer::list::{KeyListWriter, ListedObject, bucket_list};
use crate::answer::result::location_result;
use crate::bucket::documents::create_bucket::check_create_bucket;
use crate::object::metadata::S3Metadata;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::request::list::{KeyListQuery, key_of_token, token_of_key};
use crate::request::operation::S3Operation;
use crate::request::target::check_new_bucket_name;
use crate::serve::call::S3Call;
use crate::state::{S3State, owner};

/// Most buckets of a list.
const BUCKETS_MAX: u64 = 10_000;

/// Objects in ranges that cannot be read are left out if a request has this header; otherwise its list is an error.
const SKIP_DAMAGE: &str = "x-shoal-skip-damage";

/// The header with the region of a bucket.
const REGION: HeaderName = HeaderName::from_static("x-amz-bucket-region");

/// ListBuckets: those in which the caller may do something.
pub(crate) async fn list_buckets(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let query = &call.query;
    let limit = query.number("max-buckets")?.unwrap_or(BUCKETS_MAX);
    if !(1..=BUCKETS_MAX).contains(&limit) {
        return Err(S3Error::argument("max-buckets", limit.to_string(), "The number is not in its range."));
    }
    let prefix = query.text("prefix")?;
    let after = match query.text("continuation-token")?.filter(|token| !token.is_empty()) {
        Some(token) => String::from_utf8(key_of_token(token)?).unwrap_or_default(),
        None => String::new(),
    };
    let shows = |name: &str| prefix.is_none_or(|prefix| name.starts_with(prefix)) && call.caller.knows(name);
    let (buckets, is_cut) = page_of_buckets(state, after, limit as usize, shows).await?;
    let next = buckets.last().filter(|_| is_cut).map(|(name, _)| token_of_key(name.as_bytes()));
    Ok(S3Answer::xml(bucket_list(&buckets, prefix, next.as_deref(), call.caller.owner())))
}

/// The names of at most `limit` buckets after `after` that `shows` accepts, with the times of their creation, in order; and true if
/// there are more.
async fn page_of_buckets(
    state: &S3State,
    mut after: String,
    limit: usize,
    shows: impl Fn(&str) -> bool,
) -> S3Result<(Vec<(String, u64)>, bool)> {
    let mut found = Vec::new();
    loop {
        let page = state.store.buckets(&after, LIST_PAGE_MAX).await?;
        if page.damaged > 0 {
            return Err(S3Error::new(ErrorCode::InternalError, "A part of the store cannot be read."));
        }
        let Some(last) = page.names.last() else { return Ok((found, false)) };
        last.clone_into(&mut after);
        for name in page.names.into_iter().filter(|name| shows(name)) {
            if found.len() == limit {
                return Ok((found, true));
            }
            // A bucket whose record cannot be read is listed, too.
            let record = state.store.bucket(&name).ok().flatten();
            found.push((name, record.map_or(0, |record| record.config().created_ns)));
        }
        if !page.is_cut {
            return Ok((found, false));
        }
    }
}

/// CreateBucket.
pub(crate) async fn create_bucket(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    check_new_bucket_name(call.bucket())?;
    let acl = CannedAcl::in_headers(&call.headers)?.unwrap_or_default();
    let ownership = match header(&call.headers, "x-amz-object-ownership")? {
        None => None,
        Some(name) => Some(ObjectOwnership::parse_name(name).ok_or_else(|| {
            S3Error::argument("x-amz-object-ownership", name, "The ownership is not known.")
        })?),
    };
    if ownership == Some(ObjectOwnership::BucketOwnerEnforced) && acl.lets_others_in() {
        return Err(ErrorCode::InvalidBucketAclWithObjectOwnership.into());
    }
    let document = call.document(state).await?;
    check_create_bucket(&document, state.signing.region())?;
    let mut config = new_config(call.caller.id(), state.etags);
    config.items.set(item::ACL, acl_item(acl).as_deref());
    config
        .items
        .set(item::OWNERSHIP, ownership.map(|ownership| [ownership as u8]).as_ref().map(<[u8; 1]>::as_slice));
    state.buckets.create(&state.store, call.bucket(), config).await?;
    let mut answer = S3Answer::empty(StatusCode::OK);
    if let Ok(location) = HeaderValue::try_from(format!("/{}", call.bucket())) {
        answer.headers.insert(LOCATION, location);
    }
    Ok(answer)
}

/// DeleteBucket. Uploads into it end with it.
pub(crate) async fn delete_bucket(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    state.buckets.delete(&state.store, call.bucket()).await?;
    Ok(S3Answer::empty(StatusCode::NO_CONTENT))
}

/// HeadBucket.
pub(crate) fn head_bucket(state: &S3State) -> S3Answer {
    let mut answer = S3Answer::empty(StatusCode::OK);
    if let Ok(region) = HeaderValue::from_str(state.signing.region()) {
        answer.headers.insert(REGION, region);
    }
    answer
}

/// GetBucketLocation.
pub(crate) fn location(state: &S3State) -> S3Answer {
    S3Answer::xml(location_result(state.signing.region()))
}

/// ListObjects, ListObjectsV2 and ListObjectVersions, in which each object is the only version of its key.
pub(crate) async fn list_objects(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let query = match call.row.operation {
        S3Operation::ListObjectVersions => KeyListQuery::versions(&call.query)?,
        _ => KeyListQuery::objects(&call.query)?,
    };
    let skips_damage = header(&call.headers, SKIP_DAMAGE)?.is_some_and(|value| value == "true");
    let mut page =
        PageWriter { list: KeyListWriter::new(call.bucket(), &query, owner(call.found.owner())), count: 0 };
    let mut next = None;
    // No key is longer than a key may be.
    if query.max_keys > 0 && query.prefix.len() <= KEY_BYTES_MAX {
        let mut request = request_of(call.bucket(), &query);
        loop {
            let found = state.store.list_into(&request, &mut page).await?;
            if let Some(range) = found.damaged.first().filter(|_| !skips_damage) {
                let why = format!(
                    "Keys from {} on cannot be read (block {}). The header {SKIP_DAMAGE}: true lists the others.",
                    range.from.escape_ascii(),
                    range.block
                );
                return Err(S3Error::new(ErrorCode::InternalError, why));
            }
            for prefix in &found.common_prefixes {
                page.count += 1;
                page.list.prefix(prefix);
            }
            next = found.next;
            // A page of deleted objects has nothing that a client could continue after.
            match &next {
                Some(next) if page.count == 0 => request.start_after.clone_from(next),
                _ => break,
            }
        }
    }
    let document = page.list.finish(next.as_deref());
    call.permit.set(document.len())?;
    Ok(S3Answer::xml(document))
}

fn request_of(bucket: &str, query: &KeyListQuery) -> ListRequest {
    let mut start_after = query.after.clone();
    // A longer one is behind the same keys as its start.
    start_after.truncate(KEY_BYTES_MAX);
    let delimiter = if query.delimiter.len() > KEY_BYTES_MAX { Vec::new() } else { query.delimiter.clone() };
    ListRequest {
        bucket: bucket.to_owned(),
        prefix: query.prefix.clone(),
        delimiter,
        start_after,
        limit: query.max_keys,
    }
}

/// Writes objects as the store finds them.
struct PageWriter<'a> {
    list: KeyListWriter<'a>,
    count: usize,
}

impl ListSink for PageWriter<'_> {
    fn take(&mut self, key: &[u8], info: ObjectInfo) -> bool {
        self.count += 1;
        let metadata = &info.metadata;
        let object = ListedObject {
            etag: metadata.etag(info.version.0, info.bytes),
            checksum: metadata.checksum(),
            bytes: info.bytes,
            modified_ns: info.modified_ns,
        };
        self.list.object(key, &object);
        true
    }

    fn needs_only_summary(&self) -> bool {
        true
    }
}
