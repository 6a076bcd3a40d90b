//! A message with many items of one bucket: the items in the message's memory, parsed as far as most of them need. Every request of many
//! keys, and every message of a stream of operations, passes here, so all have the same limits.

use std::ops::Range;

use bytes::Bytes;
use prost::Message;
use shoal_api::fields::{Field, Fields, bytes_of, not_protobuf, number_of, text_of};
use shoal_api::v1;
use shoal_api::v1::operation::Action;
use shoal_base::limits::{BATCH_KEYS_MAX, VALUE_BYTES_SINGLE_MAX};
use shoal_buffer::Buffer;
use shoal_engine::{Bucket, ByteRange, ObjectKey};
use tonic::Status;

use crate::answer::assembly::{Assembly, Value};
use crate::call::receive::KEPT_BYTES_MIN;
use crate::convert;
use crate::failure::Failure;

/// The field `results` of an answer to a batch.
pub(super) const RESULTS: u32 = 1;

/// The field of an item, and of a result, that is its value.
pub(super) const VALUE: u32 = 15;

/// The fields besides key and value of the items of one kind of message.
pub(super) trait Extra: Default {
    /// The field that is the key.
    const KEY: u32;

    /// Takes a field that is neither key nor value; returns true if the field is known here.
    fn take(&mut self, number: u32, field: Field<'_>) -> Result<bool, Status>;
}

/// A put or a delete: most have a key, and a value, and nothing else.
impl Extra for () {
    const KEY: u32 = 1;

    fn take(&mut self, _number: u32, _field: Field<'_>) -> Result<bool, Status> {
        Ok(false)
    }
}

/// The range of a read.
#[derive(Debug, Default)]
pub(super) struct Wanted(Option<v1::ByteRange>);

impl Wanted {
    pub(super) fn range(&self) -> ByteRange {
        convert::range(self.0)
    }
}

impl Extra for Wanted {
    const KEY: u32 = 1;

    fn take(&mut self, number: u32, field: Field<'_>) -> Result<bool, Status> {
        if number == 2 {
            // A message that comes again adds to the one before.
            let range = self.0.get_or_insert_with(v1::ByteRange::default);
            range.merge(bytes_of(field)?).map_err(not_protobuf)?;
        }
        Ok(number == 2)
    }
}

/// The number and the kind of an operation of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) action: Action,
}

impl Extra for Numbered {
    const KEY: u32 = 3;

