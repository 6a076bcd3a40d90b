//! Values that travel in pieces: put and get of values that are too long for one message.

use bytes::Bytes;
use futures_util::future::poll_fn;
use futures_util::{Stream, stream};
use prost::Message;
use shoal_api::fields::not_protobuf;
use shoal_api::v1::put_stream_request::Part;
use shoal_api::{CHUNK_BYTES_MAX, v1};
use shoal_base::limits::VALUE_BYTES_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{Error, ValueReader, ValueWriter};

use super::get::check_version;
use crate::auth::{Authenticated, Revoked};
use crate::call::receive::FrameBody;
use crate::call::stream_messages::Messages;
use crate::call::with_value::WithValue;
use crate::convert;
use crate::failure::Failure;
use crate::wire::take_front;

/// Stores one object. A stream without an end message stores nothing: dropping the store's unfinished stream frees its space.
pub(crate) async fn put_stream(
    request: Authenticated<Messages<impl FrameBody>>,
    mut revoked: Revoked,
) -> Result<v1::PutResponse, Failure> {
    let (mut parts, admitted) = request.take();
    let first = tokio::select! {
        first = next_part(&mut parts) => first?,
        denied = &mut revoked => return Err(Failure::revoked(&denied)),
    };
    let Some(Part::Header(header)) = first else {
        return Err(Failure::invalid("the first message of the stream is not a header"));
    };
    let key = convert::object_key(&header.bucket, &header.key)?;
    let end = (header.ttl_ns, header.expire_time_ns);
    let options = convert::put_options(header.rules, header.metadata, header.modified_ns, end)?;
    let rules = options.rules;
    let failed = |error: Error| Failure::of_write(&error, &rules);
    let store = admitted.to::<v1::PutStream>(key.bucket(), key.key())?;
    let mut value = store.put_stream(&key, options).map_err(failed)?.with_request_id(admitted.request_id());
    // Nothing is interrupted once the end message has arrived: then the object is stored.
    let announced = tokio::select! {
        received = receive(&mut parts, &mut value, failed) => received?,
        denied = &mut revoked => return Err(Failure::revoked(&denied)),
    };
    let done = value.finish().await.map_err(failed)?;
    tracing::trace!(%key, bytes = announced, "stored a stream");
    Ok(v1::PutResponse { version: done.version.0, ..Default::default() })
}

/// Takes the chunks up to the end message; returns their length, which the client must confirm.
async fn receive(
    parts: &mut Messages<impl FrameBody>,
    value: &mut ValueWriter,
    failed: impl Fn(Error) -> Failure + Copy,
) -> Result<u64, Failure> {
    let mut bytes = 0;
    loop {
        match next_part(parts).await? {
            Some(Part::Chunk(chunk)) => {
                bytes += chunk.len() as u64;
                check_chunk(chunk.len(), bytes)?;
                value.write(&chunk).await.map_err(failed)?;
            }
            Some(Part::End(end)) if end.bytes == bytes => return Ok(bytes),
            Some(Part::End(end)) => {
                let announced = end.bytes;
                return Err(Failure::invalid(format!("{bytes} bytes were sent for a value of {announced}")));
            }
            Some(Part::Header(_)) => return Err(Failure::invalid("a second header in the stream")),
            None => return Err(Failure::broken_off()),
        }
    }
}

fn check_chunk(chunk_bytes: usize, value_bytes: u64) -> Result<(), Failure> {
    if chunk_bytes > CHUNK_BYTES_MAX {
        return Err(Failure::invalid(format!(
            "a chunk has at most {CHUNK_BYTES_MAX} bytes; this one has {chunk_bytes}"
        )));
    }
    if value_bytes > VALUE_BYTES_MAX {
        return Err(Failure::invalid(format!(
            "a value has at most {VALUE_BYTES_MAX} bytes; this one has more"
        )));
    }
    Ok(())
}

/// The next part; `None` at the end of the stream. Messages of no known part are of a later version and cannot be skipped.
async fn next_part(parts: &mut Messages<impl FrameBody>) -> Result<Option<Part>, Failure> {
    let Some(message) = poll_fn(|context| parts.poll_next(context)).await else { return Ok(None) };
    match v1::PutStreamRequest::decode(message?).map_err(not_protobuf)?.part {
        Some(part) => Ok(Some(part)),
        None => Err(Failure::invalid("unknown part in a message of the stream")),
    }
}

/// Reads one object, or a range of it.
pub(crate) async fn get_stream(
    request: Authenticated<v1::GetStreamRequest>,
) -> Result<impl Stream<Item = Result<WithValue<v1::GetStreamResponse>, Failure>> + Send + 'static, Failure> {
    let (message, admitted) = request.take();
    let key = convert::object_key(&message.bucket, &message.key)?;
    let value = admitted
        .to::<v1::GetStream>(key.bucket(), key.key())?
        .get_stream(&key, convert::range(message.range))
        .await;
    let value = value.map_err(|error| Failure::of(&error))?.ok_or_else(|| Failure::not_found(&key))?;
    check_version(value.info(), message.version)?;
    let info = Some(convert::info(value.info()));
    let start = Sending { value, info, piece: Buffer::new() };
    Ok(stream::try_unfold(start, |mut sending| async move {
        Ok(sending.next().await?.map(|message| (message, sending)))
    }))
}

/// A value on its way out.
struct Sending {
    value: ValueReader,
    /// Goes with the first message.
    info: Option<v1::ObjectInfo>,
    /// The rest of the store's last piece.
    piece: Buffer,
}

impl Sending {
    async fn next(&mut self) -> Result<Option<WithValue<v1::GetStreamResponse>>, Failure> {
        while self.piece.is_empty() {
            match self.value.next().await.map_err(|error| Failure::of(&error))? {
                Some(piece) => self.piece = piece,
                // An empty value has one message too: the info.
                None => {
                    let info = self.info.take();
                    return Ok(info.map(|info| message(Some(info), None)));
                }
            }
        }
        let chunk = take_front(&mut self.piece, CHUNK_BYTES_MAX);
        Ok(Some(message(self.info.take(), Some(Box::new(chunk)))))
    }
}

fn message(info: Option<v1::ObjectInfo>, chunk: Option<Box<Buffer>>) -> WithValue<v1::GetStreamResponse> {
    WithValue { message: v1::GetStreamResponse { info, chunk: Bytes::new() }, value: chunk }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_and_values_are_bounded() {
        assert!(check_chunk(CHUNK_BYTES_MAX, VALUE_BYTES_MAX).is_ok());
        assert!(check_chunk(CHUNK_BYTES_MAX + 1, 5).is_err());
        assert!(check_chunk(1, VALUE_BYTES_MAX + 1).is_err());
    }
}
