//! What is left of a message of a stream of operations: its operations where they lie, taken apart as far as most of them need.

use std::ops::Range;

use bytes::Bytes;
use prost::Message as _;
use shoal_api::v1;
use shoal_api::v1::operation::Action;
use shoal_base::limits::BATCH_KEYS_MAX;
use shoal_engine::{Bucket, ObjectKey};

use crate::call::message::KEPT_BYTES_MIN;
use crate::convert;
use crate::failure::Failure;
use shoal_api::fields::{Fields, bytes_of, not_protobuf, number_of, text_of};

/// An operation. Its bytes are those of [`OperationRequests`].
#[derive(Clone, Debug)]
pub(crate) struct OperationRequest {
    pub(crate) number: u64,
    pub(crate) action: Action,
    key: Range<u32>,
    value: Range<u32>,
    /// Whether it says more than these.
    pub(crate) says_more: bool,
    whole: Range<u32>,
}

impl OperationRequest {
    /// Bytes of its key and value.
    pub(crate) fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

/// The operations of a message that were not taken yet.
#[derive(Default)]
pub(crate) struct OperationRequests {
    message: Bytes,
    /// None: there was no message.
    bucket: Option<Result<Bucket, Failure>>,
    operations: Vec<OperationRequest>,
    taken: usize,
}

impl OperationRequests {
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.operations.len()
    }

    /// Takes another message, in place of one that was taken as a whole.
    ///
    /// # Errors
    /// It is not protobuf, or has too many operations: none of them is taken.
    pub(crate) fn take(&mut self, message: Bytes) -> Result<(), Failure> {
        let mut operations = std::mem::take(&mut self.operations);
        operations.clear();
        *self = Self::default();
        let mut bucket = "";
        for field in Fields::of(&message) {
            match field? {
                (1, field) => bucket = text_of(field)?,
                (2, _) if operations.len() == BATCH_KEYS_MAX => {
                    let problem =
                        format!("a message has at most {BATCH_KEYS_MAX} operations; this one has more");
                    return Err(Failure::invalid(problem));
                }
                (2, field) => operations.push(parse(&message, bytes_of(field)?)?),
                _ => {}
            }
        }
        let bucket = Bucket::new(convert::bucket(bucket)).map_err(|error| Failure::of(&error));
        *self = Self { bucket: Some(bucket), message, operations, taken: 0 };
        Ok(())
    }

    /// The next operation.
    pub(crate) fn next(&mut self) -> Option<OperationRequest> {
        let request = self.operations.get(self.taken).cloned();
        self.taken += usize::from(request.is_some());
        request
    }

    /// The object that an operation is about.
    pub(crate) fn key(&self, request: &OperationRequest) -> Result<ObjectKey, Failure> {
        match &self.bucket {
            Some(Ok(bucket)) => bucket.key(self.bytes(&request.key)).map_err(|error| Failure::of(&error)),
            Some(Err(failure)) => Err(failure.clone()),
            None => Err(not_protobuf("there is no message").into()),
        }
    }

    /// The value of an operation.
    pub(crate) fn value(&self, request: &OperationRequest) -> &[u8] {
        self.bytes(&request.value)
    }

    /// An operation with all that it says. A request one does not keep the memory of its message.
    pub(crate) fn whole(&self, request: &OperationRequest) -> Result<v1::Operation, Failure> {
        let bytes = self.bytes(&request.whole);
        let bytes = match bytes.len() {
            ..KEPT_BYTES_MIN => Bytes::copy_from_slice(bytes),
            _ => self.message.slice_ref(bytes),
        };
        v1::Operation::decode(bytes).map_err(|error| not_protobuf(error).into())
    }

    fn bytes(&self, range: &Range<u32>) -> &[u8] {
        self.message.get(range.start as usize..range.end as usize).unwrap_or_default()
    }
}

