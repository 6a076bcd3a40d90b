//! One operation of a stream, and its result, on the wire: encoded by hand, because there are a million of them a second. Rare
//! fields are left to prost.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use shoal_api::fields::{Field, Fields, bytes_of, not_protobuf, number_of};
use shoal_api::v1::operation::Action;
use shoal_api::{OPERATION_VALUE_BYTES_MAX, v1};
use tonic::Status;

use crate::error::Error;
use crate::object::{ByteRange, DeleteResult, Lsn, ObjectAttributes, PutOptions, PutResult, RejectRules};
use crate::request_id::RequestId;
use crate::retry::Failed;
use crate::wire;

/// The fields of an operation that are encoded by hand.
const NUMBER: u32 = 1;
const ACTION: u32 = 2;
const KEY: u32 = 3;
const VALUE: u32 = 15;

/// The operations of a message.
const OPERATIONS: u32 = 2;

/// An operation to send, borrowed from its parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) action: Action,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Its fields between key and value; most operations have none.
    pub(crate) extras: Option<&'a v1::Operation>,
}

/// Bytes of an operation without its value: far more than the server accepts, and few enough that a message keeps to its limit.
const EXTRAS_BYTES_MAX: usize = 32 << 10;

impl Operation<'_> {
    /// Refuses an operation that would not only fail itself, but break its stream.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.value.len() > OPERATION_VALUE_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "a value in a stream of operations has at most {OPERATION_VALUE_BYTES_MAX} bytes; this one has {}",
                self.value.len()
            )));
        }
        if self.bytes() - self.value.len() > EXTRAS_BYTES_MAX {
            return Err(Error::Invalid("the key or the metadata are too long".into()));
        }
        Ok(())
    }

    /// Bytes of its key, its value, and its extras.
    fn bytes(&self) -> usize {
        self.key.len() + self.value.len() + self.extras.map_or(0, prost::Message::encoded_len)
    }

    /// Its units while it is in flight, of [`UNITS_MAX`](crate::outgoing::UNITS_MAX).
    pub(crate) fn units(&self) -> u32 {
        4 + (self.bytes() / 1024) as u32
    }

    /// Appends it to the message `out`, with its number.
    pub(crate) fn encode(&self, number: u64, out: &mut BytesMut) {
        let action = self.action as u64;
        let bytes_len = |field, bytes: &[u8]| match bytes.len() {
            0 => 0,
            length => key_len(field) + encoded_len_varint(length as u64) + length,
        };
        let length = key_len(NUMBER)
            + encoded_len_varint(number)
            + key_len(ACTION)
            + encoded_len_varint(action)
            + bytes_len(KEY, self.key)
            + self.extras.map_or(0, prost::Message::encoded_len)
            + bytes_len(VALUE, self.value);
        out.reserve(key_len(OPERATIONS) + encoded_len_varint(length as u64) + length);
        encode_key(OPERATIONS, WireType::LengthDelimited, out);
        encode_varint(length as u64, out);
        encode_key(NUMBER, WireType::Varint, out);
        encode_varint(number, out);
        encode_key(ACTION, WireType::Varint, out);
        encode_varint(action, out);
        encode_bytes(KEY, self.key, out);
        if let Some(extras) = self.extras {
            extras.encode_raw(out);
        }
        encode_bytes(VALUE, self.value, out);
    }
}

fn encode_bytes(field: u32, bytes: &[u8], out: &mut BytesMut) {
    if bytes.is_empty() {
        return;
    }
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.put_slice(bytes);
}

/// The extras of a get.
pub(crate) fn extras_of_get(range: ByteRange) -> Option<v1::Operation> {
    let range = wire::range(range)?;
    Some(v1::Operation { range: Some(range), ..v1::Operation::default() })
}

/// The extras of a put.
pub(crate) fn extras_of_put(options: &PutOptions, id: Option<RequestId>) -> Option<v1::Operation> {
    let rules = wire::rules(options.rules);
    let metadata = &options.metadata;
    let has_metadata = !metadata.content_type.is_empty() || !metadata.user.is_empty();
    let (ttl_ns, expire_time_ns) = wire::expiry(options.expiry);
    let ends = ttl_ns.or(expire_time_ns).is_some();
    if rules.is_none() && !has_metadata && options.modified_ns.is_none() && id.is_none() && !ends {
        return None;
    }
    Some(v1::Operation {
        ttl_ns,
        expire_time_ns,
        rules,
        metadata: wire::metadata(metadata.clone()),
        modified_ns: options.modified_ns,
        request_id: id.map(message),
        ..v1::Operation::default()
    })
}

