//! The one message of a request, from its frames. A value of medium length is copied frame by frame into the memory that goes to the
//! device: each frame while it is in the processor's cache, and the memory into which its connection was read is soon free for the next
//! frames. Other values are the received frames, cut at the bounds of the value.

use std::cmp::Ordering;
use std::pin::Pin;

use bytes::{Buf, Bytes};
use futures_util::future::poll_fn;
use http_body::{Body, Frame};
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint};
use shoal_api::MESSAGE_BYTES_MAX;
use shoal_api::fields::not_protobuf;
use shoal_buffer::Buffer;
use shoal_engine::ReceiveBuffer;
#[cfg(test)]
use shoal_engine::Store;
use shoal_http::FramesPermit;
use tonic::Status;

use super::with_value::{Valued, WithValue};
#[cfg(test)]
use crate::operations::put::place_value;
use crate::wire::{PREFIX_BYTES, length, take_front};

/// Shorter frames are copied. Each refers to the buffer of up to 72 KiB that its connection was read into, and would
/// pin all of it, uncounted. So a request holds at most five times the bytes of its permit.
pub(crate) const KEPT_BYTES_MIN: usize = 16 << 10;

/// The values of shorter messages are stored in their records.
const PLACED_BYTES_MIN: usize = 16 << 10;

/// The most bytes, with the prefix, of the fields before a value that is received into the memory of the device.
const FIELDS_BYTES_MAX: usize = 4 << 10;

/// The value of a request.
#[derive(Debug)]
pub(crate) enum Value {
    /// In its frames.
    Chunks(Box<Buffer>),
    /// In the memory that goes to the device.
    Received(ReceiveBuffer, FramesPermit),
}

impl Value {
    /// The value in memory that may be shared.
    pub(crate) fn into_buffer(self) -> Buffer {
        match self {
            Self::Chunks(value) => *value,
            Self::Received(mut value, _) => value.to_vec().into(),
        }
    }
}

/// The body of a request: [`RequestBody`](super::body::RequestBody), and its replacement in tests.
pub(crate) trait FrameBody: Body<Data = Bytes, Error = Status> + Unpin {}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> FrameBody for B {}

/// Appends a frame of a request: a long one by reference.
pub(crate) fn append_frame(message: &mut Buffer, frame: Bytes) {
    if frame.len() < KEPT_BYTES_MIN {
        message.append_copy(&frame);
    } else {
        message.append_external(frame);
    }
}

/// The one message of a request.
struct Received<T> {
    /// The message in its frames, without the prefix; empty for a placed one. Boxed, because it is moved several times.
    message: Box<Buffer>,
    placed: Option<Placed<T>>,
}

/// A message whose value is received into the memory that goes to the device.
struct Placed<T> {
    /// The fields before the value.
    message: T,
    value: ReceiveBuffer,
    permit: FramesPermit,
}

/// Receives the frames of the one message of a request; after each frame `place` may take the received bytes and find a place for the rest.
async fn receive_frames<T>(
    body: &mut impl FrameBody,
    mut place: impl FnMut(&mut Buffer, usize) -> Option<Placed<T>>,
) -> Result<Received<T>, Status> {
    let mut message = Box::new(Buffer::new());
    let mut placed: Option<Placed<T>> = None;
    let mut came = 0;
    // The message's length with its prefix, once the prefix has arrived.
    let mut whole = None;
    while let Some(frame) = next_frame(body).await {
        let Ok(data) = frame?.into_data() else { continue };
        came += data.len();
        if whole.is_some_and(|whole| came > whole) {
            return Err(too_much());
        }
        match &mut placed {
            Some(placed) => placed.value.take(&data),
            None => append_frame(&mut message, data),
        }
        if whole.is_none() {
            whole = length(&message, MESSAGE_BYTES_MAX)?.map(|bytes| PREFIX_BYTES + bytes);
        }
        let Some(whole) = whole else { continue };
        if came > whole {
            return Err(too_much());
        }
        if placed.is_none() && whole >= PLACED_BYTES_MIN {
            placed = place(&mut message, whole);
        }
        if placed.is_some() && came == whole {
            return Ok(Received { message, placed });
        }
    }
    match whole {
        Some(whole) if whole == came => {
            message.advance(PREFIX_BYTES);
            Ok(Received { message, placed: None })
        }
        Some(_) => Err(Status::internal("the request ended in the middle of its message")),
        None => Err(Status::internal("the request has no message")),
    }
}

