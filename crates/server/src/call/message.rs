//! Calls of one message, answered by one: a value is never copied. The value of a request is the received
//! frames, cut where the value begins and ends; the value of an answer is the store's chunks behind a short head.

use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use futures_util::future::poll_fn;
use http_body::Body;
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint};
use shoal_api::fields::not_protobuf;
use shoal_api::{MESSAGE_BYTES_MAX, Method, Unary, key_value, v1};
use shoal_buffer::{Buffer, COPY_BYTES_MAX};
use shoal_metrics::{Mark, mark};
use tonic::Status;

use super::{Call, HttpResponse, refuse};
use crate::answer::body::ResponseBody;
use crate::auth::Authenticated;
use crate::failure::Failure;
use crate::flow::MemoryPermit;
use crate::wire::{PREFIX_BYTES, into_contiguous, length, put_prefix, take_front};

/// Shorter frames are copied. Each refers to the buffer of up to 32 KiB that its connection was read into, and would
/// keep all of it, uncounted. So a request holds at most four times the bytes of its permit.
pub(crate) const KEPT_BYTES_MIN: usize = 8 << 10;

/// A method with one request, and where its values are.
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
    v1::List: in None, out None, writes false;
    v1::ListBuckets: in None, out None, writes false;
    v1::Stat: in None, out None, writes false;
    v1::Moving: in None, out None, writes false;
    v1::Grow: in None, out None, writes false;
    v1::Report: in None, out None, writes false;
    v1::Backup: in None, out None, writes false;
    v1::FreeSpace: in None, out None, writes false;
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
    pub(crate) value: Buffer,
}

impl<T> From<T> for Parted<T> {
    fn from(message: T) -> Self {
        Self { message, value: Buffer::new() }
    }
}

/// The body of a request: [`RequestBody`](super::body::RequestBody), and what stands for it in tests.
pub(crate) trait FrameBody: Body<Data = Bytes, Error = Status> + Unpin {}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> FrameBody for B {}

/// Appends a frame of a request: a long one as it lies.
pub(crate) fn append_frame(message: &mut Buffer, frame: Bytes) {
    if frame.len() < KEPT_BYTES_MIN {
        message.append_copy(&frame);
    } else {
        message.append_external(frame);
    }
}

/// The one message of a request, without its prefix.
async fn receive_message(mut body: impl FrameBody) -> Result<Buffer, Status> {
    let mut message = Buffer::new();
    // The message's bytes with its prefix, once that is there.
    let mut whole = None;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame?.into_data() else { continue };
        append_frame(&mut message, data);
        if whole.is_none() {
            whole = length(&message, MESSAGE_BYTES_MAX)?.map(|bytes| PREFIX_BYTES + bytes);
        }
        if whole.is_some_and(|whole| message.len() > whole) {
            return Err(Status::internal("there is more than one message in the request"));
        }
    }
    match whole {
        Some(whole) if whole == message.len() => {
            message.advance(PREFIX_BYTES);
            Ok(message)
        }
        Some(_) => Err(Status::internal("the request ended in the middle of its message")),
        None => Err(Status::internal("the request has no message")),
    }
}

/// The request of a call.
pub(super) async fn receive<M: Valued>(body: impl FrameBody) -> Result<Parted<M::Request>, Status> {
    split::<M>(receive_message(body).await?)
}

/// Takes `message` apart. As protobuf has it, the last of several fields with the value counts.
fn split<M: Valued>(mut message: Buffer) -> Result<Parted<M::Request>, Status> {
    let mut parted = Parted::from(M::Request::default());
    while message.has_remaining() {
        let (field, wire_type) = decode_key(&mut message).map_err(not_protobuf)?;
        if M::VALUE_IN != Some(field) || wire_type != WireType::LengthDelimited {
            let merged = parted.message.merge_field(field, wire_type, &mut message, DecodeContext::default());
            merged.map_err(not_protobuf)?;
            continue;
        }
        let bytes = decode_varint(&mut message).map_err(not_protobuf)?;
        if bytes > message.len() as u64 {
            return Err(not_protobuf("it ends in the middle of a field"));
        }
        parted.value = take_front(&mut message, bytes as usize);
    }
    Ok(parted)
}

/// The answer with its prefix: a head with the short fields, followed by the value's chunks.
pub(super) fn encode<T: prost::Message>(value_out: Option<u32>, answer: Parted<T>) -> Box<Buffer> {
    let Parted { message, value } = answer;
    let mut answer = Box::new(Buffer::new());
    message.encode_raw(&mut *answer);
    if let Some(field) = value_out.filter(|_| !value.is_empty()) {
        encode_key(field, WireType::LengthDelimited, &mut *answer);
        encode_varint(value.len() as u64, &mut *answer);
        match value.len() {
            // Cheaper than a chunk more.
            ..=COPY_BYTES_MAX => value.chunks().for_each(|chunk| answer.append_copy(chunk)),
            _ => answer.append_buffer(value),
        }
    }
    put_prefix(0, &mut answer);
    answer
}

