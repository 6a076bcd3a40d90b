//! GetObject, HeadObject and GetObjectAttributes. Next: `read/get.rs` of the engine, and `answer/body.rs`.

use futures_util::{StreamExt, stream};
use http::header::LAST_MODIFIED;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{ByteRange, Error, Lookup, ObjectInfo, ObjectKey, ObjectPart, TryGet, ValueReader};
use shoal_http::NoRoom;

use super::metadata::{S3Metadata, StoredChecksum};
use super::range::ValueRange;
use super::write::etag_of;
use crate::answer::S3Answer;
use crate::answer::body::{S3Body, ValuePieces};
use crate::answer::list::{ListedObject, ListedPart};
use crate::answer::object::{ObjectAnswer, ObjectFacts, ObjectRead};
use crate::answer::result::WantedAttributes;
use crate::bucket::lifecycle::RuledObject;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::request::list::PartListQuery;
use crate::serve::call::S3Call;
use crate::serve::permission::{check_list, check_version};
use crate::state::S3State;
use crate::time::{SECOND_NS, http_date_of};

/// Bytes of memory of a value that is read while it is sent.
const PIECE_BYTES: usize = 1 << 20;

/// A read is tried again this often if its object changes between the look at its head and the read of its value.
const TRIES_MAX: usize = 8;

/// The error for a missing object: a caller that may not list does not learn that it is missing.
pub(crate) fn no_such_key(call: &S3Call) -> S3Error {
    missing_key(call, call.bucket(), call.key())
}

/// The same for an object that the request does not name as its target.
pub(crate) fn missing_key(call: &S3Call, bucket: &str, key: &[u8]) -> S3Error {
    match check_list(call, bucket, key) {
        Ok(()) => no_key(key),
        Err(denied) => denied,
    }
}

/// The error for an object that is missing, and of which the caller may know that.
pub(crate) fn no_key(key: &[u8]) -> S3Error {
    S3Error::from(ErrorCode::NoSuchKey).with("Key", String::from_utf8_lossy(key).into_owned())
}

/// The head of the answer about an object that the caller may read; with its parts, if the request asks for one.
fn answer_about(
    call: &S3Call,
    read: &ObjectRead,
    info: &ObjectInfo,
    parts: &[ObjectPart],
) -> S3Result<ObjectAnswer> {
    check_version(call, info)?;
    let metadata = &info.metadata;
    let etag = metadata.etag(info.version.0, info.bytes);
    let (bytes, modified_ns) = (info.bytes, info.modified_ns);
    let mut answer = read.answer(&ObjectFacts { metadata, etag, bytes, modified_ns, parts })?;
    if answer.status.is_success() {
        let object = RuledObject { key: call.key(), metadata, bytes, modified_ns };
        call.found.add_expiration(&mut answer.headers, &object);
    }
    Ok(answer)
}

/// An object, and its parts if the request asks for one.
async fn head_of(
    state: &S3State,
    call: &S3Call,
    key: &ObjectKey,
    read: &ObjectRead,
) -> S3Result<(ObjectInfo, Vec<ObjectPart>)> {
    let found = match read.is_of_part() {
        false => state.store.head(key).await?.map(|info| (info, Vec::new())),
        true => state.store.object_parts(key).await?,
    };
    found.ok_or_else(|| no_such_key(call))
}

fn without_body(answer: ObjectAnswer) -> S3Answer {
    S3Answer { headers: answer.headers, ..S3Answer::empty(answer.status) }
}

/// HeadObject.
pub(crate) async fn head_object(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let read = ObjectRead::parse(&call.headers, &call.query, call.caller.has_key())?;
    let (info, parts) = head_of(state, &call, &call.object_key()?, &read).await?;
    Ok(without_body(answer_about(&call, &read, &info, &parts)?))
}

/// GetObjectAttributes.
pub(crate) async fn get_attributes(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let wanted = WantedAttributes::parse(header(&call.headers, "x-amz-object-attributes")?)?;
    let page = PartListQuery::of_headers(&call.headers)?;
    let key = call.object_key()?;
    let found = match wanted.parts {
        true => state.store.object_parts(&key).await?,
        false => state.store.head(&key).await?.map(|info| (info, Vec::new())),
    };
    let (info, parts) = found.ok_or_else(|| no_such_key(&call))?;
    check_version(&call, &info)?;
    let metadata = &info.metadata;
    let etag = metadata.etag(info.version.0, info.bytes);
    let checksum = metadata.checksum();
    let parts = listed_parts(&info, &parts);
    let page = (page.after, page.max_parts);
    let document = wanted.document(&etag, info.bytes, checksum.as_ref(), &parts, page);
    call.permit.set(document.len())?;
    let mut answer = S3Answer::xml(document);
    if let Ok(date) = http_date_of(info.modified_ns / SECOND_NS).try_into() {
        answer.headers.insert(LAST_MODIFIED, date);
    }
    Ok(answer)
}

