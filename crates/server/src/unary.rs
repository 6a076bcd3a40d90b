//! Methods of one request whose values are not copied: from HTTP/2 frames to a message and back, by hand.
//!
//! What `route` does with tonic for all methods, this does for those that carry one value or are called most: tonic
//! gathers a request in a buffer of its own and writes an answer into another one. Here the value of a request is the
//! received frames, cut where the value begins and ends, and the value of an answer is the store's chunks behind a short
//! head. The other fields, which are short, are gathered and left to prost.

use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::future::poll_fn;
use futures_util::{Stream, TryStreamExt};
use http_body::Body;
use prost::Message as _;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint, encoded_len_varint};
use shoal_api::{ClientStreaming, MESSAGE_BYTES_MAX, Method, ServerStreaming, Unary, key_value, v1};
use tonic::Status;

use crate::auth::Authenticated;
use crate::body::{Data, ResponseBody};
use crate::failure::Failure;
use crate::flow::{Lease, RequestBody, STREAM_LEASE_BYTES};
use crate::messages::Messages;
use crate::route::{Call, HttpResponse, Room, refuse};
use shoal_api::fields::not_protobuf;

/// Bytes in front of each message: a flag, and the length.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Values up to here are copied behind their head: cheaper than a chunk more.
pub(crate) const COPY_BYTES_MAX: usize = 512;

/// Frames shorter than this are copied: each refers to the buffer that its connection was read into, up to 32 KiB, and would
/// keep all of it, which nobody counts. So a request holds at most four times what its lease says.
pub(crate) const KEPT_BYTES_MIN: usize = 8 << 10;

/// A method of one request, and where its values are.
pub(crate) trait Valued: Method {
    /// The number of the field with the value in a request; none where it has none.
    const VALUE_IN: Option<u32>;
    /// The same of an answer. It is the last field.
    const VALUE_OUT: Option<u32>;
    /// Whether a call may have changed something: its answer is never refused for want of room.
    const WRITES: bool;
}

macro_rules! valued {
    ($($method:path: in $value_in:expr, out $value_out:expr, writes $writes:expr;)*) => {$(
        impl Valued for $method {
            const VALUE_IN: Option<u32> = $value_in;
            const VALUE_OUT: Option<u32> = $value_out;
            const WRITES: bool = $writes;
        }
    )*};
}

valued! {
    v1::Put: in Some(15), out Some(15), writes true;
    v1::Get: in None, out Some(15), writes false;
    v1::GetStream: in None, out Some(15), writes false;
    v1::Head: in None, out None, writes false;
    v1::Delete: in None, out None, writes true;
    key_value::Create: in Some(2), out None, writes true;
    key_value::Retrieve: in None, out Some(1), writes false;
    key_value::Update: in Some(2), out None, writes true;
    key_value::Delete: in None, out None, writes true;
}

/// A message, the field with its value apart.
#[derive(Debug, Default)]
pub(crate) struct Parted<T> {
    /// The message with an empty value.
    pub(crate) message: T,
    /// The value where it lies.
    pub(crate) value: Data,
}

impl<T> From<T> for Parted<T> {
    fn from(message: T) -> Self {
        Self { message, value: Data::default() }
    }
}

