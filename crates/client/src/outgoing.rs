//! The sending side of a stream of operations: operations are written into one growing message, which leaves as it is when the
//! transport is ready for one. So operations submitted meanwhile travel together, and there is no waiting for more.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use prost::encoding::string;

use crate::operation::Operation;

/// Operations in one message.
const MESSAGE_OPERATIONS_MAX: u64 = 256;

/// Bytes after which a message is full; the last operation may add a whole value and its key. Below the server's limit.
const MESSAGE_BYTES_FULL: usize = 128 << 10;

/// Initial capacity of a message, in bytes: some tens of short operations.
const MESSAGE_BYTES_GUESS: usize = 8 << 10;

/// Units of one stream that may be in flight: about 1,000 short operations, which is the server's limit, or 4 MiB of values.
pub(crate) const UNITS_MAX: u32 = 4096;

/// Operations that are not sent yet, of one stream after the other.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The start of each message: its bucket.
    head: Bytes,
    /// The last one is being written.
    messages: VecDeque<Message>,
    /// Number of operations ever queued.
    queued: u64,
    /// Number of them that were sent, in order.
    sent: u64,
    /// The connection, if it waits for something to send.
    sender: Option<Waker>,
    /// Incremented for each stream; the rest of an earlier one sends nothing more.
    stream: u64,
    is_closed: bool,
}

#[derive(Debug)]
struct Message {
    bytes: BytesMut,
    operations: u64,
}

impl Outgoing {
    pub(crate) fn new(bucket: &str) -> Self {
        let mut head = BytesMut::new();
        string::encode(1, &bucket.to_owned(), &mut head);
        Self {
            head: head.freeze(),
            messages: VecDeque::new(),
            queued: 0,
            sent: 0,
            sender: None,
            stream: 0,
            is_closed: false,
        }
    }

    /// Adds an operation with its number. Returns its place in the order of all operations, and the waker of the connection
    /// that sends it.
    pub(crate) fn push(&mut self, number: u64, operation: &Operation<'_>) -> (u64, Option<Waker>) {
        let has_room = |message: &&mut Message| {
            message.operations < MESSAGE_OPERATIONS_MAX && message.bytes.len() < MESSAGE_BYTES_FULL
        };
        match self.messages.back_mut().filter(has_room) {
            Some(message) => {
                operation.encode(number, &mut message.bytes);
                message.operations += 1;
            }
            None => {
                let mut bytes = BytesMut::with_capacity(MESSAGE_BYTES_GUESS);
                bytes.extend_from_slice(&self.head);
                operation.encode(number, &mut bytes);
                self.messages.push_back(Message { bytes, operations: 1 });
            }
        }
        self.queued += 1;
        (self.queued, self.sender.take())
    }

    /// The next message of stream number `stream`: all queued operations that fit.
    pub(crate) fn poll_message(&mut self, stream: u64, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.stream != stream {
            return Poll::Ready(None);
        }
        let Some(message) = self.messages.pop_front() else {
            if self.is_closed {
                return Poll::Ready(None);
            }
            self.sender = Some(context.waker().clone());
            return Poll::Pending;
        };
        self.sent += message.operations;
        Poll::Ready(Some(message.bytes.freeze()))
    }

    /// Number of operations sent: those with a place up to this number.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// The number of the current stream.
    pub(crate) fn stream(&self) -> u64 {
        self.stream
    }

    /// The stream is over: the rest of it sends nothing more. Unsent operations are kept for the next one, or dropped. Returns
    /// the waker to call.
    pub(crate) fn end_stream(&mut self, is_kept: bool) -> Option<Waker> {
        self.stream += 1;
        if !is_kept {
            self.messages.clear();
            self.sent = self.queued;
        }
        self.sender.take()
    }

    /// Closes the queue: no more operations are added. Returns the waker to call.
    pub(crate) fn close(&mut self) -> Option<Waker> {
        self.is_closed = true;
        self.sender.take()
    }
}

