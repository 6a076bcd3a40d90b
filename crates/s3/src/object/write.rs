//! Writes of one object under a condition: exactly one of many racers wins, because the store decides with the write.

use bytes::Bytes;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{
    Change, Decision, Error, Lsn, Object, ObjectInfo, ObjectKey, PutOptions, ReadLevel, ReceiveBuffer,
    RejectRules, Store, Ticket, TransactOptions, ValueReader, ValueWriter, Write,
};
use shoal_http::FramesPermit;
use shoal_metrics::{Stage, mark};

use super::conditions::WriteCondition;
use super::etag::ObjectEtag;
use super::metadata::S3Metadata;
use crate::bucket::FoundBucket;
use crate::request::error::{ErrorCode, S3Error, S3Result};

/// Shorter pieces of a body are copied, so that they do not hold the memory in which they came.
const KEPT_BYTES_MIN: usize = 4 << 10;

/// A value in memory.
pub(crate) enum NewValue {
    /// In the memory in which it came.
    Chunks(Box<Buffer>),
    /// In memory of the store.
    Received(ReceiveBuffer, FramesPermit),
}

impl NewValue {
    /// Takes bytes of the value, which are a part of `piece`. Bytes without room are left out: the check of the body refuses them.
    pub(crate) fn take(&mut self, piece: &Bytes, data: &[u8]) {
        match self {
            Self::Chunks(buffer) if data.len() < KEPT_BYTES_MIN => buffer.append_copy(data),
            Self::Chunks(buffer) => buffer.append_external(piece.slice_ref(data)),
            Self::Received(buffer, _) if data.len() <= buffer.missing() => buffer.take(data),
            Self::Received(..) => {}
        }
    }
}

/// The ETag of an object that a decision sees; `None` if it follows from a version that is not known yet.
pub(crate) fn known_etag(info: &ObjectInfo) -> Option<ObjectEtag> {
    let etag = info.metadata.etag(info.version.0, info.bytes);
    let is_unknown = matches!(etag, ObjectEtag::Version(..)) && info.version == Lsn::NONE;
    (!is_unknown).then_some(etag)
}

/// The ETag of an object.
pub(crate) fn etag_of(info: &ObjectInfo) -> ObjectEtag {
    info.metadata.etag(info.version.0, info.bytes)
}

/// The rules of the store that express a condition; `None` if it depends on an ETag.
pub(crate) fn rules_of(condition: &WriteCondition) -> Option<RejectRules> {
    let none = RejectRules::default();
    match condition {
        WriteCondition::Always => Some(none),
        WriteCondition::NoneMatch(list) if list == "*" => Some(RejectRules { if_exists: true, ..none }),
        WriteCondition::Match(list) if list == "*" => Some(RejectRules { if_missing: true, ..none }),
        WriteCondition::NoneMatch(_) | WriteCondition::Match(_) => None,
    }
}

/// The error of a write; a failed rule is one of `condition`.
pub(crate) fn refused(error: &Error, condition: &WriteCondition) -> S3Error {
    match error {
        Error::ConditionFailed { current, .. } => {
            let judged = condition.judge(current.map(|_| "\"\""));
            judged.err().unwrap_or_else(|| ErrorCode::PreconditionFailed.into())
        }
        error => S3Error::from(error.clone()),
    }
}

/// The outcome of a decision.
enum Verdict {
    Done,
    Refused(S3Error),
    /// The ETag depends on a version that is not known yet.
    Unknown,
}

/// Sees the bytes of a value that is copied.
pub(crate) trait CopyWatch: Send {
    /// These are the next bytes.
    fn look(&mut self, bytes: &[u8]);

    /// These were all of them: sets the options that follow from them.
    fn finish(&mut self, options: &mut PutOptions);
}

/// Looks at nothing.
impl CopyWatch for () {
    fn look(&mut self, _: &[u8]) {}

    fn finish(&mut self, _: &mut PutOptions) {}
}

/// An object that is written.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) store: &'a Store,
    pub(crate) key: &'a ObjectKey,
    /// A bucket with a record must exist when the write takes place.
    pub(crate) bucket: &'a FoundBucket,
}