/// Answers `call` with `verb`.
pub(crate) async fn answer<M: Valued + Unary, F>(
    call: Call,
    verb: impl FnOnce(Authenticated<Parted<M::Request>>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<Parted<M::Response>, Failure>>,
{
    let Call { request, flow, lease } = call;
    let (http, admitted) = request.take();
    let request = match receive::<M>(http.into_body()).await {
        Ok(request) => request,
        Err(status) => return status.into_http(),
    };
    let working = flow.working();
    let answer = match verb(admitted.with(request)).await {
        Ok(answer) => answer,
        Err(failure) => return refuse(failure),
    };
    // A write that answers with a value found one, and wrote nothing.
    let has_written = M::WRITES && answer.value.is_empty();
    let answer = encode(M::VALUE_OUT, answer);
    drop(working);
    respond_one(answer, lease, has_written)
}

/// Answers `call`, whose message and answer have many parts, with `verb`: it takes the message apart, and puts the answer
/// together, without a structure for each part.
pub(crate) async fn answer_whole<F>(
    call: Call,
    has_written: bool,
    verb: impl FnOnce(Authenticated<Bytes>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<Data, Failure>>,
{
    let Call { request, flow, lease } = call;
    let (http, admitted) = request.take();
    let message = match receive_message(http.into_body()).await {
        Ok(chunks) => Data::new(chunks).into_contiguous(),
        Err(status) => return status.into_http(),
    };
    let working = flow.working();
    let answer = match verb(admitted.with(message)).await {
        Ok(answer) => answer,
        Err(failure) => return refuse(failure),
    };
    drop(working);
    respond_one(answer, lease, has_written)
}

/// The request is gone; from here on the lease stands for the answer.
fn respond_one(answer: Data, lease: Arc<Lease>, has_written: bool) -> HttpResponse {
    if has_written {
        lease.set_regardless(answer.len());
    } else if let Err(failure) = lease.set(answer.len()) {
        return refuse(failure);
    }
    respond(ResponseBody::message(answer, lease))
}

/// Answers a method that streams both ways with `verb`, which gives messages behind their prefixes. Its caller may be silent
/// for as long as it likes.
pub(crate) fn exchange<S>(
    call: Call,
    room: Room,
    verb: impl FnOnce(Authenticated<Messages<RequestBody>>) -> S,
) -> HttpResponse
where
    S: Stream<Item = Result<Data, Failure>> + Send + 'static,
{
    let Call { request, lease, .. } = call;
    let (http, admitted) = request.take();
    let body = http.into_body().unhurried(room.message_bytes_max);
    let messages = Messages::counted(body, room.message_bytes_max, Arc::clone(&lease), room.wait_max);
    let answers = verb(admitted.with(messages));
    respond(ResponseBody::messages(answers, lease).open_ended())
}

/// Answers a method whose caller streams with `verb`.
pub(crate) async fn client_streaming<M: ClientStreaming, F>(
    call: Call,
    room: Room,
    verb: impl FnOnce(Authenticated<Messages<RequestBody>>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<M::Response, Failure>>,
{
    let Call { request, flow, lease } = call;
    let (http, admitted) = request.take();
    let body = http.into_body().uncounted(room.message_bytes_max);
    let messages = Messages::counted(body, room.message_bytes_max, Arc::clone(&lease), room.wait_max);
    let working = flow.working();
    let answer = verb(admitted.with(messages)).await;
    drop(working);
    match answer {
        Ok(answer) => respond_one(encode(None, answer.into()), lease, true),
        Err(failure) => refuse(failure),
    }
}

/// Answers `call` with the messages that `verb` gives.
pub(crate) async fn answer_stream<M: Valued + ServerStreaming, F, S>(
    call: Call,
    verb: impl FnOnce(Authenticated<Parted<M::Request>>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<S, Failure>>,
    S: Stream<Item = Result<Parted<M::Response>, Failure>> + Send + 'static,
{
    let Call { request, flow, lease } = call;
    let (http, admitted) = request.take();
    let request = match receive::<M>(http.into_body()).await {
        Ok(request) => request,
        Err(status) => return status.into_http(),
    };
    let _working = flow.working();
    let answers = match lease.set(STREAM_LEASE_BYTES) {
        Ok(()) => verb(admitted.with(request)).await,
        Err(failure) => Err(failure),
    };
    match answers {
        Ok(answers) => {
            let messages = answers.map_ok(|answer| encode(M::VALUE_OUT, answer));
            respond(ResponseBody::messages(messages, lease))
        }
        Err(failure) => failure.into_status().into_http(),
    }
}

fn respond(body: ResponseBody) -> HttpResponse {
    let mut response = http::Response::new(body);
    let content_type = http::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, content_type);
    response
}

/// The body of a request: [`RequestBody`](crate::flow::RequestBody), and what stands for it in tests.
pub(crate) trait FrameBody: Body<Data = Bytes, Error = Status> + Unpin {}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> FrameBody for B {}

/// The request of a call.
async fn receive<M: Valued>(body: impl FrameBody) -> Result<Parted<M::Request>, Status> {
    let message = Data::new(receive_message(body).await?);
    let (rest, value) = match M::VALUE_IN {
        Some(field) => split(message, field)?,
        None => (message.into_contiguous(), Data::default()),
    };
    Ok(Parted { message: M::Request::decode(rest).map_err(not_protobuf)?, value })
}

/// The bytes of the one message of a request, in the frames that it came in; short ones are gathered.
async fn receive_message(mut body: impl FrameBody) -> Result<Vec<Bytes>, Status> {
    let mut chunks = Vec::new();
    let mut gathered = BytesMut::new();
    let mut prefix = BytesMut::new();
    // What is missing of the message, once its length is known.
    let mut missing = None;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(mut data) = frame?.into_data() else { continue };
        if missing.is_none() {
            let of_prefix = data.split_to(data.len().min(PREFIX_BYTES - prefix.len()));
            prefix.extend_from_slice(&of_prefix);
            missing = length(&prefix, MESSAGE_BYTES_MAX)?;
        }
        if data.is_empty() {
            continue;
        }
        let left = missing.and_then(|missing| missing.checked_sub(data.len()));
        missing =
            Some(left.ok_or_else(|| Status::internal("there is more than one message in the request"))?);
        if data.len() < KEPT_BYTES_MIN {
            gathered.extend_from_slice(&data);
        } else {
            chunks.push(gathered.split().freeze());
            chunks.push(data);
        }
    }
    chunks.push(gathered.freeze());
    match missing {
        Some(0) => Ok(chunks),
        Some(_) => Err(Status::internal("the request ended in the middle of its message")),
        None => Err(Status::internal("the request has no message")),
    }
}

/// The length of the message behind the prefix that `prefix` begins with; none while that is not complete.
pub(crate) fn length(mut prefix: &[u8], message_bytes_max: usize) -> Result<Option<usize>, Status> {
    if prefix.len() < PREFIX_BYTES {
        return Ok(None);
    }
    if prefix.get_u8() != 0 {
        // What the request's headers say was looked at before (`dispatch`).
        return Err(Status::internal(
            "the message says that it is compressed, and the request does not say how",
        ));
    }
    let bytes = prefix.get_u32() as usize;
    if bytes > message_bytes_max {
        return Err(Failure::too_long(message_bytes_max).into_status());
    }
    Ok(Some(bytes))
}

/// Splits a message into the bytes of its field `number`, where they lie, and a copy of the rest. As protobuf has it, the
/// last of several such fields counts.
fn split(mut message: Data, number: u32) -> Result<(Bytes, Data), Status> {
    let mut rest = BytesMut::new();
    let mut value = Data::default();
    while message.has_remaining() {
        let (field, wire_type) = decode_key(&mut message).map_err(not_protobuf)?;
        match wire_type {
            WireType::LengthDelimited => {
                let length = decode_varint(&mut message).map_err(not_protobuf)?;
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                check_left(&message, length)?;
                let bytes = message.take_front(length);
                if field == number {
                    value = bytes;
                } else {
                    encode_key(field, wire_type, &mut rest);
                    encode_varint(length as u64, &mut rest);
                    rest.put(bytes);
                }
            }
            WireType::Varint => {
                let number = decode_varint(&mut message).map_err(not_protobuf)?;
                encode_key(field, wire_type, &mut rest);
                encode_varint(number, &mut rest);
            }
            WireType::ThirtyTwoBit | WireType::SixtyFourBit => {
                let length = if wire_type == WireType::ThirtyTwoBit { 4 } else { 8 };
                check_left(&message, length)?;
                encode_key(field, wire_type, &mut rest);
                rest.put(message.take_front(length));
            }
            WireType::StartGroup | WireType::EndGroup => return Err(not_protobuf("it has a group")),
        }
    }
    Ok((rest.freeze(), value))
}

fn check_left(message: &Data, bytes: usize) -> Result<(), Status> {
    if bytes > message.len() {
        return Err(not_protobuf("it ends in the middle of a field"));
    }
    Ok(())
}

/// The answer with its prefix: a head of what is short, and the value's chunks behind it.
fn encode<T: prost::Message>(value_out: Option<u32>, answer: Parted<T>) -> Data {
    let Parted { message, value } = answer;
    let fields_bytes = message.encoded_len();
    let value_bytes = value.len();
    let field = value_out.filter(|_| value_bytes > 0);
    let key_bytes =
        field.map_or(0, |field| prost::encoding::key_len(field) + encoded_len_varint(value_bytes as u64));
    let copied = if value_bytes <= COPY_BYTES_MAX { value_bytes } else { 0 };
    let mut head = BytesMut::with_capacity(PREFIX_BYTES + fields_bytes + key_bytes + copied);
    head.put_u8(0);
    // A message is far below 4 GiB: the store gives at most 4 MiB for one.
    head.put_u32((fields_bytes + key_bytes + field.map_or(0, |_| value_bytes)) as u32);
    message.encode_raw(&mut head);
    let Some(field) = field else { return head.freeze().into() };
    encode_key(field, WireType::LengthDelimited, &mut head);
    encode_varint(value_bytes as u64, &mut head);
    if copied > 0 {
        head.put(value);
        return head.freeze().into();
    }
    Data::new(std::iter::once(head.freeze()).chain(value.into_chunks()).collect())
}

/// Receives a request of one of several methods: for tests of requests that are wrong.
#[cfg(test)]
pub(crate) fn receive_for_test(body: impl FrameBody, method: u64) -> Result<(), Status> {
    use shoal_engine::block_on;
    match method {
        0 => block_on(receive::<v1::Put>(body)).map(drop),
        1 => block_on(receive::<v1::Get>(body)).map(drop),
        2 => block_on(receive::<key_value::Create>(body)).map(drop),
        _ => block_on(receive::<key_value::Retrieve>(body)).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;
    use shoal_engine::{ByteRange, Object, ObjectKey, block_on};

    use super::*;
    use crate::testing_calls::{admitted, lease};
    use crate::testing_frames::Frames;

    /// `bytes` in frames of `frame_bytes`, each in memory of its own, as they come from the network.
    fn frames(bytes: &[u8], frame_bytes: usize) -> Vec<Bytes> {
        bytes.chunks(frame_bytes).map(Bytes::copy_from_slice).collect()
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    fn receive_now<M: Valued>(frames: Vec<Bytes>) -> Result<Parted<M::Request>, Status> {
        block_on(receive::<M>(Frames(frames.into_iter())))
    }

    fn range_of(bytes: &[u8]) -> Range<usize> {
        let at = bytes.as_ptr() as usize;
        at..at + bytes.len()
    }

    /// How many bytes of `chunks` are copies: they do not lie in the memory of `sources`.
    fn copied<'a>(chunks: impl Iterator<Item = &'a [u8]>, sources: &[Range<usize>]) -> usize {
        let lies_in = |chunk: &Range<usize>| {
            sources.iter().any(|source| source.start <= chunk.start && chunk.end <= source.end)
        };
        chunks.map(range_of).filter(|chunk| !lies_in(chunk)).map(|chunk| chunk.len()).sum()
    }

    /// The value of a put reaches the store where it was received, and there it is copied once, into the memory that goes
    /// to the device (`lay_out` of the engine; values up to 16 KiB into their record, and with it into a batch).
    #[test]
    fn the_value_of_a_put_is_not_copied_before_the_store() {
        let value: Bytes = (0..64 << 10).map(|i: u32| (i / 7) as u8).collect::<Vec<_>>().into();
        let put = v1::PutRequest { key: "k".into(), value: value.clone(), ..Default::default() };
        for frame_bytes in [16 << 10, 32 << 10, 100_000] {
            let frames = frames(&framed(&put.encode_to_vec()), frame_bytes);
            let memory: Vec<_> = frames.iter().map(|frame| range_of(frame)).collect();
            let request = receive_now::<v1::Put>(frames).unwrap();
            let buffer = request.value.into_buffer();
            assert_eq!(buffer.len(), value.len());
            // The last frame is a short one, where the message does not fill it.
            let last = memory.last().map_or(0, ExactSizeIterator::len);
            let expected = if last < KEPT_BYTES_MIN { last } else { 0 };
            assert_eq!(copied(buffer.chunks(), &memory), expected, "bytes of 65,536 were copied");
            assert!(expected < 100);
            assert_eq!(buffer.to_vec(), value);
        }
    }

    /// Short frames keep nothing of the memory that they came in.
    #[test]
    fn short_frames_are_gathered() {
        let value = vec![3; 64 << 10];
        let put = v1::PutRequest { key: "k".into(), value: value.clone().into(), ..Default::default() };
        let frames = frames(&framed(&put.encode_to_vec()), KEPT_BYTES_MIN - 1);
        let memory: Vec<_> = frames.iter().map(|frame| range_of(frame)).collect();
        let request = receive_now::<v1::Put>(frames).unwrap();
        let chunks: Vec<Bytes> = request.value.into_chunks().collect();
        assert_eq!(copied(chunks.iter().map(|chunk| &chunk[..]), &memory), value.len());
        assert_eq!((chunks.len(), chunks.concat()), (1, value));
    }

    /// The value of a get leaves from the memory in which the store holds it.
    #[test]
    fn the_value_of_a_get_is_not_copied_behind_the_store() {
        let store = crate::testing::store();
        let key = ObjectKey::new("default", b"k").unwrap();
        for value_bytes in [4096, 64 << 10, 1 << 20] {
            let value = Bytes::from(vec![7; value_bytes]);
            block_on(store.put(&key, value.clone().into(), Default::default())).unwrap();
            // This holds the frames, so that the get below finds the same.
            let held: Object = block_on(store.get(&key, ByteRange::ALL)).unwrap().unwrap();
            let memory: Vec<_> = held.value.chunks().map(range_of).collect();
            let request = v1::GetRequest { key: "k".into(), ..Default::default() };
            let answer = block_on(crate::get::get(admitted(&store, request.into()), lease(2 << 20))).unwrap();
            let whole = encode(v1::Get::VALUE_OUT, answer);
            let chunks: Vec<Bytes> = whole.into_chunks().collect();
            let head_bytes = chunks[0].len();
            assert!(head_bytes < 100);
            let copied = copied(chunks.iter().map(|chunk| &chunk[..]), &memory) - head_bytes;
            assert_eq!(copied, 0, "bytes of {value_bytes} were copied");
            let plain = &chunks.concat()[PREFIX_BYTES..];
            assert_eq!(v1::GetResponse::decode(plain).unwrap().value, value);
        }
    }

    proptest! {
        /// By hand as by prost, whatever is in the message and however it is cut.
        #[test]
        fn by_hand_as_by_prost(
            key in prop::collection::vec(any::<u8>(), 0..40),
            value in prop::collection::vec(any::<u8>(), 0..1500),
            bucket in "[a-z]{0,9}",
            version in any::<Option<u64>>(),
            unknown in prop::collection::vec((16..99_u32, any::<u64>()), 0..3),
            frame_bytes in 1..400_usize
        ) {
            let rules = version.map(|version| v1::RejectRules {
                if_version_not: Some(version),
                ..Default::default()
            });
            let put = v1::PutRequest {
                bucket,
                key: key.into(),
                value: value.clone().into(),
                rules,
                modified_ns: version,
                ..Default::default()
            };
            let mut message = put.encode_to_vec();
            for (field, number) in unknown {
                prost::encoding::uint64::encode(field, &number, &mut message);
                prost::encoding::fixed64::encode(field, &number, &mut message);
                prost::encoding::fixed32::encode(field, &(number as u32), &mut message);
                prost::encoding::bytes::encode(field, &vec![5; 9], &mut message);
            }
            let got = receive_now::<v1::Put>(frames(&framed(&message), frame_bytes)).unwrap();
            prop_assert_eq!(got.value.into_contiguous(), value.clone());
            prop_assert_eq!(&got.message, &v1::PutRequest { value: Bytes::new(), ..put });

            let info = Some(v1::ObjectInfo { version: 5, bytes: value.len() as u64, ..Default::default() });
            let chunks = frames(&value, frame_bytes);
            let answer = Parted {
                message: v1::GetResponse { info: info.clone(), ..Default::default() },
                value: Data::new(chunks),
            };
            let whole = encode(v1::Get::VALUE_OUT, answer).into_contiguous();
            let expected = v1::GetResponse { info, value: value.into() };
            prop_assert_eq!(whole, framed(&expected.encode_to_vec()));
        }

        #[test]
        fn garbage_is_an_error_or_a_message(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = receive_now::<v1::Put>(frames(&bytes, 7));
            let by_hand = receive_now::<v1::Put>(frames(&framed(&bytes), 7)).is_ok();
            prop_assert!(!by_hand || v1::PutRequest::decode(&bytes[..]).is_ok());
        }
    }

    #[test]
    fn what_is_no_single_message_is_refused() {
        let code = |bytes: &[u8]| receive_now::<v1::Put>(frames(bytes, 3)).unwrap_err().code();
        assert_eq!(code(b""), tonic::Code::Internal);
        assert_eq!(code(&[0, 0, 0, 0]), tonic::Code::Internal);
        assert_eq!(code(&[0, 0, 0, 0, 2, 1]), tonic::Code::Internal);
        assert_eq!(code(&[0, 0, 0, 0, 0, 1]), tonic::Code::Internal);
        assert_eq!(code(&[1, 0, 0, 0, 0]), tonic::Code::Internal, "packed, and the request does not say how");
        assert_eq!(code(&[0, 255, 0, 0, 0]), tonic::Code::ResourceExhausted);
        // A value that claims to be longer than its message, and a group.
        assert_eq!(code(&framed(&[15 << 3 | 2, 9, 1])), tonic::Code::Internal);
        assert_eq!(code(&framed(&[20 << 3 & 0x7f | 3])), tonic::Code::Internal);
    }
}