/// The content of `mutex`: no holder leaves it half changed, so poisoning is ignored.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The numbers of operations in flight, and a note for each. A number consists of a place and the number of earlier uses of
/// that place: so a repeated answer matches nothing.
#[derive(Debug)]
pub(crate) struct Places<T> {
    places: Vec<OutgoingSlot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct OutgoingSlot<T> {
    used_before: u32,
    held: Option<T>,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

/// The bits of a number for the place.
const PLACE_BITS: u32 = 32;

impl<T> Places<T> {
    /// The number that the next [`Self::add`] returns.
    pub(crate) fn next_number(&self) -> u64 {
        let index = self.free.last().map_or(self.places.len() as u64, |&index| index.into());
        let used_before = self.places.get(index as usize).map_or(0, |place| place.used_before);
        u64::from(used_before) << PLACE_BITS | index
    }

    /// Adds `held`; returns its number.
    pub(crate) fn add(&mut self, held: T) -> u64 {
        let number = self.next_number();
        match self.free.pop().and_then(|index| self.places.get_mut(index as usize)) {
            Some(place) => place.held = Some(held),
            None => self.places.push(OutgoingSlot { used_before: 0, held: Some(held) }),
        }
        number
    }

    /// The note with this number; `None` if it was taken, or never added.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.places.get_mut((number & u64::from(u32::MAX)) as usize)?;
        place.held.as_mut().filter(|_| u64::from(place.used_before) == number >> PLACE_BITS)
    }

    /// Takes it out.
    pub(crate) fn take(&mut self, number: u64) -> Option<T> {
        self.get_mut(number)?;
        let index = (number & u64::from(u32::MAX)) as usize;
        let place = self.places.get_mut(index)?;
        // After the count wraps around, nobody waits for an answer of the first uses.
        place.used_before = place.used_before.wrapping_add(1);
        self.free.push(index as u32);
        place.held.take()
    }

    /// Number of notes.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// All notes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.held.as_mut())
    }

    /// The numbers of all notes.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        let used = self.places.iter().enumerate().filter(|(_, place)| place.held.is_some());
        used.map(|(index, place)| u64::from(place.used_before) << PLACE_BITS | index as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use prost::Message as _;
    use shoal_api::v1;
    use shoal_api::v1::operation::Action;

    use super::*;

    fn put(value: &[u8]) -> Operation<'_> {
        Operation { action: Action::Put, key: b"k", value, extras: None }
    }

    fn message(outgoing: &mut Outgoing, stream: u64) -> Option<v1::OperationsRequest> {
        match outgoing.poll_message(stream, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(bytes)) => Some(v1::OperationsRequest::decode(bytes).unwrap()),
            Poll::Ready(None) => panic!("the stream is over"),
            Poll::Pending => None,
        }
    }

    #[test]
    fn message_takes_queued_operations_up_to_limit() {
        let mut outgoing = Outgoing::new("b");
        for (number, bytes) in [60_000, 60_000, 60_000, 10, 10].into_iter().enumerate() {
            let (place, sender) = outgoing.push(number as u64, &put(&vec![0; bytes]));
            assert_eq!((place, sender.is_some()), (number as u64 + 1, false));
        }
        let first = message(&mut outgoing, 0).unwrap();
        assert_eq!((first.bucket.as_str(), first.operations.len(), outgoing.sent()), ("b", 3, 3));
        assert!(outgoing.end_stream(true).is_none());
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(outgoing.poll_message(0, &mut context), Poll::Ready(None)));
        let second = message(&mut outgoing, 1).unwrap();
        assert_eq!(second.operations.iter().map(|one| one.number).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((message(&mut outgoing, 1), outgoing.sent()), (None, 5));
        // The connection that found nothing is woken by the next operation, once.
        assert!(outgoing.push(5, &put(b"")).1.is_some());
        assert!(outgoing.push(6, &put(b"")).1.is_none());
        assert!(outgoing.end_stream(false).is_none());
        assert_eq!(outgoing.sent(), 7);
        assert_eq!(message(&mut outgoing, 2), None);
        assert!(outgoing.close().is_some());
        assert!(matches!(outgoing.poll_message(2, &mut context), Poll::Ready(None)));
    }

    #[test]
    fn message_operation_count_is_bounded() {
        let mut outgoing = Outgoing::new("");
        (0..MESSAGE_OPERATIONS_MAX + 1).for_each(|number| drop(outgoing.push(number, &put(b"v"))));
        assert_eq!(message(&mut outgoing, 0).unwrap().operations.len() as u64, MESSAGE_OPERATIONS_MAX);
        assert_eq!(message(&mut outgoing, 0).unwrap().operations.len(), 1);
    }

    proptest! {
        /// In any order, each number finds its note, once.
        #[test]
        fn numbers_are_unique_per_operation(steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..200)) {
            let (mut places, mut model, mut gone) = (Places::default(), BTreeMap::new(), Vec::new());
            for (count, (adds, which)) in steps.into_iter().enumerate() {
                if adds || model.is_empty() {
                    let expected = places.next_number();
                    let number = places.add(count);
                    prop_assert_eq!(number, expected);
                    prop_assert!(!gone.contains(&number) && model.insert(number, count).is_none());
                } else {
                    let number = *which.get(&model.keys().copied().collect::<Vec<_>>());
                    prop_assert_eq!(places.take(number), model.remove(&number));
                    gone.push(number);
                }
                prop_assert!(gone.iter().all(|&number| places.get_mut(number).is_none()));
                prop_assert_eq!(places.len(), model.len());
                prop_assert_eq!(places.iter_mut().count(), model.len());
                let mut numbers: Vec<u64> = places.numbers().collect();
                numbers.sort_unstable();
                prop_assert_eq!(numbers, model.keys().copied().collect::<Vec<_>>());
            }
        }
    }
}
