//! Changes of metadata without the value: tags. The value is copied, and the write is refused if the object changed meanwhile.

use http::StatusCode;
use shoal_engine::{ByteRange, Error, Expiry, Metadata, ObjectKey, PutOptions, RejectRules};

use super::get::no_such_key;
use super::metadata::S3Metadata;
use super::tags::{OBJECT_TAGS_MAX, TagSet};
use super::write::Target;
use crate::answer::S3Answer;
use crate::bucket::settings::{allow_object_acl, asked_acl};
use crate::object::documents::tagging::{parse_tagging, write_tagging};
use crate::request::error::{ErrorCode, S3Result};
use crate::request::operation::S3Operation;
use crate::serve::call::S3Call;
use crate::state::{S3State, owner};

/// A change is tried again this often if the object changes meanwhile.
const TRIES_MAX: usize = 16;

/// Bytes of memory that a change takes at most.
const CHANGE_BYTES_MAX: u64 = 4 << 20;

/// GetObjectTagging.
pub(crate) async fn get_tags(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let info = state.store.head(&call.object_key()?).await?.ok_or_else(|| no_such_key(&call))?;
    Ok(S3Answer::xml(write_tagging(&info.metadata.tags())))
}

/// PutObjectTagging and DeleteObjectTagging.
pub(crate) async fn set_tags(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let is_delete = call.row.operation == S3Operation::DeleteObjectTagging;
    let tags = match is_delete {
        true => TagSet::default(),
        false => parse_tagging(&call.document(state).await?, OBJECT_TAGS_MAX)?,
    };
    let key = call.object_key()?;
    change(state, &call, &key, |metadata| metadata.set_tags(&tags)).await?;
    Ok(S3Answer::empty(if is_delete { StatusCode::NO_CONTENT } else { StatusCode::OK }))
}

/// GetObjectAcl.
pub(crate) async fn get_acl(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let info = state.store.head(&call.object_key()?).await?.ok_or_else(|| no_such_key(&call))?;
    Ok(S3Answer::xml(info.metadata.acl().document(&owner(call.found.owner()))))
}

/// PutObjectAcl.
pub(crate) async fn put_acl(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let acl = asked_acl(state, &mut call).await?;
    allow_object_acl(state, &call, Some(acl)).await?;
    let key = call.object_key()?;
    change(state, &call, &key, |metadata| metadata.set_acl(acl)).await?;
    Ok(S3Answer::empty(StatusCode::OK))
}

/// Changes the metadata of an object, which keeps its value, its date and its end.
async fn change(
    state: &S3State,
    call: &S3Call,
    key: &ObjectKey,
    change: impl Fn(&mut Metadata),
) -> S3Result<()> {
    for _ in 0..TRIES_MAX {
        let reader = state.store.get_stream(key, ByteRange::ALL).await?.ok_or_else(|| no_such_key(call))?;
        let info = reader.info();
        let mut metadata = info.metadata.clone();
        change(&mut metadata);
        metadata.check_bytes()?;
        let options = PutOptions {
            rules: RejectRules { if_version_not: Some(info.version), ..RejectRules::default() },
            metadata,
            modified_ns: Some(info.modified_ns),
            expiry: Expiry::from(info.expiry),
        };
        call.permit.set(info.bytes.min(CHANGE_BYTES_MAX) as usize)?;
        let target = Target { store: &state.store, key, bucket: &call.found };
        match target.copy(reader, options, &mut ()).await {
            Err(Error::ConditionFailed { .. }) => {}
            written => return Ok(written.map(drop)?),
        }
    }
    Err(ErrorCode::OperationAborted.into())
}