/// Answers `call` with `operation`.
pub(crate) async fn unary<M: Valued + Unary, F, R>(
    call: Call,
    operation: impl FnOnce(Authenticated<Parted<M::Request>>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<R, Failure>>,
    R: Into<Parted<M::Response>>,
{
    let Call { request, flow, permit } = call;
    let (http, admitted) = request.take();
    let request = match receive::<M>(http.into_body()).await {
        Ok(request) => request,
        Err(status) => return status.into_http(),
    };
    mark(Mark::Started);
    let working = flow.working();
    let answer: Parted<M::Response> = match operation(admitted.with(request)).await {
        Ok(answer) => answer.into(),
        Err(failure) => return refuse(failure),
    };
    // A write that answers with a value found one, and wrote nothing.
    let has_written = M::WRITES && answer.value.is_empty();
    let answer = encode(M::VALUE_OUT, answer);
    drop(working);
    respond_one(answer, permit, has_written)
}

/// Answers `call`, whose message and answer have many parts, with `operation`. The operation takes the message apart
/// and assembles the answer, without a structure for each part.
pub(crate) async fn whole<F>(
    call: Call,
    has_written: bool,
    operation: impl FnOnce(Authenticated<Bytes>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<Box<Buffer>, Failure>>,
{
    let Call { request, flow, permit } = call;
    let (http, admitted) = request.take();
    let message = match receive_message(http.into_body()).await {
        Ok(message) => into_contiguous(message),
        Err(status) => return status.into_http(),
    };
    mark(Mark::Started);
    let working = flow.working();
    let answer = match operation(admitted.with(message)).await {
        Ok(answer) => answer,
        Err(failure) => return refuse(failure),
    };
    drop(working);
    respond_one(answer, permit, has_written)
}

/// The request is gone; from here on the permit stands for the answer.
pub(super) fn respond_one(answer: Box<Buffer>, permit: Arc<MemoryPermit>, has_written: bool) -> HttpResponse {
    if has_written {
        permit.set_regardless(answer.len());
    } else if let Err(failure) = permit.set(answer.len()) {
        return refuse(failure);
    }
    ResponseBody::message(answer, permit).into_response()
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
    use crate::testing::calls::{admitted, permit};
    use crate::testing::frames::Frames;

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
            let buffer = request.value;
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
        // They are held below: the buffer must not be given their memory.
        let frames = frames(&framed(&put.encode_to_vec()), KEPT_BYTES_MIN - 1);
        let memory: Vec<_> = frames.iter().map(|frame| range_of(frame)).collect();
        let request = receive_now::<v1::Put>(frames.clone()).unwrap();
        assert_eq!(copied(request.value.chunks(), &memory), value.len());
        assert_eq!(request.value.to_vec(), value);
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
            let answer =
                block_on(crate::operations::get::get(admitted(&store, request.into()), permit(2 << 20)))
                    .unwrap();
            let whole = encode(v1::Get::VALUE_OUT, answer);
            let head_bytes = whole.first_chunk().len();
            assert!(head_bytes < 100);
            let copied = copied(whole.chunks(), &memory) - head_bytes;
            assert_eq!(copied, 0, "bytes of {value_bytes} were copied");
            let plain = &whole.to_vec()[PREFIX_BYTES..];
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
            prop_assert_eq!(got.value.to_vec(), value.clone());
            prop_assert_eq!(&got.message, &v1::PutRequest { value: Bytes::new(), ..put });

            let info = Some(v1::ObjectInfo { version: 5, bytes: value.len() as u64, ..Default::default() });
            let mut chunks = Buffer::new();
            frames(&value, frame_bytes).into_iter().for_each(|frame| chunks.append_external(frame));
            let answer = Parted {
                message: v1::GetResponse { info: info.clone(), ..Default::default() },
                value: chunks,
            };
            let whole = encode(v1::Get::VALUE_OUT, answer).to_vec();
            let expected = v1::GetResponse { info, value: value.into() };
            prop_assert_eq!(whole, framed(&expected.encode_to_vec()));
        }

        #[test]
        fn garbage_is_an_error_or_a_message(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = receive_now::<v1::Put>(frames(&bytes, 7));
            let fast = receive_now::<v1::Put>(frames(&framed(&bytes), 7)).is_ok();
            prop_assert!(!fast || v1::PutRequest::decode(&bytes[..]).is_ok());
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
