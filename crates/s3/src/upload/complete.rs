//! CompleteMultipartUpload and AbortMultipartUpload.

use http::StatusCode;
use shoal_engine::{
    Attributes, CompleteOptions, Completed, Completing, Error, Metadata, ObjectInfo, PARTS_MAX, PartInfo,
    UploadInfo,
};

use super::document::{CompletedPart, parse_completed_parts};
use super::join::{JoinedParts, join_parts};
use super::{checksum_of, listed_part, open_upload, upload_of};
use crate::answer::S3Answer;
use crate::answer::list::ListedPart;
use crate::answer::result::complete_result;
use crate::bucket::lifecycle::RuledObject;
use crate::object::conditions::WriteCondition;
use crate::object::metadata::S3Metadata;
use crate::object::write::known_etag;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::serve::call::S3Call;
use crate::state::S3State;

/// A completion is tried again this often if parts are replaced meanwhile.
const TRIES_MAX: usize = 8;

/// About the bytes of memory that a part of a completion takes.
const PART_BYTES: usize = 512;

/// CompleteMultipartUpload. A repeated one is answered as the first one.
pub(crate) async fn complete_upload(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let condition = WriteCondition::parse(&call.headers)?;
    let upload = upload_of(&call)?;
    let asked = parse_completed_parts(&call.document(state).await?)?;
    let info = state.store.upload(&upload).await?.ok_or(ErrorCode::NoSuchUpload)?;
    if let Some(completed) = &info.completed {
        return answer(state, &call, completed).await;
    }
    for _ in 0..TRIES_MAX {
        let found = state.store.list_parts(&upload, 0, PARTS_MAX.into()).await?.parts;
        call.permit.set((asked.len() + found.len()) * PART_BYTES)?;
        match complete(state, &call, &info, (&asked, &found), &condition).await {
            Ok(Completing::Done(completed)) => return answer(state, &call, &completed).await,
            Ok(Completing::Refused(error)) | Err(CompleteFailed::Request(error)) => return Err(error),
            // It was replaced since it was listed.
            Err(CompleteFailed::Store(Error::NoPart(_))) => {}
            Err(CompleteFailed::Store(error)) => return Err(error.into()),
        }
    }
    Err(ErrorCode::OperationAborted.into())
}

/// The reason why an upload was not completed.
enum CompleteFailed {
    Request(S3Error),
    Store(Error),
}

impl From<S3Error> for CompleteFailed {
    fn from(error: S3Error) -> Self {
        Self::Request(error)
    }
}

/// Completes an upload with those of its parts that the request asks for.
async fn complete(
    state: &S3State,
    call: &S3Call,
    info: &UploadInfo,
    (asked, found): (&[CompletedPart], &[PartInfo]),
    condition: &WriteCondition,
) -> Result<Completing<S3Error>, CompleteFailed> {
    let listed: Vec<ListedPart> = found.iter().map(listed_part).collect();
    let checksum = checksum_of(info);
    let JoinedParts { used, etag, checksum, .. } = {
        let joined = join_parts(asked, &listed, checksum)?;
        joined.check_claims(&call.headers, checksum)?;
        joined
    };
    let mut metadata = info.settings.metadata.clone();
    metadata.set_of_value(&etag, checksum);
    let mut kept = Metadata::default();
    kept.set_of_value(&etag, checksum);
    let parts: Vec<_> = used.iter().filter_map(|place| found.get(*place)).map(PartInfo::to_ref).collect();
    let judge = |present: Option<&ObjectInfo>| match present.map(known_etag) {
        // The ETag depends on a write in flight.
        Some(None) => Err(ErrorCode::OperationAborted.into()),
        known => condition.judge(known.flatten().map(|etag| etag.to_string()).as_deref()),
    };
    let options = CompleteOptions {
        metadata,
        answer: kept.attributes,
        judge: (*condition != WriteCondition::Always).then_some(&judge as _),
        bucket: call.found.record.as_ref(),
    };
    state.store.complete_upload(&info.upload, &parts, options).await.map_err(CompleteFailed::Store)
}

/// The answer about an object that was made.
async fn answer(state: &S3State, call: &S3Call, completed: &Completed) -> S3Result<S3Answer> {
    let kept = Metadata { attributes: Attributes::clone(&completed.answer), ..Metadata::default() };
    let etag = kept.etag(completed.version.0, 0);
    let location = call.location(state)?;
    let document = complete_result(&location, (call.bucket(), call.key()), &etag, kept.checksum().as_ref());
    call.permit.set(document.len())?;
    let mut answer = S3Answer::xml(document);
    if call.found.lifecycle.is_some() {
        // The object is complete, whatever a look at it finds.
        let found = state.store.head(&call.object_key()?).await.ok().flatten();
        if let Some(info) = found.filter(|info| info.version == completed.version) {
            let ObjectInfo { metadata, bytes, modified_ns, .. } = &info;
            let object = RuledObject { key: call.key(), metadata, bytes: *bytes, modified_ns: *modified_ns };
            call.found.add_expiration(&mut answer.headers, &object);
        }
    }
    Ok(answer)
}

/// AbortMultipartUpload.
pub(crate) async fn abort_upload(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let info = open_upload(state, &call).await?;
    match state.store.abort_upload(&info.upload).await? {
        true => Ok(S3Answer::empty(StatusCode::NO_CONTENT)),
        false => Err(ErrorCode::NoSuchUpload.into()),
    }
}