/// The extras of a delete.
pub(crate) fn extras_of_delete(rules: RejectRules, id: Option<RequestId>) -> Option<v1::Operation> {
    let rules = wire::rules(rules);
    if rules.is_none() && id.is_none() {
        return None;
    }
    Some(v1::Operation { rules, request_id: id.map(message), ..v1::Operation::default() })
}

fn message(id: RequestId) -> v1::RequestId {
    v1::RequestId { session: id.session, sequence: id.sequence }
}

/// The result of one operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Done {
    version: Lsn,
    deleted: Option<Lsn>,
    pub(crate) info: Option<ObjectAttributes>,
    pub(crate) value_omitted: bool,
    /// A part of the received message.
    pub(crate) value: Bytes,
    /// The reason why it was not done.
    pub(crate) status: Option<Box<v1::KeyStatus>>,
}

impl Done {
    /// Itself, or the reason why it was not done.
    pub(crate) fn or_failed(self, server: &str) -> Result<Self, Failed> {
        match self.status {
            Some(status) if status.code != 0 => Err(wire::key_failed(*status, server)),
            _ => Ok(self),
        }
    }

    /// The result of a put.
    pub(crate) fn put(&self) -> PutResult {
        PutResult { version: self.version }
    }

    /// The result of a delete.
    pub(crate) fn delete(&self) -> DeleteResult {
        DeleteResult { deleted: self.deleted, version: self.version }
    }
}

/// The results of a message, parsed one by one in place.
#[derive(Debug, Default)]
pub(crate) struct Results {
    rest: Bytes,
}

impl Results {
    pub(crate) fn of(message: Bytes) -> Self {
        Self { rest: message }
    }

    /// The next one with its number; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Done)>, Status> {
        loop {
            let mut fields = Fields::of(&self.rest);
            let Some(field) = fields.next() else { return Ok(None) };
            let (number, field) = field?;
            let taken = self.rest.len() - fields.rest().len();
            if number != RESULTS {
                bytes::Buf::advance(&mut self.rest, taken);
                continue;
            }
            let result = parse(&self.rest, bytes_of(field)?)?;
            bytes::Buf::advance(&mut self.rest, taken);
            return Ok(Some(result));
        }
    }
}

/// The results of a message.
const RESULTS: u32 = 1;

/// Parses `result`, a part of `message`.
fn parse(message: &Bytes, result: &[u8]) -> Result<(u64, Done), Status> {
    let (mut number, mut done) = (0, Done::default());
    for field in Fields::of(result) {
        match field? {
            (1, field) => number = number_of(field)?,
            (2, field) => done.status = Some(Box::new(decoded(field)?)),
            (3, field) => done.version = Lsn(number_of(field)?),
            (4, field) => done.deleted = Some(Lsn(number_of(field)?)),
            (5, field) => done.info = Some(info(bytes_of(field)?)?),
            (6, field) => done.value_omitted = number_of(field)? != 0,
            (15, field) => done.value = message.slice_ref(bytes_of(field)?),
            _ => {}
        }
    }
    Ok((number, done))
}

/// The attributes of an object in `message`.
pub(crate) fn info(message: &[u8]) -> Result<ObjectAttributes, Status> {
    let mut info = ObjectAttributes::default();
    for field in Fields::of(message) {
        match field? {
            (1, field) => info.version = Lsn(number_of(field)?),
            (2, field) => info.bytes = number_of(field)?,
            (3, field) => info.modified_ns = number_of(field)?,
            (4, field) => info.metadata = wire::metadata_of(decoded(field)?),
            (5, field) => info.ttl_ns = Some(number_of(field)?),
            (6, field) => info.expire_time_ns = Some(number_of(field)?),
            _ => {}
        }
    }
    Ok(info)
}

