//! The body of an answer in the encoding of gRPC-Web: trailers are a last message, and all may be base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderMap;
use shoal_buffer::Buffer;

use crate::wire::{into_contiguous, put_prefix};

/// Marks a message as the trailers.
const TRAILERS_FLAG: u8 = 0x80;

/// Writes the body of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoder {
    pub(crate) text: bool,
}

impl Encoder {
    pub(crate) fn data(self, data: Box<Buffer>) -> Box<Buffer> {
        if !self.text {
            return data;
        }
        Box::new(Bytes::from(STANDARD.encode(into_contiguous(data))).into())
    }

    /// The trailers as a last message.
    pub(crate) fn trailers(self, trailers: &HeaderMap) -> Box<Buffer> {
        let mut message = Box::new(Buffer::new());
        for (name, value) in trailers {
            [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]
                .iter()
                .for_each(|part| message.append_copy(part));
        }
        put_prefix(TRAILERS_FLAG, &mut message);
        self.data(message)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn trailers_are_a_last_message() {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let expected = b"\x80\0\0\0\x10grpc-status: 0\r\n";
        assert_eq!(Encoder { text: false }.trailers(&trailers).to_vec(), expected);
        let text = Encoder { text: true }.trailers(&trailers).to_vec();
        assert_eq!(STANDARD.decode(text).unwrap(), expected);
    }
}