/// The parts of an object, numbered as requests with a partNumber number them: from 1 on, without gaps.
fn listed_parts(info: &ObjectInfo, parts: &[ObjectPart]) -> Vec<ListedPart> {
    let listed = |(number, part): (u16, &ObjectPart)| {
        let checksum = StoredChecksum::of_attribute(&part.checksum);
        let etag = etag_of(info);
        let object = ListedObject { etag, checksum, bytes: part.bytes, modified_ns: info.modified_ns };
        ListedPart { number, object }
    };
    (1..).zip(parts).map(listed).collect()
}

/// The reason why a value was not read.
enum ReadFailed {
    Store(Error),
    NoRoom(NoRoom),
}

impl From<Error> for ReadFailed {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<ReadFailed> for S3Error {
    fn from(failed: ReadFailed) -> Self {
        match failed {
            ReadFailed::Store(error) => error.into(),
            ReadFailed::NoRoom(no_room) => no_room.into(),
        }
    }
}

/// GetObject. A short value in memory needs no future of the store.
pub(crate) async fn get_object(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let key = call.object_key()?;
    let read = ObjectRead::parse(&call.headers, &call.query, call.caller.has_key())?;
    if read.is_of_part() {
        return by_head(state, &call, &key, &read).await;
    }
    let lookup = match state.store.try_get_range(&key, ByteRange::ALL) {
        TryGet::Shown(None) => return Err(no_such_key(&call)),
        TryGet::Shown(Some(object)) => {
            let answer = answer_about(&call, &read, &object.info, &[])?;
            return in_memory(&call, answer, object.value);
        }
        TryGet::MustWait(lookup) => lookup,
    };
    if read.is_of_all() {
        let room = |bytes: u64| call.permit.set(bytes as usize).map_err(ReadFailed::NoRoom);
        match Box::pin(state.store.get_from(lookup, &key, ByteRange::ALL, room)).await {
            Ok(None) => return Err(no_such_key(&call)),
            Ok(Some(object)) => {
                let answer = answer_about(&call, &read, &object.info, &[])?;
                return in_memory(&call, answer, object.value);
            }
            // It is too long for one read.
            Err(ReadFailed::Store(Error::Invalid(_))) => {}
            Err(failed) => return Err(failed.into()),
        }
    } else {
        // It would keep space from reuse.
        drop(lookup);
    }
    by_head(state, &call, &key, &read).await
}

/// Decides by the object's head which bytes to read.
async fn by_head(state: &S3State, call: &S3Call, key: &ObjectKey, read: &ObjectRead) -> S3Result<S3Answer> {
    for _ in 0..TRIES_MAX {
        let (info, parts) = head_of(state, call, key, read).await?;
        let answer = answer_about(call, read, &info, &parts)?;
        let Some(ValueRange { first, bytes }) = answer.range else { return Ok(without_body(answer)) };
        let range = ByteRange { first, bytes: Some(bytes) };
        if bytes > VALUE_BYTES_SINGLE_MAX {
            let reader = state.store.get_stream(key, range).await?.ok_or_else(|| no_such_key(call))?;
            if reader.info().version != info.version {
                continue;
            }
            call.permit.set(PIECE_BYTES)?;
            let body = S3Body::of_pieces(pieces(reader).await?, bytes, call.permit.clone());
            return Ok(S3Answer { status: answer.status, headers: answer.headers, body });
        }
        let room = |bytes: u64| call.permit.set(bytes as usize).map_err(ReadFailed::NoRoom);
        let object = Box::pin(state.store.get_from(Lookup::default(), key, range, room)).await?;
        let object = object.ok_or_else(|| no_such_key(call))?;
        if object.info.version == info.version {
            let body = S3Body::of_value(object.value, Some(call.permit.clone()));
            return Ok(S3Answer { status: answer.status, headers: answer.headers, body });
        }
    }
    Err(ErrorCode::SlowDown.into())
}

/// Answers with a whole value that is in memory, or a part of it.
fn in_memory(call: &S3Call, answer: ObjectAnswer, mut value: Buffer) -> S3Result<S3Answer> {
    let Some(ValueRange { first, bytes }) = answer.range else { return Ok(without_body(answer)) };
    value.truncate_front(first as usize);
    value.truncate_back(value.len().saturating_sub(bytes as usize));
    call.permit.set(value.len())?;
    let body = S3Body::of_value(value, Some(call.permit.clone()));
    Ok(S3Answer { status: answer.status, headers: answer.headers, body })
}

/// The pieces of a value. The first one is read now, so that damage is an error and no cut answer.
async fn pieces(mut reader: ValueReader) -> S3Result<ValuePieces> {
    let first = reader.next().await?;
    let others = stream::try_unfold(reader, |mut reader| async move {
        Ok::<_, Error>(reader.next().await?.map(|piece| (piece, reader)))
    });
    Ok(Box::pin(stream::iter(first.map(Ok)).chain(others)))
}
