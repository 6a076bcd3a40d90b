//! ListParts and ListMultipartUploads.

use shoal_base::limits::{KEY_BYTES_MAX, LIST_PAGE_MAX};
use shoal_engine::{Bucket, UploadId, UploadsAfter};

use super::{listed_part, listed_upload, open_upload};
use crate::answer::S3Answer;
use crate::answer::list::{KeyListWriter, ListedPart, part_list};
use crate::request::error::S3Result;
use crate::request::list::{KeyListQuery, ListKind, PartListQuery};
use crate::serve::call::S3Call;
use crate::state::{S3State, owner};

/// ListParts.
pub(crate) async fn list_parts(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let query = PartListQuery::parse(&call.query)?;
    let info = open_upload(state, &call).await?;
    let (mut parts, mut is_cut) = (Vec::new(), false);
    if query.max_parts > 0 {
        let page = state.store.list_parts(&info.upload, query.after, query.max_parts).await?;
        parts = page.parts.iter().map(listed_part).collect::<Vec<ListedPart>>();
        is_cut = page.is_cut;
    }
    let of = (call.bucket(), call.key());
    let document = part_list(of, &listed_upload(&info), &query, (&parts, is_cut), owner(call.found.owner()));
    call.permit.set(document.len())?;
    let mut answer = S3Answer::xml(document);
    call.found.add_abort(&mut answer.headers, call.key(), info.created_ns);
    Ok(answer)
}

/// The last entry of a page.
enum Last {
    Upload(Vec<u8>, UploadId),
    Prefix(Vec<u8>),
}

impl Last {
    /// The place after it.
    fn after(&self) -> UploadsAfter {
        match self {
            Self::Upload(key, id) => UploadsAfter::Upload(key.clone(), *id),
            Self::Prefix(prefix) => UploadsAfter::Prefix(prefix.clone()),
        }
    }
}

/// ListMultipartUploads.
pub(crate) async fn list_uploads(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let query = KeyListQuery::uploads(&call.query)?;
    let mut list = KeyListWriter::new(call.bucket(), &query, owner(call.found.owner()));
    // No key is longer than a key may be.
    let last = match query.max_keys > 0 && query.prefix.len() <= KEY_BYTES_MAX {
        true => write_page(state, &call, &query, &mut list).await?,
        false => None,
    };
    let document = match last {
        Some(Last::Upload(key, id)) => list.finish_uploads(Some((&key, id.number()))),
        Some(Last::Prefix(prefix)) => list.finish(Some(&prefix)),
        None => list.finish(None),
    };
    call.permit.set(document.len())?;
    Ok(S3Answer::xml(document))
}

/// Writes a page of uploads. Returns its last entry if others follow.
async fn write_page(
    state: &S3State,
    call: &S3Call,
    query: &KeyListQuery,
    list: &mut KeyListWriter<'_>,
) -> S3Result<Option<Last>> {
    let bucket = Bucket::new(call.bucket())?;
    let (mut after, mut count, mut last) = (start_of(query), 0, None);
    loop {
        let page = state.store.list_uploads(&bucket, &query.prefix, &after, LIST_PAGE_MAX).await?;
        let mut is_passed = false;
        for info in page.uploads.iter().filter(|info| info.completed.is_none()) {
            if count == query.max_keys {
                return Ok(last);
            }
            count += 1;
            let key = info.upload.key.key();
            match common_prefix(key, query) {
                None => {
                    list.upload(key, &listed_upload(info));
                    last = Some(Last::Upload(key.to_vec(), info.upload.id));
                }
                Some(prefix) => {
                    list.prefix(prefix);
                    last = Some(Last::Prefix(prefix.to_vec()));
                    is_passed = true;
                    break;
                }
            }
        }
        after = match (&last, page.next) {
            (Some(last), _) if is_passed => last.after(),
            (_, Some(next)) => UploadsAfter::Upload(next.key.key().to_vec(), next.id),
            (_, None) => return Ok(None),
        };
    }
}

/// The place at which a list starts. A marker that is a common prefix passes over all of its keys, one with an upload over that one.
fn start_of(query: &KeyListQuery) -> UploadsAfter {
    let ListKind::Uploads { upload_marker } = &query.kind else { return UploadsAfter::Start };
    let mut key = query.after.clone();
    if key.is_empty() {
        return UploadsAfter::Start;
    }
    // A longer one is behind the same keys as its start.
    key.truncate(KEY_BYTES_MAX);
    match upload_marker.as_deref().and_then(UploadId::parse) {
        Some(id) => UploadsAfter::Upload(key, id),
        None if common_prefix(&key, query) == Some(&key) => UploadsAfter::Prefix(key),
        None => UploadsAfter::Key(key),
    }
}

/// The common prefix that stands for a key in this list; `None` if the key is listed itself.
fn common_prefix<'a>(key: &'a [u8], query: &KeyListQuery) -> Option<&'a [u8]> {
    if query.delimiter.is_empty() {
        return None;
    }
    let rest = key.strip_prefix(query.prefix.as_slice())?;
    let at = rest.windows(query.delimiter.len()).position(|bytes| bytes == query.delimiter)?;
    key.get(..query.prefix.len() + at + query.delimiter.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::query::QueryParameters;

    fn start(query: &str) -> UploadsAfter {
        let query = QueryParameters::parse(Some(query)).unwrap();
        start_of(&KeyListQuery::uploads(&query).unwrap())
    }

    #[test]
    fn markers_name_the_start() {
        let id = UploadId::new(255).unwrap();
        assert_eq!(start(""), UploadsAfter::Start);
        assert_eq!(start("key-marker=a%2F"), UploadsAfter::Key(b"a/".to_vec()));
        assert_eq!(start("key-marker=a%2F&delimiter=%2F"), UploadsAfter::Prefix(b"a/".to_vec()));
        assert_eq!(start("key-marker=a%2Fb&delimiter=%2F"), UploadsAfter::Key(b"a/b".to_vec()));
        assert_eq!(start("key-marker=a%2F&delimiter=%2F&prefix=a%2F"), UploadsAfter::Key(b"a/".to_vec()));
        let marked = "key-marker=k&upload-id-marker=00000000000000ff";
        assert_eq!(start(marked), UploadsAfter::Upload(b"k".to_vec(), id));
        assert_eq!(start("key-marker=k&upload-id-marker=x"), UploadsAfter::Key(b"k".to_vec()));
    }

    #[test]
    fn keys_with_the_delimiter_behind_the_prefix_roll_up() {
        let query = |prefix: &str, delimiter: &str| {
            let text = format!("prefix={prefix}&delimiter={delimiter}");
            KeyListQuery::uploads(&QueryParameters::parse(Some(&text)).unwrap()).unwrap()
        };
        assert_eq!(common_prefix(b"a/b/c", &query("", "%2F")), Some(&b"a/"[..]));
        assert_eq!(common_prefix(b"a/b/c", &query("a%2F", "%2F")), Some(&b"a/b/"[..]));
        assert_eq!(common_prefix(b"a/b/c", &query("a%2Fb%2F", "%2F")), None);
        assert_eq!(common_prefix(b"a--b", &query("", "--")), Some(&b"a--"[..]));
        assert_eq!(common_prefix(b"a/b/c", &query("", "")), None);
    }
}
