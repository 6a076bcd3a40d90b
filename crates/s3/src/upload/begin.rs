//! CreateMultipartUpload.

use http::HeaderValue;
use shoal_engine::NewUpload;

use super::items_of;
use super::join::UploadChecksum;
use crate::access::acl::CannedAcl;
use crate::answer::S3Answer;
use crate::answer::result::upload_result;
use crate::bucket::settings::allow_object_acl;
use crate::object::put::given_metadata;
use crate::request::error::S3Result;
use crate::serve::call::S3Call;
use crate::state::S3State;

/// CreateMultipartUpload.
pub(crate) async fn create_upload(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let checksum = UploadChecksum::parse(&call.headers)?;
    let settings =
        NewUpload { metadata: given_metadata(&call.headers)?, items: items_of(call.caller.id(), checksum) };
    allow_object_acl(state, &call, CannedAcl::in_headers(&call.headers)?).await?;
    let key = call.object_key()?;
    let upload = state.store.begin_upload(&key, settings, call.found.record.as_ref()).await?;
    let mut answer = S3Answer::xml(upload_result(call.bucket(), call.key(), upload.id.number()));
    call.found.add_abort(&mut answer.headers, call.key(), state.now_ns());
    if let Some(checksum) = checksum {
        let algorithm = HeaderValue::from_static(checksum.algorithm.name());
        answer.headers.insert("x-amz-checksum-algorithm", algorithm);
        answer.headers.insert("x-amz-checksum-type", HeaderValue::from_static(checksum.type_name()));
    }
    Ok(answer)
}
