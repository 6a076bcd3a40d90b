//! Decodes requests in other encodings than plain gRPC: base64 text (gRPC-Web), and compressed messages. Later stages
//! see plain gRPC only.
//!
//! A compressed message is held until it is whole, and unpacked up to the limit of a message: its announced length does not matter. One
//! message is unpacked at a time, when its reader wants it: a frame may have many of them.

use std::io::Read;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use shoal_api::MESSAGE_BYTES_MAX;
use tonic::Status;

use crate::failure::Failure;
use crate::wire::PREFIX_BYTES;

/// Characters that encode up to three bytes.
const QUAD_BYTES: usize = 4;

/// The common alphabet, with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The decoding steps of a request, in this order.
#[derive(Debug, Default)]
pub(crate) struct Decoders {
    /// Text left over from the last frame: less than a quad.
    text: Option<BytesMut>,
    gzip: Option<Gzip>,
    /// The received bytes, if they are not packed.
    plain: Option<Bytes>,
}

impl Decoders {
    /// For a request in base64, with compressed messages, or both; `None` if it is neither.
    pub(crate) fn new(text: bool, gzip: bool) -> Option<Self> {
        let gzip = gzip.then(|| Gzip { arrived: BytesMut::new(), message_bytes_max: MESSAGE_BYTES_MAX });
        (text || gzip.is_some()).then(|| Self { text: text.then(BytesMut::new), gzip, plain: None })
    }

    /// The same for messages of at most `message_bytes_max`.
    pub(crate) fn bounded(mut self, message_bytes_max: usize) -> Self {
        if let Some(gzip) = &mut self.gzip {
            gzip.message_bytes_max = message_bytes_max;
        }
        self
    }

    /// Takes a frame, after [`Self::next`] returned all of the previous one.
    pub(crate) fn push(&mut self, frame: Bytes) -> Result<(), Status> {
        let plain = match &mut self.text {
            Some(left) => from_text(left, frame)?,
            None => frame,
        };
        match &mut self.gzip {
            Some(gzip) => gzip.arrived.extend_from_slice(&plain),
            None => self.plain = Some(plain),
        }
        Ok(())
    }

    /// The next part of the plain request, at most one message if they are packed; `None` if more has to arrive.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, Status> {
        match &mut self.gzip {
            Some(gzip) => gzip.next(),
            None => Ok(self.plain.take()),
        }
    }

    /// Checks that the request may end here.
    pub(crate) fn end(self) -> Result<(), Status> {
        let whole = self.text.is_none_or(|left| left.is_empty())
            && self.gzip.is_none_or(|gzip| gzip.arrived.is_empty());
        if whole { Ok(()) } else { Err(Status::internal("the request ended in the middle of its message")) }
    }
}

/// The decoded bytes of `frame`, after the rest of the previous one. Any quad may have padding: senders encode each of their messages
/// separately.
fn from_text(left: &mut BytesMut, frame: Bytes) -> Result<Bytes, Status> {
    left.extend_from_slice(&frame);
    let mut whole = left.split_to(left.len() / QUAD_BYTES * QUAD_BYTES);
    let mut bytes = Vec::with_capacity(whole.len() / QUAD_BYTES * 3);
    while !whole.is_empty() {
        let padding = whole.iter().position(|&letter| letter == b'=');
        let end = padding.map_or(whole.len(), |at| (at / QUAD_BYTES + 1) * QUAD_BYTES);
        BASE64
            .decode_vec(whole.split_to(end), &mut bytes)
            .map_err(|error| Status::internal(format!("the request is not base64: {error}")))?;
    }
    Ok(bytes.into())
}

/// Unpacks compressed messages.
#[derive(Debug)]
struct Gzip {
    /// The received bytes of an incomplete message.
    arrived: BytesMut,
    message_bytes_max: usize,
}

impl Gzip {
    /// The next message, if it is complete.
    fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(mut prefix) = self.arrived.get(..PREFIX_BYTES) else { return Ok(None) };
        let (flag, bytes) = (prefix.get_u8(), prefix.get_u32() as usize);
        if bytes > self.message_bytes_max {
            return Err(self.too_long());
        }
        if self.arrived.len() - PREFIX_BYTES < bytes {
            return Ok(None);
        }
        self.arrived.advance(PREFIX_BYTES);
        let message = self.arrived.split_to(bytes);
        match flag {
            0 => Ok(Some(with_prefix(&message))),
            1 => self.unpack(&message).map(|message| Some(with_prefix(&message))),
            _ => Err(Status::internal(format!("a message has the unknown flag {flag}"))),
        }
    }

    fn unpack(&self, message: &[u8]) -> Result<Vec<u8>, Status> {
        let mut plain = Vec::new();
        // One byte above the limit shows that there are more. A message may have several members, one after the other, and nothing after
        // them.
        let mut unpacking = MultiGzDecoder::new(message).take(self.message_bytes_max as u64 + 1);
        unpacking
            .read_to_end(&mut plain)
            .map_err(|error| Status::internal(format!("a message cannot be decompressed: {error}")))?;
        if plain.len() > self.message_bytes_max { Err(self.too_long()) } else { Ok(plain) }
    }

    fn too_long(&self) -> Status {
        Failure::too_long(self.message_bytes_max).into_status()
    }
}