    fn take(&mut self, number: u32, field: Field<'_>) -> Result<bool, Status> {
        match number {
            1 => self.number = number_of(field)?,
            2 => self.action = action_of(number_of(field)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The action of a number; an unknown one is unspecified. Of a longer number the lower half counts, as for prost.
fn action_of(number: u64) -> Action {
    Action::try_from(number as i32).unwrap_or(Action::Unspecified)
}

/// An item. Its bytes are those of its [`Batch`].
#[derive(Clone, Debug, Default)]
pub(super) struct Item<E> {
    pub(super) extra: E,
    key: Range<u32>,
    value: Range<u32>,
    /// True if it has fields besides key, value and extra.
    pub(super) says_more: bool,
    whole: Range<u32>,
}

impl<E: Extra> Item<E> {
    /// Parses an item of `message`.
    fn parse(message: &[u8], item: &[u8]) -> Result<Self, Status> {
        let start = message.as_ptr().addr();
        let range = |part: &[u8]| {
            let first = part.as_ptr().addr() - start;
            // A message is shorter than 4 GiB: there is a limit for it.
            first as u32..(first + part.len()) as u32
        };
        let mut parsed = Self { whole: range(item), ..Self::default() };
        for field in Fields::of(item) {
            match field? {
                (VALUE, field) => parsed.value = range(bytes_of(field)?),
                (number, field) if number == E::KEY => parsed.key = range(bytes_of(field)?),
                (number, field) => parsed.says_more |= !parsed.extra.take(number, field)?,
            }
        }
        Ok(parsed)
    }

    /// Bytes of its key and value.
    pub(super) fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

/// The items of a message, in their order.
#[derive(Debug)]
pub(super) struct Batch<E> {
    message: Bytes,
    /// None: there was no message.
    bucket: Option<Result<Bucket, Failure>>,
    /// True if the items are one write batch: all of them are applied, or none.
    pub(super) is_atomic: bool,
    pub(super) items: Vec<Item<E>>,
}

impl<E> Default for Batch<E> {
    fn default() -> Self {
        Self { message: Bytes::new(), bucket: None, is_atomic: false, items: Vec::new() }
    }
}

impl<E: Extra> Batch<E> {
    /// The batch of `message`, whose bucket must have a proper name.
    ///
    /// # Errors
    /// As [`Self::refill`], or the bucket has no proper name.
    pub(super) fn of(message: Bytes) -> Result<Self, Failure> {
        let mut batch = Self::default();
        batch.refill(message)?;
        batch.bucket()?;
        Ok(batch)
    }

    /// Takes the items of another message, in place of the present ones. Items of a bucket without a proper name have no keys.
    ///
    /// # Errors
    /// It is not protobuf, or has too many items, or too long values: there are no items then.
    pub(super) fn refill(&mut self, message: Bytes) -> Result<(), Failure> {
        let mut items = std::mem::take(&mut self.items);
        items.clear();
        *self = Self::default();
        let (mut bucket, mut is_atomic, mut value_bytes) = ("", false, 0);
        for field in Fields::of(&message) {
            match field? {
                (1, field) => bucket = text_of(field)?,
                (2, _) if items.len() == BATCH_KEYS_MAX => {
                    let problem = format!("a message has at most {BATCH_KEYS_MAX} keys; this one has more");
                    return Err(Failure::invalid(problem));
                }
                (2, field) => {
                    let item = Item::<E>::parse(&message, bytes_of(field)?)?;
                    value_bytes += item.value.len();
                    if value_bytes as u64 > VALUE_BYTES_SINGLE_MAX {
                        return Err(Failure::invalid(format!(
                            "the values of a request have at most {VALUE_BYTES_SINGLE_MAX} bytes together; these have more"
                        )));
                    }
                    items.push(item);
                }
                (3, field) => is_atomic = number_of(field)? != 0,
                _ => {}
            }
        }
        let bucket = Bucket::new(convert::bucket(bucket)).map_err(|error| Failure::of(&error));
        *self = Self { bucket: Some(bucket), message, is_atomic, items };
        Ok(())
    }

    fn bucket(&self) -> Result<&Bucket, Failure> {
        match &self.bucket {
            Some(bucket) => bucket.as_ref().map_err(Failure::clone),
            None => Err(not_protobuf("there is no message").into()),
        }
    }

    /// The name of the bucket of all items.
    ///
    /// # Errors
    /// It is no proper name.
    pub(super) fn bucket_name(&self) -> Result<&str, Failure> {
        self.bucket().map(Bucket::name)
    }

    /// The object that an item is about.
    pub(super) fn key(&self, item: &Item<E>) -> Result<ObjectKey, Failure> {
        self.bucket()?.key(self.bytes(&item.key)).map_err(|error| Failure::of(&error))
    }

    /// The keys of all items, unchecked.
    pub(super) fn key_bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.items.iter().map(|item| self.bytes(&item.key))
    }

    /// The value of an item.
    pub(super) fn value(&self, item: &Item<E>) -> &[u8] {
        self.bytes(&item.value)
    }

    /// An item with all of its fields. It pins the memory of the message.
    pub(super) fn whole<M: Message + Default>(&self, item: &Item<E>) -> Result<M, Failure> {
        decode(self.message.slice_ref(self.bytes(&item.whole)))
    }

    /// As [`Self::whole`], for an item that stays after its message: a short one does not pin the memory of the message.
    pub(super) fn whole_apart<M: Message + Default>(&self, item: &Item<E>) -> Result<M, Failure> {
        match self.bytes(&item.whole) {
            bytes if bytes.len() < KEPT_BYTES_MIN => decode(Bytes::copy_from_slice(bytes)),
            _ => self.whole(item),
        }
    }

    fn bytes(&self, range: &Range<u32>) -> &[u8] {
        self.message.get(range.start as usize..range.end as usize).unwrap_or_default()
    }
}

fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Failure> {
    M::decode(bytes).map_err(|error| not_protobuf(error).into())
}

/// The answer of a batch of writes, with its prefix. A result has about `guess` bytes.
pub(super) fn encode(results: impl ExactSizeIterator<Item = impl Message>, guess: usize) -> Box<Buffer> {
    let mut answer = Assembly::new(results.len() * guess);
    results.for_each(|result| answer.add(RESULTS, &result, 0, Value::None));
    answer.finish()
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
        /// The items are equal to prost's.
        #[test]
        fn operations_decode_as_sent(sent in prop::collection::vec(operation(), 0..9)) {
            let request = v1::OperationsRequest { bucket: "b".into(), operations: sent.clone() };
            let batch = Batch::<Numbered>::of(request.encode_to_vec().into()).unwrap();
            prop_assert_eq!(batch.items.len(), sent.len());
            for (item, sent) in batch.items.iter().zip(sent) {
                prop_assert_eq!((item.extra.number, item.extra.action), (sent.number, sent.action()));
                prop_assert_eq!(batch.value(item), &sent.value[..]);
                prop_assert_eq!(batch.key(item).is_ok(), !sent.key.is_empty());
                if let Ok(key) = batch.key(item) {
                    prop_assert_eq!(key.key(), &sent.key[..]);
                }
                prop_assert_eq!(item.says_more, sent.modified_ns.is_some());
                prop_assert_eq!(item.bytes(), sent.key.len() + sent.value.len());
                prop_assert_eq!(batch.whole::<v1::Operation>(item).unwrap(), sent.clone());
                prop_assert_eq!(batch.whole_apart::<v1::Operation>(item).unwrap(), sent);
            }
        }

        #[test]
        fn damage_is_refused_as_a_whole(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let item = v1::Operation::default();
            let request = v1::OperationsRequest { bucket: String::new(), operations: vec![item] };
            let mut batch = Batch::<Numbered>::of(request.encode_to_vec().into()).unwrap();
            if batch.refill(bytes.into()).is_err() {
                prop_assert!(batch.items.is_empty());
            }
        }
    }

    /// For any number the bounds assume the action that is then executed.
    #[test]
    fn actions_match_prost() {
        for number in [0, 1, 2, 6, 7, u64::from(u32::MAX), 1 << 32, (1 << 32) + 1, u64::MAX] {
            let mut operation = vec![2 << 3];
            prost::encoding::encode_varint(number, &mut operation);
            let expected = v1::Operation::decode(&operation[..]).unwrap().action();
            let item = Item::<Numbered>::parse(&operation, &operation).unwrap();
            assert_eq!(item.extra.action, expected, "{number}");
        }
    }

    /// A short item that waits does not pin more memory than its bytes.
    #[test]
    fn a_short_item_does_not_hold_its_message() {
        let operations = [1, 2].map(|number| v1::Operation {
            number,
            key: "k".into(),
            value: vec![0; if number == 1 { 1 } else { KEPT_BYTES_MIN }].into(),
            ..Default::default()
        });
        let request = v1::OperationsRequest { bucket: String::new(), operations: operations.into() };
        let message = Bytes::from(request.encode_to_vec());
        let memory = message.as_ptr_range();
        let batch = Batch::<Numbered>::of(message).unwrap();
        for (item, is_inside) in batch.items.iter().zip([false, true]) {
            let operation: v1::Operation = batch.whole_apart(item).unwrap();
            assert_eq!(memory.contains(&operation.key.as_ptr()), is_inside);
        }
    }

    /// Ranges, and the flag of one write batch, are equal to prost's; a range that comes twice is the sum of both.
    #[test]
    fn other_fields_match_prost() {
        let ranges = [None, Some(v1::ByteRange { first: 3, bytes: Some(4) })];
        let item = |range| v1::MultiGetItem { key: "k".into(), range };
        let request = v1::MultiGetRequest { bucket: "b".into(), items: ranges.map(item).into() };
        let batch = Batch::<Wanted>::of(request.encode_to_vec().into()).unwrap();
        let read: Vec<_> = batch.items.iter().map(|item| item.extra.range()).collect();
        assert_eq!(read, ranges.map(convert::range));
        for atomic in [false, true] {
            let items = vec![v1::MultiPutItem { key: "k".into(), ..Default::default() }];
            let request = v1::MultiPutRequest { bucket: "b".into(), items, atomic };
            assert_eq!(Batch::<()>::of(request.encode_to_vec().into()).unwrap().is_atomic, atomic);
        }
        let part = |first, bytes| {
            let item = v1::MultiGetItem { range: Some(v1::ByteRange { first, bytes }), ..Default::default() };
            item.encode_to_vec()
        };
        let twice = [part(3, None), part(0, Some(4))].concat();
        let item = Item::<Wanted>::parse(&twice, &twice).unwrap();
        assert_eq!(item.extra.range(), ByteRange { first: 3, bytes: Some(4) });
    }

    #[test]
    fn too_many_keys_and_too_long_values_are_refused() {
        let request = |items: Vec<v1::MultiPutItem>| {
            let request = v1::MultiPutRequest { bucket: "b".into(), items, atomic: false };
            Batch::<()>::of(request.encode_to_vec().into()).map(|batch| batch.items.len()).ok()
        };
        let item = v1::MultiPutItem { key: "k".into(), ..Default::default() };
        assert_eq!(request(vec![item.clone(); BATCH_KEYS_MAX]), Some(BATCH_KEYS_MAX));
        assert_eq!(request(vec![item.clone(); BATCH_KEYS_MAX + 1]), None);
        let half = |more| {
            let value = vec![0; VALUE_BYTES_SINGLE_MAX as usize / 2 + more];
            v1::MultiPutItem { value: value.into(), ..item.clone() }
        };
        assert_eq!(request(vec![half(0), half(0)]), Some(2));
        assert_eq!(request(vec![half(0), half(1)]), None);
    }
}
