//! PutObject: from a body to an object. Next: `write.rs`, and `write/put.rs` of the engine.

use http::{HeaderMap, StatusCode};
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{Error, Metadata, ObjectKey, PutOptions, RejectRules, ValueWriter};

use super::conditions::WriteCondition;
use super::etag::ObjectEtag;
use super::given::{metadata_in, tags_in};
use super::metadata::{S3Metadata, StoredChecksum};
use super::tags::TagSet;
use super::write::{NewValue, Target, etag_of, refused, rules_of};
use crate::access::acl::CannedAcl;
use crate::answer::S3Answer;
use crate::answer::object::written_headers;
use crate::body::check::{BodyCheck, CheckedBody};
use crate::body::claims::BodyClaims;
use crate::body::reader::BodyReader;
use crate::bucket::FoundBucket;
use crate::bucket::lifecycle::RuledObject;
use crate::bucket::settings::allow_object_acl;
use crate::request::error::{S3Error, S3Result};
use crate::serve::call::S3Call;
use crate::state::S3State;

/// An object on its way into the store.
pub(crate) struct NewObject {
    pub(crate) key: ObjectKey,
    pub(crate) metadata: Metadata,
    pub(crate) condition: WriteCondition,
}

impl NewObject {
    fn set_of_body(&mut self, body: &CheckedBody) {
        let checksum = body.checksum.map(|value| StoredChecksum { value, parts: None });
        self.metadata.set_of_value(&body.etag, checksum);
    }

    fn options(&self, rules: RejectRules) -> PutOptions {
        PutOptions { rules, metadata: self.metadata.clone(), ..PutOptions::default() }
    }
}

/// The metadata that a request sets, with its tags. Its ACL is still to be allowed.
pub(crate) fn given_metadata(headers: &HeaderMap) -> S3Result<Metadata> {
    metadata_with(headers, &tags_in(headers)?)
}

/// The metadata in the headers of a request, with these tags.
pub(crate) fn metadata_with(headers: &HeaderMap, tags: &TagSet) -> S3Result<Metadata> {
    let mut metadata = metadata_in(headers)?;
    metadata.set_tags(tags);
    // Everything that would not fit is refused before the body is sent.
    metadata.check_bytes()?;
    Ok(metadata)
}

/// Looks at the present object before the body is sent, so that a client does not send 5 GiB for nothing.
pub(crate) async fn look_early(state: &S3State, key: &ObjectKey, condition: &WriteCondition) -> S3Result<()> {
    if *condition == WriteCondition::Always {
        return Ok(());
    }
    let present = state.store.head(key).await?;
    condition.judge(present.map(|info| etag_of(&info).to_string()).as_deref())
}

/// PutObject.
pub(crate) async fn put_object(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let claims = BodyClaims::of(&call.headers, call.payload)?;
    let condition = WriteCondition::parse(&call.headers)?;
    let object = NewObject { key: call.object_key()?, metadata: given_metadata(&call.headers)?, condition };
    allow_object_acl(state, &call, CannedAcl::in_headers(&call.headers)?).await?;
    look_early(state, &object.key, &object.condition).await?;
    let (reader, short) = body_of(state, &mut call, claims.value_bytes)?;
    let check = BodyCheck::new(claims, call.chunks.take(), call.found.etags(state.etags), None);
    match short {
        Some(bytes) => put_short(state, &call, object, reader, check, bytes).await,
        None => put_long(state, &call, object, reader, check).await,
    }
}

/// The reader of the body of a request; with the length of the value if that is kept in memory as a whole.
pub(crate) fn body_of(
    state: &S3State,
    call: &mut S3Call,
    value_bytes: Option<u64>,
) -> S3Result<(BodyReader, Option<usize>)> {
    let limits = (state.min_rate, state.room_wait_max);
    let body = call.take_body()?;
    let Some(bytes) = value_bytes.filter(|bytes| *bytes <= VALUE_BYTES_SINGLE_MAX) else {
        return Ok((BodyReader::stream(body, limits, &call.permit), None));
    };
    let announced = http_body::Body::size_hint(&body).exact().unwrap_or(bytes).max(bytes);
    let announced = u32::try_from(announced).unwrap_or(u32::MAX);
    Ok((BodyReader::whole(body, limits, &call.permit, announced), Some(bytes as usize)))
}

/// The memory for a value: that of the store, if it has some.
pub(crate) fn value_of(state: &S3State, call: &S3Call, key: &ObjectKey, bytes: usize) -> NewValue {
    let received = call
        .permit
        .take_frames(bytes)
        .and_then(|permit| Some(NewValue::Received(state.store.receive_buffer(key, bytes)?, permit)));
    received.unwrap_or_else(|| NewValue::Chunks(Box::new(Buffer::new())))
}