fn with_prefix(message: &[u8]) -> Bytes {
    let mut plain = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    plain.put_u8(0);
    plain.put_u32(message.len() as u32);
    plain.extend_from_slice(message);
    plain.freeze()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use base64::engine::general_purpose;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn packed(message: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(message).unwrap();
        encoder.finish().unwrap()
    }

    fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
        [&[flag][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    /// All of `frames`, decoded.
    fn decode(mut decoders: Decoders, frames: &[&[u8]]) -> Result<Vec<u8>, Status> {
        let mut plain = Vec::new();
        for frame in frames {
            decoders.push(Bytes::copy_from_slice(frame))?;
            while let Some(part) = decoders.next()? {
                plain.extend_from_slice(&part);
            }
        }
        decoders.end().map(|()| plain)
    }

    proptest! {
        /// Any cuts of the bytes into frames lead to the same bytes.
        #[test]
        fn cuts_do_not_matter(
            messages in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..50)), 1..5),
            cut in 1..40_usize
        ) {
            let plain: Vec<u8> = messages.iter().flat_map(|(_, message)| framed(0, message)).collect();
            let sent: Vec<Vec<u8>> = messages
                .iter()
                .map(|(is_packed, message)| match is_packed {
                    true => framed(1, &packed(message)),
                    false => framed(0, message),
                })
                .collect();
            // Each message is padded separately, as clients do.
            let text: String = sent.iter().map(|sent| general_purpose::STANDARD.encode(sent)).collect();
            let frames: Vec<&[u8]> = text.as_bytes().chunks(cut).collect();
            prop_assert_eq!(decode(Decoders::new(true, true).unwrap(), &frames).unwrap(), plain.clone());
            let sent = sent.concat();
            let frames: Vec<&[u8]> = sent.chunks(cut).collect();
            prop_assert_eq!(decode(Decoders::new(false, true).unwrap(), &frames).unwrap(), plain);
            // A part of it is an error.
            prop_assert!(decode(Decoders::new(false, true).unwrap(), &[&sent[..sent.len() - 1]]).is_err());
        }

        #[test]
        fn random_bytes_never_panic_decoder(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(Decoders::new(true, true).unwrap(), &[&bytes]);
            let _ = decode(Decoders::new(false, true).unwrap(), &[&framed(1, &bytes)]);
        }
    }

    /// A frame of many packed messages: each is unpacked when it is read, so that only one is in memory.
    #[test]
    fn one_message_is_unpacked_at_a_time() {
        let frame = framed(1, &packed(&[7; 100_000])).repeat(30);
        assert!(frame.len() < 32 << 10);
        let mut decoders = Decoders::new(false, true).unwrap();
        decoders.push(frame.into()).unwrap();
        for _ in 0..30 {
            assert_eq!(decoders.next().unwrap().unwrap().len(), PREFIX_BYTES + 100_000);
        }
        assert_eq!(decoders.next().unwrap(), None);
        assert!(decoders.end().is_ok());
    }

    /// Only the first member was read, and half of the message was lost without an error.
    #[test]
    fn all_gzip_members_are_decoded_and_trailing_bytes_fail() {
        let members = [packed(b"tide "), packed(b""), packed(b"pool")].concat();
        let decode = |message: &[u8]| decode(Decoders::new(false, true).unwrap(), &[&framed(1, message)]);
        assert_eq!(decode(&members).unwrap(), framed(0, b"tide pool"));
        for behind in [&b"x"[..], &[0; 20], &packed(b"more")[..15]] {
            let error = decode(&[&members[..], behind].concat()).unwrap_err();
            assert_eq!(error.code(), tonic::Code::Internal, "{behind:?}");
        }
        // All members make one message.
        let half = packed(&vec![0; MESSAGE_BYTES_MAX / 2 + 1]);
        let error = decode(&[&half[..], &half].concat()).unwrap_err();
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
    }

    #[test]
    fn decompression_bomb_stops_at_limit() {
        let bomb = framed(1, &packed(&vec![0; MESSAGE_BYTES_MAX + 1]));
        assert!(bomb.len() < 50_000);
        let refused = decode(Decoders::new(false, true).unwrap(), &[&bomb]).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        let whole = framed(1, &packed(&vec![0; MESSAGE_BYTES_MAX]));
        let plain = decode(Decoders::new(false, true).unwrap(), &[&whole]).unwrap();
        assert_eq!(plain.len(), PREFIX_BYTES + MESSAGE_BYTES_MAX);
        let refused = decode(Decoders::new(false, true).unwrap().bounded(1000), &[&whole]).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    }
}
