//! Calls of one message, answered by one: receives the message, runs its operation, and encodes the answer.
//!
//! The value of an answer is the store's chunks after a short head: only a short value is copied. Next: `operations/` has the file of each
//! method, and `answer/body.rs` sends the answer.

use std::sync::Arc;

use bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint};
use shoal_api::Unary;
use shoal_buffer::{Buffer, COPY_BYTES_MAX};
use shoal_engine::ReceiveBuffer;
use shoal_http::{ConnectionFlow, MemoryPermit};
use shoal_metrics::{Stage, mark};
use tonic::Status;

use super::receive::{Value, receive, receive_end, receive_message, receive_to_store};
use super::with_value::{Valued, WithValue};
use super::{Call, HttpResponse, refuse};
use crate::answer::body::ResponseBody;
use crate::auth::{Authenticated, Guarded};
use crate::failure::Failure;
use crate::wire::{into_contiguous, put_prefix};

/// The answer with its prefix: a head with the short fields, followed by the value's chunks.
pub(super) fn encode<T: prost::Message>(value_out: Option<u32>, answer: WithValue<T>) -> Box<Buffer> {
    let WithValue { message, value } = answer;
    let mut answer = Box::new(Buffer::new());
    message.encode_raw(&mut *answer);
    if let Some((field, value)) = value_out.zip(value).filter(|(_, value)| !value.is_empty()) {
        encode_key(field, WireType::LengthDelimited, &mut *answer);
        encode_varint(value.len() as u64, &mut *answer);
        match value.len() {
            // Cheaper than another chunk.
            ..=COPY_BYTES_MAX => value.chunks().for_each(|chunk| answer.append_copy(chunk)),
            _ => answer.append_buffer(*value),
        }
    }
    put_prefix(0, &mut answer);
    answer
}

/// Answers `call` with `operation`.
pub(crate) async fn unary<M: Valued + Unary, F, R>(
    call: Call,
    operation: impl FnOnce(Authenticated<M::Request>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<R, Failure>>,
    R: Into<WithValue<M::Response>>,
{
    let Call { request, flow, permit } = call;
    let (http, admitted) = request.take();
    match receive::<M>(http.into_body()).await {
        Ok(request) => {
            let ended = std::future::ready(Ok(()));
            answer::<M, _, _, _>(admitted.with(request), &flow, permit, operation, ended).await
        }
        Err(status) => status.into_http(),
    }
}

/// The same for a method that stores a value. `place` returns store memory for a value of the length it gets, if the request's value can
/// be received into it.
pub(crate) async fn storing<M: Valued + Unary, F, R>(
    call: Call,
    place: impl Fn(&Authenticated<()>, &M::Request, usize) -> Option<ReceiveBuffer>,
    operation: impl FnOnce(Authenticated<WithValue<M::Request, Value>>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<R, Failure>>,
    R: Into<WithValue<M::Response>>,
{
    let Call { request, flow, permit } = call;
    let (http, admitted) = request.take();
    let place = |request: &M::Request, value_bytes| {
        let frames = permit.take_frames(value_bytes)?;
        Some((place(&admitted, request, value_bytes)?, frames))
    };
    let mut body = http.into_body();
    match receive_to_store::<M>(&mut body, place).await {
        Ok(request) => {
            // Clients send the end in a separate frame, often after all of their values: the store works meanwhile.
            let ended = receive_end(&mut body);
            answer::<M, _, _, _>(admitted.with(request), &flow, permit, operation, ended).await
        }
        Err(status) => status.into_http(),
    }
}

/// Answers a request whose message is complete; the request itself has `ended` before its answer.
async fn answer<M: Valued + Unary, T, F, R>(
    request: Authenticated<T>,
    flow: &Arc<ConnectionFlow>,
    permit: Arc<MemoryPermit>,
    operation: impl FnOnce(Authenticated<T>) -> F,
    ended: impl Future<Output = Result<(), Status>>,
) -> HttpResponse
where
    F: Future<Output = Result<R, Failure>>,
    R: Into<WithValue<M::Response>>,
{
    mark(Stage::Started);
    let working = flow.working();
    let answer: WithValue<M::Response> = match operation(request).await {
        Ok(answer) => answer.into(),
        Err(failure) => return refuse(failure),
    };
    drop(working);
    if let Err(status) = ended.await {
        return status.into_http();
    }
    // A write that answers with a value found one, and wrote nothing.
    let has_written = M::WRITES && answer.value.as_ref().is_none_or(|value| value.is_empty());
    let answer = encode(M::VALUE_OUT, answer);
    respond_one(answer, permit, has_written)
}

/// Answers `call`, whose message and answer have many parts, with `operation`. The operation parses the message and assembles the answer,
/// without a structure for each part.
pub(crate) async fn whole<M: Guarded, F>(
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
    mark(Stage::Started);
    let working = flow.working();
    let answer = match operation(admitted.with(message)).await {
        Ok(answer) => answer,
        Err(failure) => return refuse(failure),
    };
    drop(working);
    respond_one(answer, permit, has_written)
}

/// The request is gone; from here on the permit counts the answer.
pub(super) fn respond_one(answer: Box<Buffer>, permit: Arc<MemoryPermit>, has_written: bool) -> HttpResponse {
    if has_written {
        permit.set_regardless(answer.len());
    } else if let Err(no_room) = permit.set(answer.len()) {
        return refuse(no_room.into());
    }
    ResponseBody::message(answer, permit).into_response()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;
    use shoal_api::v1;
    use shoal_engine::{ByteRange, Object, ObjectKey, block_on};
    use shoal_testkit::http2::message as framed;

    use super::*;
    use crate::testing::calls::{admitted, permit};
    use crate::testing::frames::{copied, frames, range_of, received};
    use crate::wire::PREFIX_BYTES;

    /// The value of a get leaves from the memory in which the store holds it.
    #[test]
    fn get_does_not_copy_value() {
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
                block_on(crate::operations::get::get(admitted(&store, request), permit(2 << 20))).unwrap();
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
        /// The two decoders agree, for any message in any frames.
        #[test]
        fn codec_matches_prost(
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
            let got = received::<v1::Put>(frames(&framed(&message), frame_bytes)).unwrap();
            prop_assert_eq!(got.value.to_vec(), value.clone());
            prop_assert_eq!(&got.message, &v1::PutRequest { value: Bytes::new(), ..put });

            let info = Some(v1::ObjectInfo { version: 5, bytes: value.len() as u64, ..Default::default() });
            let mut chunks = Buffer::new();
            frames(&value, frame_bytes).into_iter().for_each(|frame| chunks.append_external(frame));
            let answer = WithValue {
                message: v1::GetResponse { info: info.clone(), ..Default::default() },
                value: Some(Box::new(chunks)),
            };
            let whole = encode(v1::Get::VALUE_OUT, answer).to_vec();
            let expected = v1::GetResponse { info, value: value.into() };
            prop_assert_eq!(whole, framed(&expected.encode_to_vec()));
        }
    }
}
