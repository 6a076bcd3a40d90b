//! UploadPart: from a body to a part.

use http::StatusCode;
use shoal_engine::{Metadata, PartValue, ValueWriter};

use super::join::UploadChecksum;
use super::{checksum_of, open_upload, part_metadata};
use crate::answer::S3Answer;
use crate::answer::object::written_headers;
use crate::body::check::{BodyCheck, CheckedBody};
use crate::body::checksum::ChecksumAlgorithm;
use crate::body::claims::BodyClaims;
use crate::object::metadata::S3Metadata;
use crate::object::put::{body_of, value_of, write_piece};
use crate::object::write::NewValue;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::list::part_number;
use crate::request::query::QueryParameters;
use crate::serve::call::S3Call;
use crate::state::S3State;

/// The number of the part that a request sends.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn needed_part_number(query: &QueryParameters) -> S3Result<u16> {
    let why = "A part needs the parameter partNumber, from 1 to 10000.";
    part_number(query)?.ok_or_else(|| S3Error::argument("partNumber", "", why))
}

/// UploadPart. The upload must be open when the body starts and when the part is stored.
pub(crate) async fn upload_part(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let number = needed_part_number(&call.query)?;
    let claims = BodyClaims::of(&call.headers, call.payload)?;
    let info = open_upload(state, &call).await?;
    let algorithm = algorithm_of(checksum_of(&info), &claims)?;
    let (mut reader, short) = body_of(state, &mut call, claims.value_bytes)?;
    let mut check = BodyCheck::new(claims, call.chunks.take(), call.found.etags(state.etags), algorithm);
    let metadata = match short {
        Some(bytes) => {
            let mut value = value_of(state, &call, &info.upload.key, bytes);
            let checked = reader.read(check, |piece, data| value.take(piece, data)).await?;
            let metadata = part_metadata(&checked);
            let (value, _permit) = match value {
                NewValue::Chunks(value) => (PartValue::Chunks(*value), None),
                NewValue::Received(value, permit) => (PartValue::Received(value), Some(permit)),
            };
            state.store.upload_part(&info.upload, number, value, metadata.clone()).await?;
            metadata
        }
        None => {
            let mut writer = state.store.upload_part_stream(&info.upload, number, Metadata::default())?;
            if let Some(bytes) = check.value_bytes() {
                writer = writer.with_length(bytes);
            }
            while let Some(piece) = reader.next().await? {
                write_piece(&mut check, &mut writer, &piece, S3Error::from).await?;
            }
            finish_part(writer, check.finish()?).await?
        }
    };
    let headers = written_headers(&metadata.etag(0, 0), metadata.checksum().as_ref());
    Ok(S3Answer { headers, ..S3Answer::empty(StatusCode::OK) })
}

/// Stores a part whose bytes were written. Returns its metadata.
pub(super) async fn finish_part(mut writer: ValueWriter, checked: CheckedBody) -> S3Result<Metadata> {
    let metadata = part_metadata(&checked);
    writer.set_metadata(metadata.clone())?;
    writer.finish().await?;
    Ok(metadata)
}

/// The algorithm that is computed for a part without a checksum. One with a checksum must have that of its upload.
fn algorithm_of(upload: Option<UploadChecksum>, claims: &BodyClaims) -> S3Result<Option<ChecksumAlgorithm>> {
    let Some(wanted) = upload.map(|upload| upload.algorithm) else { return Ok(None) };
    match claims.algorithm() {
        Some(other) if other != wanted => {
            let why = format!(
                "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
                wanted.name().to_ascii_lowercase(),
                other.name().to_ascii_lowercase()
            );
            Err(S3Error::new(ErrorCode::InvalidRequest, why))
        }
        _ => Ok(Some(wanted)),
    }
}