/// Stores a value that is in memory as a whole.
async fn put_short(
    state: &S3State,
    call: &S3Call,
    mut object: NewObject,
    mut reader: BodyReader,
    check: BodyCheck,
    bytes: usize,
) -> S3Result<S3Answer> {
    // A decision about ETags may be made several times, and needs its value each time.
    let mut value = match rules_of(&object.condition) {
        Some(_) => value_of(state, call, &object.key, bytes),
        None => NewValue::Chunks(Box::new(Buffer::new())),
    };
    let checked = reader.read(check, |piece, data| value.take(piece, data)).await?;
    object.set_of_body(&checked);
    let options = object.options(RejectRules::default());
    let target = Target { store: &state.store, key: &object.key, bucket: &call.found };
    let version = target.write(value, &options, &object.condition).await?;
    let stored = StoredObject { metadata: object.metadata, version: version.0, bytes: checked.bytes };
    Ok(stored.answer(state, call))
}

/// Stores a value piece by piece.
async fn put_long(
    state: &S3State,
    call: &S3Call,
    object: NewObject,
    mut reader: BodyReader,
    check: BodyCheck,
) -> S3Result<S3Answer> {
    let mut streamed = StreamedObject::begin(state, &call.found, object, check)?;
    while let Some(piece) = reader.next().await? {
        streamed.take(&piece).await?;
    }
    let stored = streamed.finish(state).await?;
    Ok(stored.answer(state, call))
}

/// An object whose value is stored while its body arrives.
pub(crate) struct StreamedObject {
    object: NewObject,
    writer: ValueWriter,
    check: BodyCheck,
}

impl StreamedObject {
    /// Starts one in the bucket that was found.
    pub(crate) fn begin(
        state: &S3State,
        bucket: &FoundBucket,
        object: NewObject,
        check: BodyCheck,
    ) -> S3Result<Self> {
        let early = object.options(rules_of(&object.condition).unwrap_or_default());
        let target = Target { store: &state.store, key: &object.key, bucket };
        let writer =
            target.stream(early, check.value_bytes()).map_err(|error| refused(&error, &object.condition))?;
        Ok(Self { object, writer, check })
    }

    /// Takes the next piece of the body.
    pub(crate) async fn take(&mut self, piece: &[u8]) -> S3Result<()> {
        let Self { object, writer, check } = self;
        write_piece(check, writer, piece, |error| refused(&error, &object.condition)).await
    }

    /// Bytes of the value so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.check.bytes()
    }

    /// Stores the object if its body fulfils its claims.
    pub(crate) async fn finish(self, state: &S3State) -> S3Result<StoredObject> {
        let Self { mut object, mut writer, check } = self;
        let checked = check.finish()?;
        let before = object.metadata.clone();
        object.set_of_body(&checked);
        if writer.set_metadata(object.metadata.clone()).is_err() {
            // Long metadata is stored before the value and already written: such an object has the ETag of its version.
            object.metadata = before;
        }
        if rules_of(&object.condition).is_none() {
            writer.set_rules(judged_rules(state, &object.key, &object.condition).await?);
        }
        let stored = writer.finish().await.map_err(|error| refused(&error, &object.condition))?;
        Ok(StoredObject { metadata: object.metadata, version: stored.version.0, bytes: checked.bytes })
    }
}

/// Checks a piece of a body, and writes the bytes of the value in it.
pub(crate) async fn write_piece(
    check: &mut BodyCheck,
    writer: &mut ValueWriter,
    piece: &[u8],
    failed: impl Fn(Error) -> S3Error,
) -> S3Result<()> {
    let mut parts: Vec<&[u8]> = Vec::new();
    check.feed(piece, &mut |data| parts.push(data))?;
    for part in parts {
        writer.write(part).await.map_err(&failed)?;
    }
    Ok(())
}

/// An object that was stored.
pub(crate) struct StoredObject {
    metadata: Metadata,
    version: u64,
    bytes: u64,
}

impl StoredObject {
    /// Its ETag.
    pub(crate) fn etag(&self) -> ObjectEtag {
        self.metadata.etag(self.version, self.bytes)
    }

    /// The headers of the answer.
    pub(crate) fn answer(&self, state: &S3State, call: &S3Call) -> S3Answer {
        let Self { metadata, bytes, .. } = self;
        let mut headers = written_headers(&self.etag(), metadata.checksum().as_ref());
        let object = RuledObject { key: call.key(), metadata, bytes: *bytes, modified_ns: state.now_ns() };
        call.found.add_expiration(&mut headers, &object);
        S3Answer { headers, ..S3Answer::empty(StatusCode::OK) }
    }
}

/// Judges a condition on an ETag, and returns the rules by which it still holds at the write: the object is the one that was judged.
pub(crate) async fn judged_rules(
    state: &S3State,
    key: &ObjectKey,
    condition: &WriteCondition,
) -> S3Result<RejectRules> {
    let present = state.store.head(key).await?;
    condition.judge(present.as_ref().map(|info| etag_of(info).to_string()).as_deref())?;
    let none = RejectRules::default();
    Ok(match present {
        Some(info) => RejectRules { if_version_not: Some(info.version), ..none },
        None => RejectRules { if_exists: true, ..none },
    })
}