impl Target<'_> {
    /// Stores `value` if `condition` holds. Returns the version.
    pub(crate) async fn write(
        self,
        value: NewValue,
        options: &PutOptions,
        condition: &WriteCondition,
    ) -> S3Result<Lsn> {
        let Some(rules) = rules_of(condition) else {
            return match value {
                NewValue::Chunks(value) => self.write_by_etag(&value, options, condition).await,
                NewValue::Received(mut value, _) => {
                    let value = Buffer::from(value.to_vec());
                    self.write_by_etag(&value, options, condition).await
                }
            };
        };
        let options = PutOptions { rules, ..options.clone() };
        let queued = match value {
            NewValue::Chunks(value) => self.queue(Write::put(self.key, &value, &options)).await,
            NewValue::Received(value, _permit) => {
                self.queue(Write::put_received(self.key, value, &options)).await
            }
        };
        let ticket = queued.map_err(|error| refused(&error, condition))?;
        mark(Stage::Placed);
        Ok(ticket.durable().await?)
    }

    async fn queue(self, write: Write<'_>) -> Result<Ticket, Error> {
        match &self.bucket.record {
            Some(record) => self.store.write(write.in_bucket(record)).await,
            None => self.store.write(write).await,
        }
    }

    async fn write_by_etag(
        self,
        value: &Buffer,
        options: &PutOptions,
        condition: &WriteCondition,
    ) -> S3Result<Lsn> {
        let decide = |present: Option<&Object>| match present.map(|object| known_etag(&object.info)) {
            Some(None) => (Change::NoChange, Verdict::Unknown),
            known => match condition.judge(known.flatten().map(|etag| etag.to_string()).as_deref()) {
                Ok(()) => {
                    let (value, options) = (value.clone(), Box::new(options.clone()));
                    (Change::PutWith { value, options }, Verdict::Done)
                }
                Err(error) => (Change::NoChange, Verdict::Refused(error)),
            },
        };
        self.transact(decide).await
    }

    /// Deletes the object if `judge` accepts the present one.
    pub(crate) async fn delete_if(
        self,
        judge: impl Fn(&ObjectInfo, &ObjectEtag) -> S3Result<()>,
    ) -> S3Result<Lsn> {
        let decide = |present: Option<&Object>| {
            let Some(Object { info, .. }) = present else { return (Change::NoChange, Verdict::Done) };
            let Some(etag) = known_etag(info) else { return (Change::NoChange, Verdict::Unknown) };
            match judge(info, &etag) {
                Ok(()) => (Change::Delete, Verdict::Done),
                Err(error) => (Change::NoChange, Verdict::Refused(error)),
            }
        };
        self.transact(decide).await
    }

    /// Carries out a decision about the object. Writers of one key share a flush, unless the decision needs a version in flight. An
    /// answer that follows from a write in flight waits for it.
    async fn transact(self, decide: impl Fn(Option<&Object>) -> (Change, Verdict)) -> S3Result<Lsn> {
        for level in [ReadLevel::Info, ReadLevel::Version] {
            let keys = [(self.key.clone(), level)];
            let options =
                TransactOptions { bucket: self.bucket.record.as_ref(), ..TransactOptions::default() };
            let outcome = self.store.transact(&keys, &options, |objects| {
                let (change, verdict) = decide(objects.first().and_then(Option::as_ref));
                Decision::one(change, verdict)
            });
            let updated = outcome.await?.done();
            mark(Stage::Placed);
            match updated.durable().await? {
                (Verdict::Done, version) => return Ok(version),
                (Verdict::Refused(error), _) => return Err(error),
                (Verdict::Unknown, _) => {}
            }
        }
        Err(ErrorCode::OperationAborted.into())
    }

    /// A writer of a long value, with its length if that is known.
    pub(crate) fn stream(self, options: PutOptions, value_bytes: Option<u64>) -> Result<ValueWriter, Error> {
        let mut writer = self.store.put_stream(self.key, options)?;
        if let Some(bytes) = value_bytes {
            writer = writer.with_length(bytes);
        }
        Ok(match &self.bucket.record {
            Some(record) => writer.in_bucket(record.clone()),
            None => writer,
        })
    }

    /// Stores the value that `source` reads. Returns the version.
    ///
    /// # Errors
    /// Those of the store: the caller knows the condition.
    pub(crate) async fn copy(
        self,
        mut source: ValueReader,
        mut options: PutOptions,
        watch: &mut impl CopyWatch,
    ) -> Result<Lsn, Error> {
        if source.info().bytes <= VALUE_BYTES_SINGLE_MAX {
            let mut value = Box::new(Buffer::new());
            while let Some(piece) = source.next().await? {
                piece.chunks().for_each(|chunk| watch.look(chunk));
                value.append_buffer(piece);
            }
            watch.finish(&mut options);
            return self.queue(Write::put(self.key, &value, &options)).await?.durable().await;
        }
        let mut writer = self.stream(options.clone(), Some(source.info().bytes))?;
        while let Some(piece) = source.next().await? {
            for chunk in piece.chunks() {
                watch.look(chunk);
                writer.write(chunk).await?;
            }
        }
        watch.finish(&mut options);
        // Long metadata is stored before the value and already written: such an object has the ETag of its version.
        let _ = writer.set_metadata(options.metadata);
        Ok(writer.finish().await?.version)
    }
}