fn too_much() -> Status {
    Status::internal("there is more than one message in the request")
}

async fn next_frame(body: &mut impl FrameBody) -> Option<Result<Frame<Bytes>, Status>> {
    poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

/// Waits for the end of a request whose message is complete. A request that breaks off has ended: its message was whole.
pub(super) async fn receive_end(body: &mut impl FrameBody) -> Result<(), Status> {
    while !body.is_end_stream()
        && let Some(Ok(frame)) = next_frame(body).await
    {
        if frame.data_ref().is_some_and(|data| !data.is_empty()) {
            return Err(too_much());
        }
    }
    Ok(())
}

/// The one message of a request, without its prefix.
pub(super) async fn receive_message(mut body: impl FrameBody) -> Result<Box<Buffer>, Status> {
    receive_frames::<()>(&mut body, |_, _| None).await.map(|received| received.message)
}

/// The request of a call that stores no value.
pub(super) async fn receive<M: Valued>(body: impl FrameBody) -> Result<M::Request, Status> {
    const { assert!(M::VALUE_IN.is_none(), "a request with a value is received to the store") };
    M::Request::decode(receive_message(body).await?).map_err(not_protobuf)
}

/// The request of a call that stores a value. `place` returns memory for a value of a known length, if it has some: the end of the request
/// may still be to come then ([`receive_end`]).
pub(crate) async fn receive_to_store<M: Valued>(
    body: &mut impl FrameBody,
    place: impl Fn(&M::Request, usize) -> Option<(ReceiveBuffer, FramesPermit)>,
) -> Result<WithValue<M::Request, Value>, Status> {
    let place = |received: &mut Buffer, whole: usize| {
        let (message, value_at) = value_ahead::<M>(received, whole)?;
        let (mut value, permit) = place(&message, whole - value_at)?;
        received.advance(value_at);
        received.chunks().for_each(|chunk| value.take(chunk));
        received.clear();
        Some(Placed { message, value, permit })
    };
    let Received { message, placed } = receive_frames(body, place).await?;
    if let Some(Placed { message, value, permit }) = placed {
        return Ok(WithValue { message, value: Value::Received(value, permit) });
    }
    let WithValue { message, value } = split::<M>(message)?;
    Ok(WithValue { message, value: Value::Chunks(value) })
}

/// The fields before the value, and the value's offset, in a message of `whole` bytes of which `received` has arrived. `None` if the
/// value's length has not arrived, or if fields follow the value.
fn value_ahead<M: Valued>(received: &Buffer, whole: usize) -> Option<(M::Request, usize)> {
    let field = M::VALUE_IN?;
    let head = received.contiguous(0, received.len().min(FIELDS_BYTES_MAX)).ok()?;
    let mut rest = head.get(PREFIX_BYTES..)?;
    let mut message = M::Request::default();
    loop {
        let (number, wire_type) = decode_key(&mut rest).ok()?;
        if number == field && wire_type == WireType::LengthDelimited {
            let value_bytes = decode_varint(&mut rest).ok()?;
            let value_at = head.len() - rest.len();
            return ((whole - value_at) as u64 == value_bytes).then_some((message, value_at));
        }
        message.merge_field(number, wire_type, &mut rest, DecodeContext::default()).ok()?;
    }
}

/// Splits `message`. As in protobuf, the last of several fields with the value counts.
fn split<M: Valued>(mut message: Box<Buffer>) -> Result<WithValue<M::Request, Box<Buffer>>, Status> {
    let mut request = M::Request::default();
    let mut value = None;
    while message.has_remaining() {
        let (field, wire_type) = decode_key(&mut message).map_err(not_protobuf)?;
        if M::VALUE_IN != Some(field) || wire_type != WireType::LengthDelimited {
            let merged = request.merge_field(field, wire_type, &mut message, DecodeContext::default());
            merged.map_err(not_protobuf)?;
            continue;
        }
        let bytes = decode_varint(&mut message).map_err(not_protobuf)?;
        match bytes.cmp(&(message.len() as u64)) {
            Ordering::Less => value = Some(Box::new(take_front(&mut message, bytes as usize))),
            // The value is the last field.
            Ordering::Equal => return Ok(WithValue { message: request, value: message }),
            Ordering::Greater => return Err(not_protobuf("it ends in the middle of a field")),
        }
    }
    Ok(WithValue { message: request, value: value.unwrap_or_default() })
}

/// Receives a request of one of several methods, long values into memory of `store`: for tests of invalid requests.
#[cfg(test)]
pub(crate) fn receive_for_test(store: &Store, mut body: impl FrameBody, method: u64) -> Result<(), Status> {
    use shoal_api::{key_value, v1};
    use shoal_engine::block_on;
    let admitted = crate::testing::calls::admitted(store, ());
    let permit = crate::testing::calls::permit(1 << 20);
    let place = |key: &[u8], bytes| {
        let frames = permit.take_frames(bytes)?;
        Some((place_value::<v1::Put>(&admitted, "b", key, bytes)?, frames))
    };
    match method {
        0 => block_on(async {
            receive_to_store::<v1::Put>(&mut body, |request, bytes| place(&request.key, bytes)).await?;
            receive_end(&mut body).await
        }),
        1 => block_on(receive::<v1::Get>(body)).map(drop),
        2 => block_on(async {
            let place = |request: &key_value::CreateRequest, bytes| place(&request.key, bytes);
            receive_to_store::<key_value::Create>(&mut body, place).await?;
            receive_end(&mut body).await
        }),
        _ => block_on(receive::<key_value::Retrieve>(body)).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;
    use shoal_api::v1;
    use shoal_engine::block_on;
    use shoal_http::Flow;
    use shoal_testkit::bytes::patterned;
    use shoal_testkit::http2::message as framed;

    use super::*;
    use crate::testing::calls::{admitted, permit};
    use crate::testing::frames::{Frames, copied, frames, range_of, received};

    /// A value that gets no memory of the store reaches it in its received memory. The store copies it once, into the memory that goes to
    /// the device (`lay_out` of the engine; values up to 16 KiB into their record, and with it into a batch).
    #[test]
    fn put_does_not_copy_value() {
        let value: Bytes = (0..64 << 10).map(|i: u32| (i / 7) as u8).collect::<Vec<_>>().into();
        let put = v1::PutRequest { key: "k".into(), value: value.clone(), ..Default::default() };
        for frame_bytes in [16 << 10, 72 << 10, 100_000] {
            let frames = frames(&framed(&put.encode_to_vec()), frame_bytes);
            let memory: Vec<_> = frames.iter().map(|frame| range_of(frame)).collect();
            let request = received::<v1::Put>(frames).unwrap();
            let buffer = request.value;
            assert_eq!(buffer.len(), value.len());
            // The last frame is short if the message does not fill it.
            let last = memory.last().map_or(0, ExactSizeIterator::len);
            let expected = if last < KEPT_BYTES_MIN { last } else { 0 };
            assert_eq!(copied(buffer.chunks(), &memory), expected, "bytes of 65,536 were copied");
            assert!(expected < 100);
            assert_eq!(buffer.to_vec(), value);
        }
    }

    /// Short frames pin none of the memory that they came in.
    #[test]
    fn short_frames_are_gathered() {
        let value = vec![3; 64 << 10];
        let put = v1::PutRequest { key: "k".into(), value: value.clone().into(), ..Default::default() };
        // They are held below: the buffer must not get their memory.
        let frames = frames(&framed(&put.encode_to_vec()), KEPT_BYTES_MIN - 1);
        let memory: Vec<_> = frames.iter().map(|frame| range_of(frame)).collect();
        let request = received::<v1::Put>(frames.clone()).unwrap();
        assert_eq!(copied(request.value.chunks(), &memory), value.len());
        assert_eq!(request.value.to_vec(), value);
    }

    /// Receives a put into memory of `store`, and its end.
    fn received_into(store: &Store, frames: Vec<Bytes>) -> Result<WithValue<v1::PutRequest, Value>, Status> {
        let (admitted, permit) = (admitted(store, ()), permit(1 << 20));
        let place = |request: &v1::PutRequest, bytes: usize| {
            let frames = permit.take_frames(bytes)?;
            Some((place_value::<v1::Put>(&admitted, &request.bucket, &request.key, bytes)?, frames))
        };
        let mut body = Frames(frames.into_iter());
        let request = block_on(receive_to_store::<v1::Put>(&mut body, place))?;
        block_on(receive_end(&mut body))?;
        Ok(request)
    }

    fn is_placed(request: &WithValue<v1::PutRequest, Value>) -> bool {
        matches!(request.value, Value::Received(..))
    }

    #[test]
    fn a_value_of_medium_length_is_received_into_memory_of_the_store() {
        let store = crate::testing::store();
        for (value_bytes, is_placed_then) in
            [(1_000, false), (20 << 10, true), (64 << 10, true), (150_001, true), (4 << 20, false)]
        {
            let value = patterned(value_bytes, value_bytes);
            let put = v1::PutRequest {
                bucket: "b".into(),
                key: "k".into(),
                value: value.clone().into(),
                ttl_ns: Some(7),
                ..Default::default()
            };
            let sent = framed(&put.encode_to_vec());
            for frame_bytes in [3, 1_000, 16 << 10, 72 << 10, sent.len()] {
                let request = received_into(&store, frames(&sent, frame_bytes)).unwrap();
                assert_eq!(is_placed(&request), is_placed_then, "{value_bytes} in frames of {frame_bytes}");
                assert_eq!(request.value.into_buffer().to_vec(), value);
                assert_eq!(request.message, v1::PutRequest { value: Bytes::new(), ..put.clone() });
            }
        }
    }

    /// The last field with the value counts, and fields may follow it.
    #[test]
    fn fields_after_the_value_are_parsed() {
        let store = crate::testing::store();
        let put = |seed, ttl_ns| v1::PutRequest {
            key: "k".into(),
            value: patterned(30_000, seed).into(),
            ttl_ns,
            ..Default::default()
        };
        let twice = [put(1, None).encode_to_vec(), put(2, Some(9)).encode_to_vec()].concat();
        for frame_bytes in [1_000, 16 << 10, 40_000, 100_000] {
            let request = received_into(&store, frames(&framed(&twice), frame_bytes)).unwrap();
            assert!(!is_placed(&request));
            assert_eq!(request.message.ttl_ns, Some(9));
            assert_eq!(request.value.into_buffer().to_vec(), patterned(30_000, 2));
        }
    }

    #[test]
    fn a_wrong_end_of_a_placed_message_is_refused() {
        let store = crate::testing::store();
        let put =
            v1::PutRequest { key: "k".into(), value: patterned(64 << 10, 1).into(), ..Default::default() };
        let sent = framed(&put.encode_to_vec());
        let code = |sent: &[u8], cut| received_into(&store, frames(sent, cut)).unwrap_err().code();
        for cut in [1_000, 16 << 10, 72 << 10, sent.len()] {
            assert_eq!(code(&sent[..sent.len() - 1], cut), tonic::Code::Internal);
            assert_eq!(code(&[&sent[..], b"x"].concat(), cut), tonic::Code::Internal);
        }
        assert_eq!(store.stat().puts, 0);
    }

    /// Requests that arrive slowly hold only a bounded part of the store's memory: others are received in their frames.
    #[test]
    fn the_memory_of_values_that_are_received_is_bounded() {
        let flow = Flow::new(1 << 30, 1 << 30);
        let held: Vec<_> = std::iter::from_fn(|| flow.connection().permit().take_frames(64 << 10)).collect();
        assert_eq!(held.len(), 256, "16 MiB");
        assert!(flow.connection().permit().take_frames(1).is_none());
        drop(held);
        assert!(flow.connection().permit().take_frames(16 << 20).is_some());
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic_message_parser(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = received::<v1::Put>(frames(&bytes, 7));
            let fast = received::<v1::Put>(frames(&framed(&bytes), 7)).is_ok();
            prop_assert!(!fast || v1::PutRequest::decode(&bytes[..]).is_ok());
        }
    }

    #[test]
    fn bytes_that_are_no_single_message_are_refused() {
        let code = |bytes: &[u8]| received::<v1::Put>(frames(bytes, 3)).unwrap_err().code();
        assert_eq!(code(b""), tonic::Code::Internal);
        assert_eq!(code(&[0, 0, 0, 0]), tonic::Code::Internal);
        assert_eq!(code(&[0, 0, 0, 0, 2, 1]), tonic::Code::Internal);
        assert_eq!(code(&[0, 0, 0, 0, 0, 1]), tonic::Code::Internal);
        assert_eq!(code(&[1, 0, 0, 0, 0]), tonic::Code::Internal, "packed, and the request does not say how");
        assert_eq!(code(&[0, 255, 0, 0, 0]), tonic::Code::ResourceExhausted);
        // A value whose length exceeds its message, and a group.
        assert_eq!(code(&framed(&[15 << 3 | 2, 9, 1])), tonic::Code::Internal);
        assert_eq!(code(&framed(&[20 << 3 & 0x7f | 3])), tonic::Code::Internal);
    }
}