/// The message in a field.
pub(crate) fn decoded<M: prost::Message + Default>(field: Field<'_>) -> Result<M, Status> {
    M::decode(bytes_of(field)?).map_err(not_protobuf)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::object::{Expiry, Metadata};

    /// Up to `most` random bytes.
    pub(crate) fn bytes(most: usize) -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..most).prop_map(Bytes::from)
    }

    proptest! {
        /// The sent bytes are the ones that prost would have sent.
        #[test]
        fn operations_encode_as_prost(
            number in any::<u64>(), action in 1..4_i32, key in bytes(200), value in bytes(300),
            modified_ns in any::<Option<u64>>(), version in any::<Option<u64>>(), session in any::<Option<u64>>()
        ) {
            let options = PutOptions {
                rules: RejectRules { if_version_not: version.map(Lsn), ..RejectRules::default() },
                metadata: Metadata { content_type: "t".repeat(key.len() % 3), ..Metadata::default() },
                modified_ns,
                expiry: version.map_or(Expiry::Never, Expiry::At),
            };
            let id = session.map(|session| RequestId { session, sequence: 5 });
            let extras = extras_of_put(&options, id);
            let action = Action::try_from(action).unwrap();
            let operation = Operation { action, key: &key, value: &value, extras: extras.as_ref() };
            let mut sent = BytesMut::new();
            operation.encode(number, &mut sent);
            operation.encode(7, &mut sent);
            let one = |number| v1::Operation {
                number,
                action: action.into(),
                key: key.clone(),
                value: value.clone(),
                ..extras.clone().unwrap_or_default()
            };
            let request = v1::OperationsRequest { bucket: String::new(), operations: vec![one(number), one(7)] };
            prop_assert_eq!(v1::OperationsRequest::decode(&sent[..]).unwrap(), request);
        }

        /// The results are the ones that prost would have read, and the value is not copied.
        #[test]
        fn results_decode_as_prost(
            number in any::<u64>(), value in bytes(300), version in any::<u64>(), deleted in any::<Option<u64>>(),
            with_info in any::<bool>(), value_omitted in any::<bool>(), code in 0..4_i32
        ) {
            let metadata = v1::Metadata { content_type: "t".into(), user: Vec::new() };
            let (ttl_ns, expire_time_ns) = (Some(version), Some(7));
            let info = v1::ObjectInfo {
                version,
                bytes: 9,
                modified_ns: 8,
                metadata: Some(metadata),
                ttl_ns,
                expire_time_ns,
            };
            let result = v1::OperationResult {
                number,
                status: (code > 0).then(|| v1::KeyStatus { code, message: "m".into(), failure: None }),
                version,
                deleted,
                info: with_info.then_some(info),
                value_omitted,
                value: value.clone(),
            };
            let response = v1::OperationsResponse { results: vec![result.clone(), v1::OperationResult::default()] };
            let message = Bytes::from(response.encode_to_vec());
            let memory = message.as_ptr_range();
            let mut results = Results::of(message);
            let (given, done) = results.next().unwrap().unwrap();
            prop_assert_eq!(given, number);
            prop_assert_eq!(&done.value, &value);
            prop_assert!(value.is_empty() || memory.contains(&done.value.as_ptr()));
            prop_assert_eq!((done.version, done.deleted), (Lsn(version), deleted.map(Lsn)));
            prop_assert_eq!(done.value_omitted, value_omitted);
            prop_assert_eq!(done.status.as_deref(), result.status.as_ref());
            prop_assert_eq!(done.info.clone(), result.info.map(|info| wire::info(Some(info)).unwrap()));
            prop_assert_eq!(done.or_failed("s").is_err(), code > 0);
            prop_assert_eq!(results.next().unwrap(), Some((0, Done::default())));
            prop_assert_eq!(results.next().unwrap(), None);
        }

        /// Reading any bytes terminates.
        #[test]
        fn random_bytes_never_panic_result_decoder(bytes in bytes(80)) {
            let mut results = Results::of(bytes);
            while let Ok(Some(_)) = results.next() {}
        }
    }

    #[test]
    fn most_operations_have_no_extras() {
        assert_eq!(extras_of_get(ByteRange::ALL), None);
        assert_eq!(extras_of_put(&PutOptions::default(), None), None);
        assert_eq!(extras_of_delete(RejectRules::default(), None), None);
        assert!(extras_of_delete(RejectRules { if_exists: true, ..RejectRules::default() }, None).is_some());
    }
}
