//! UploadPartCopy: a part whose bytes are those of an object, or of a range of them.

use shoal_engine::{ByteRange, Metadata, ObjectInfo, ObjectKey, ValueReader};

use super::part::{finish_part, needed_part_number};
use super::{checksum_of, open_upload};
use crate::answer::S3Answer;
use crate::answer::result::copy_result;
use crate::body::check::BodyCheck;
use crate::body::claims::BodyClaims;
use crate::object::conditions::ReadConditions;
use crate::object::copy::COPY_BYTES_MAX;
use crate::object::get::missing_key;
use crate::object::metadata::S3Metadata;
use crate::object::put::write_piece;
use crate::object::range::of_copy_source;
use crate::object::write::etag_of;
use crate::request::copy::CopySource;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::serve::call::S3Call;
use crate::serve::permission::check_source;
use crate::state::S3State;
use crate::time::SECOND_NS;

/// A copy is tried again this often if its source changes between the look at its head and the read of its value.
const TRIES_MAX: usize = 8;

/// UploadPartCopy.
pub(crate) async fn upload_part_copy(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let number = needed_part_number(&call.query)?;
    let source = CopySource::parse(&call.headers)?;
    let readable = check_source(state, &call, &source).await?;
    let info = open_upload(state, &call).await?;
    let algorithm = checksum_of(&info).map(|checksum| checksum.algorithm);
    let (mut reader, bytes) = open_source(state, &call, &source).await?;
    readable.check_version(reader.info())?;
    call.permit.set(bytes.min(COPY_BYTES_MAX) as usize)?;
    let scheme = call.found.etags(state.etags);
    let mut check = BodyCheck::new(BodyClaims::of_bytes(bytes), None, scheme, algorithm);
    let writer = state.store.upload_part_stream(&info.upload, number, Metadata::default())?;
    let mut writer = writer.with_length(bytes);
    while let Some(piece) = reader.next().await? {
        for chunk in piece.chunks() {
            write_piece(&mut check, &mut writer, chunk, S3Error::from).await?;
        }
    }
    let metadata = finish_part(writer, check.finish()?).await?;
    let document = copy_result(true, &metadata.etag(0, 0), state.now_ns(), metadata.checksum().as_ref());
    // The memory of the value is free.
    call.permit.set(document.len())?;
    Ok(S3Answer::xml(document))
}

/// Opens the source of a part. Returns also the bytes that the part gets.
async fn open_source(state: &S3State, call: &S3Call, source: &CopySource) -> S3Result<(ValueReader, u64)> {
    let from = ObjectKey::new(&source.bucket, &source.key)?;
    let missing = || missing_key(call, &source.bucket, &source.key);
    for _ in 0..TRIES_MAX {
        let info = state.store.head(&from).await?.ok_or_else(missing)?;
        let (range, bytes) = judged_range(call, &info)?;
        let reader = state.store.get_stream(&from, range).await?;
        let reader = reader.ok_or_else(missing)?;
        if reader.info().version == info.version {
            return Ok((reader, bytes));
        }
    }
    Err(ErrorCode::OperationAborted.into())
}

/// Judges the conditions on a source. Returns the range that the request asks for, and its length.
fn judged_range(call: &S3Call, info: &ObjectInfo) -> S3Result<(ByteRange, u64)> {
    let judged = ReadConditions::of_copy_source(&call.headers)?;
    judged.check_source(&etag_of(info).to_string(), info.modified_ns / SECOND_NS)?;
    match header(&call.headers, "x-amz-copy-source-range")? {
        None => Ok((ByteRange::ALL, info.bytes)),
        Some(range) => {
            let range = of_copy_source(range, info.bytes)?;
            Ok((ByteRange { first: range.first, bytes: Some(range.bytes) }, range.bytes))
        }
    }
}
