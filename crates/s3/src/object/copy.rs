//! CopyObject.

use http::HeaderMap;
use shoal_engine::{ByteRange, Error, Metadata, ObjectInfo, ObjectKey, PutOptions, RejectRules, ValueReader};

use super::conditions::{ReadConditions, WriteCondition};
use super::get::missing_key;
use super::given::tags_in;
use super::metadata::{S3Metadata, StoredChecksum};
use super::put::{given_metadata, judged_rules, look_early};
use super::write::{CopyWatch, Target, etag_of, refused, rules_of};
use crate::access::acl::CannedAcl;
use crate::answer::S3Answer;
use crate::answer::result::copy_result;
use crate::body::check::BodyCheck;
use crate::body::checksum::ChecksumAlgorithm;
use crate::body::claims::BodyClaims;
use crate::bucket::lifecycle::RuledObject;
use crate::bucket::settings::allow_object_acl;
use crate::request::copy::CopySource;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::serve::call::S3Call;
use crate::serve::permission::check_source;
use crate::state::S3State;
use crate::time::SECOND_NS;

/// A copy onto itself is tried again this often if the object changes meanwhile.
const TRIES_MAX: usize = 8;

/// Bytes of memory that a copy takes at most.
pub(crate) const COPY_BYTES_MAX: u64 = 4 << 20;

/// CopyObject.
pub(crate) async fn copy_object(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let source = CopySource::parse(&call.headers)?;
    let readable = check_source(state, &call, &source).await?;
    source.check_onto(call.bucket(), call.key())?;
    let condition = WriteCondition::parse(&call.headers)?;
    let key = call.object_key()?;
    look_early(state, &key, &condition).await?;
    allow_object_acl(state, &call, CannedAcl::in_headers(&call.headers)?).await?;
    let from = ObjectKey::new(&source.bucket, &source.key)?;
    for _ in 0..TRIES_MAX {
        let reader = state
            .store
            .get_stream(&from, ByteRange::ALL)
            .await?
            .ok_or_else(|| missing_key(&call, &source.bucket, &source.key))?;
        let info = reader.info().clone();
        readable.check_version(&info)?;
        let judged = ReadConditions::of_copy_source(&call.headers)?;
        judged.check_source(&etag_of(&info).to_string(), info.modified_ns / SECOND_NS)?;
        let metadata = metadata_of(&call.headers, &source, &info)?;
        let rules = match rules_of(&condition) {
            // The object is still the one whose value is copied.
            _ if from == key => RejectRules { if_version_not: Some(info.version), ..RejectRules::default() },
            Some(rules) => rules,
            None => judged_rules(state, &key, &condition).await?,
        };
        if from == key {
            condition.judge(Some(&etag_of(&info).to_string()))?;
        }
        call.permit.set(info.bytes.min(COPY_BYTES_MAX) as usize)?;
        match copy(state, &call, &key, reader, (metadata, rules)).await {
            Err(CopyFailed::Store(Error::ConditionFailed { .. })) if from == key => {}
            Err(CopyFailed::Store(error)) => return Err(refused(&error, &condition)),
            Err(CopyFailed::Body(error)) => return Err(error),
            Ok(answer) => {
                // The memory of the value is free.
                call.permit.set(answer.body.bytes() as usize)?;
                return Ok(answer);
            }
        }
    }
    Err(ErrorCode::OperationAborted.into())
}

/// The metadata of the copy: that of the source, or that of the request.
fn metadata_of(headers: &HeaderMap, source: &CopySource, info: &ObjectInfo) -> S3Result<Metadata> {
    let own = &info.metadata;
    let mut metadata = if source.replaces_metadata { given_metadata(headers)? } else { own.clone() };
    metadata.set_tags(&if source.replaces_tags { tags_in(headers)? } else { own.tags() });
    if source.replaces_metadata {
        return Ok(metadata);
    }
    metadata.set_acl(CannedAcl::in_headers(headers)?.unwrap_or_default());
    Ok(metadata)
}

enum CopyFailed {
    Store(Error),
    Body(S3Error),
}

/// Copies a value, and hashes it: the ETag of a copy is that of a put. Returns the answer.
async fn copy(
    state: &S3State,
    call: &S3Call,
    key: &ObjectKey,
    reader: ValueReader,
    (mut metadata, rules): (Metadata, RejectRules),
) -> Result<S3Answer, CopyFailed> {
    let bytes = reader.info().bytes;
    let wanted = header(&call.headers, "x-amz-checksum-algorithm").map_err(CopyFailed::Body)?;
    let wanted = match wanted.map(|name| (name, ChecksumAlgorithm::of_name(name))) {
        Some((name, None)) => {
            let why = "The checksum algorithm is not known.";
            return Err(CopyFailed::Body(S3Error::argument("x-amz-checksum-algorithm", name, why)));
        }
        Some((_, algorithm)) => algorithm,
        None => metadata.checksum().map(|checksum| checksum.value.algorithm()),
    };
    let check = BodyCheck::new(BodyClaims::of_bytes(bytes), None, call.found.etags(state.etags), wanted);
    metadata = metadata.of_new_value();
    let modified_ns = state.now_ns();
    let options = PutOptions {
        rules,
        metadata: metadata.clone(),
        modified_ns: Some(modified_ns),
        ..PutOptions::default()
    };
    let mut hashing = Hashing { check: Some(check), metadata };
    let target = Target { store: &state.store, key, bucket: &call.found };
    let version = target.copy(reader, options, &mut hashing).await.map_err(CopyFailed::Store)?;
    let Hashing { metadata, .. } = hashing;
    let etag = metadata.etag(version.0, bytes);
    let mut answer = S3Answer::xml(copy_result(false, &etag, modified_ns, metadata.checksum().as_ref()));
    let object = RuledObject { key: call.key(), metadata: &metadata, bytes, modified_ns };
    call.found.add_expiration(&mut answer.headers, &object);
    Ok(answer)
}

/// Hashes a value that is copied.
struct Hashing {
    /// `None` at the end.
    check: Option<BodyCheck>,
    metadata: Metadata,
}

impl CopyWatch for Hashing {
    fn look(&mut self, bytes: &[u8]) {
        if let Some(check) = &mut self.check {
            // A value of the store has the announced length, which `finish` checks.
            let _ = check.feed(bytes, &mut |_| {});
        }
    }

    fn finish(&mut self, options: &mut PutOptions) {
        if let Some(Ok(found)) = self.check.take().map(BodyCheck::finish) {
            let checksum = found.checksum.map(|value| StoredChecksum { value, parts: None });
            self.metadata.set_of_value(&found.etag, checksum);
            options.metadata = self.metadata.clone();
        }
    }
}