/// Takes an operation apart, which lies in `message`.
fn parse(message: &[u8], operation: &[u8]) -> Result<OperationRequest, Failure> {
    let start = message.as_ptr().addr();
    let range = |part: &[u8]| {
        let first = part.as_ptr().addr() - start;
        // A message is requester than 4 GiB: there is a limit for it.
        first as u32..(first + part.len()) as u32
    };
    let mut request = OperationRequest {
        number: 0,
        action: Action::Unspecified,
        key: 0..0,
        value: 0..0,
        says_more: false,
        whole: range(operation),
    };
    for field in Fields::of(operation) {
        match field? {
            (1, field) => request.number = number_of(field)?,
            (2, field) => request.action = action_of(number_of(field)?),
            (3, field) => request.key = range(bytes_of(field)?),
            (15, field) => request.value = range(bytes_of(field)?),
            _ => request.says_more = true,
        }
    }
    Ok(request)
}

/// What is done; an action that is not known here is none. Of a longer number the lower half counts, as for prost.
fn action_of(number: u64) -> Action {
    Action::try_from(number as i32).unwrap_or(Action::Unspecified)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operation() -> impl Strategy<Value = v1::Operation> {
        let bytes = |most| prop::collection::vec(any::<u8>(), 0..most);
        (any::<u64>(), 0..7_i32, bytes(30), bytes(50), any::<Option<u64>>()).prop_map(
            |(number, action, key, value, modified_ns)| v1::Operation {
                number,
                action,
                key: key.into(),
                value: value.into(),
                modified_ns,
                ..Default::default()
            },
        )
    }

    proptest! {
        /// What was taken apart is what prost would have made of it.
        #[test]
        fn operations_are_those_that_were_sent(sent in prop::collection::vec(operation(), 0..9)) {
            let request = v1::OperationsRequest { bucket: "b".into(), operations: sent.clone() };
            let mut requests = OperationRequests::default();
            requests.take(request.encode_to_vec().into()).unwrap();
            for sent in sent {
                let request = requests.next().unwrap();
                prop_assert_eq!((request.number, request.action), (sent.number, sent.action()));
                prop_assert_eq!(requests.value(&request), &sent.value[..]);
                prop_assert_eq!(requests.key(&request).is_ok(), !sent.key.is_empty());
                if let Ok(key) = requests.key(&request) {
                    prop_assert_eq!(key.key(), &sent.key[..]);
                }
                prop_assert_eq!(request.says_more, sent.modified_ns.is_some());
                prop_assert_eq!(request.bytes(), sent.key.len() + sent.value.len());
                prop_assert_eq!(requests.whole(&request).unwrap(), sent);
            }
            prop_assert!(requests.is_empty() && requests.next().is_none());
        }

        #[test]
        fn damage_is_refused_as_a_whole(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut requests = OperationRequests::default();
            if requests.take(bytes.into()).is_err() {
                prop_assert!(requests.is_empty());
            }
        }
    }

    /// Whoever goes round a bound by a strange number is judged by the same as the one that does what it asks for.
    #[test]
    fn actions_are_those_of_prost() {
        for number in [0, 1, 2, 6, 7, u64::from(u32::MAX), 1 << 32, (1 << 32) + 1, u64::MAX] {
            let mut operation = vec![2 << 3];
            prost::encoding::encode_varint(number, &mut operation);
            let expected = v1::Operation::decode(&operation[..]).unwrap().action();
            assert_eq!(parse(&operation, &operation).unwrap().action, expected, "{number}");
        }
    }

    /// What waits holds what it says it holds.
    #[test]
    fn a_request_operation_does_not_hold_its_message() {
        let operations = [1, 2].map(|number| v1::Operation {
            number,
            key: "k".into(),
            value: vec![0; if number == 1 { 1 } else { KEPT_BYTES_MIN }].into(),
            ..Default::default()
        });
        let request = v1::OperationsRequest { bucket: String::new(), operations: operations.into() };
        let message = Bytes::from(request.encode_to_vec());
        let memory = message.as_ptr_range();
        let mut requests = OperationRequests::default();
        requests.take(message).unwrap();
        for is_inside in [false, true] {
            let request = requests.next().unwrap();
            let operation = requests.whole(&request).unwrap();
            assert_eq!(memory.contains(&operation.key.as_ptr()), is_inside);
        }
    }

    #[test]
    fn there_are_not_too_many() {
        let operations = vec![v1::Operation { number: 1, ..Default::default() }; BATCH_KEYS_MAX + 1];
        let message = v1::OperationsRequest { bucket: String::new(), operations }.encode_to_vec();
        assert!(OperationRequests::default().take(message.into()).is_err());
    }
}
