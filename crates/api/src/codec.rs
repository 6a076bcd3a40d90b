//! A codec of gRPC whose messages are bytes to tonic. tonic's code for calls depends on the type of the codec: with this one it is
//! compiled once, and not again for each method.

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// A message that is sent.
pub enum OutgoingMessage {
    /// It is encoded already.
    Encoded(Bytes),
    /// It is encoded when it is sent.
    Message(Box<dyn Encodes>),
}

impl OutgoingMessage {
    /// `message`, which is encoded when it is sent.
    #[must_use]
    pub fn of(message: impl Message + 'static) -> Self {
        Self::Message(Box::new(message))
    }
}

/// A message of any type.
pub trait Encodes: Send + Sync {
    /// Appends the encoded message to `target`.
    fn encode_to(&self, target: &mut EncodeBuf<'_>);
}

impl<M: Message> Encodes for M {
    fn encode_to(&self, target: &mut EncodeBuf<'_>) {
        self.encode_raw(target);
    }
}

/// Decodes a message that was received with [`BytesCodec`].
///
/// # Errors
/// `Internal`, as tonic's own codec, if it is malformed.
pub fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::internal(error.to_string()))
}

/// Sends [`OutgoingMessage`] messages, and receives messages as they are on the wire.
#[derive(Clone, Copy, Debug, Default)]
pub struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = OutgoingMessage;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = OutgoingMessage;
    type Error = Status;

    fn encode(&mut self, message: OutgoingMessage, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        match message {
            OutgoingMessage::Encoded(bytes) => target.put(bytes),
            OutgoingMessage::Message(message) => message.encode_to(target),
        }
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        // Nothing is copied here: the message is in one piece.
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}
