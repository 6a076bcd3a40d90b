//! Compression of answers for clients that accept it: each message of an answer is compressed separately.
//!
//! Short messages stay plain, as do messages that would not become shorter: a flag in each message marks a compressed one.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue};
use shoal_buffer::Buffer;

use crate::wire::{PREFIX_BYTES, put_prefix};

/// Shorter messages, with their prefix, stay plain: compression would save fewer bytes than its headers take.
const PACKED_BYTES_MIN: usize = 1 << 10;

/// The header in which a client lists the encodings that it can decode, and an answer the one of its messages.
const ACCEPT_HEADER: &str = "grpc-accept-encoding";
const ENCODING_HEADER: &str = "grpc-encoding";

/// Announces the encodings of requests to a client that used another one.
pub(crate) fn announce_accepted(headers: &mut HeaderMap, gzip: bool) {
    let accepted = if gzip { "identity,gzip" } else { "identity" };
    headers.insert(ACCEPT_HEADER, HeaderValue::from_static(accepted));
}

/// Returns true if the sender of a request with these headers accepts gzip.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(ACCEPT_HEADER).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|name| name.trim() == "gzip")
}

/// Announces that messages may be compressed.
pub(crate) fn announce(headers: &mut HeaderMap) {
    headers.insert(ENCODING_HEADER, HeaderValue::from_static("gzip"));
}

/// Returns `message`, which has a prefix, compressed if that makes it shorter.
pub(crate) fn compress(message: Box<Buffer>) -> Box<Buffer> {
    if message.len() < PACKED_BYTES_MIN {
        return message;
    }
    match packed(&message).filter(|packed| packed.len() < message.len()) {
        Some(packed) => Box::new(packed),
        None => message,
    }
}

/// The content of `message` after the prefix, compressed and with a new prefix.
fn packed(message: &Buffer) -> Option<Buffer> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(message.len() / 2), Compression::fast());
    let mut prefix_left = PREFIX_BYTES;
    for chunk in message.chunks() {
        let (prefix, rest) = chunk.split_at(prefix_left.min(chunk.len()));
        prefix_left -= prefix.len();
        encoder.write_all(rest).ok()?;
    }
    let mut packed = Buffer::from(encoder.finish().ok()?);
    put_prefix(1, &mut packed);
    Some(packed)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use bytes::{Buf, Bytes};
    use flate2::read::GzDecoder;
    use proptest::prelude::*;

    use super::*;

    /// The message of a packed one, or of one that is not.
    fn unpacked(data: &Buffer) -> Vec<u8> {
        let bytes = data.to_vec();
        let (mut prefix, message) = bytes.split_at(PREFIX_BYTES);
        let flag = prefix.get_u8();
        assert_eq!(prefix.get_u32() as usize, message.len());
        if flag == 0 {
            return message.to_vec();
        }
        let mut plain = Vec::new();
        GzDecoder::new(message).read_to_end(&mut plain).unwrap();
        plain
    }

    proptest! {
        /// Any message, in any chunks, comes out as it was, and not longer.
        #[test]
        fn compressed_message_round_trips(
            message in prop::collection::vec(0..20_u8, 0..5_000), cut in 1..3_000_usize, repeats in 1..4_usize
        ) {
            let message = message.repeat(repeats);
            let whole = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
            let mut data = Box::new(Buffer::new());
            whole.chunks(cut).for_each(|chunk| data.append(Bytes::copy_from_slice(chunk)));
            let packed = compress(data);
            prop_assert!(packed.len() <= whole.len());
            prop_assert_eq!(unpacked(&packed), message);
        }
    }

    #[test]
    fn short_or_incompressible_messages_stay_plain() {
        let zeros = |bytes: u32| {
            Box::new(Buffer::from([&[0][..], &bytes.to_be_bytes(), &vec![0; bytes as usize]].concat()))
        };
        assert_eq!(compress(zeros(100)).len(), 105);
        assert!(compress(zeros(10_000)).len() < 200);
        let mut state = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(2_000)
        .collect();
        let noise = [&[0][..], &2_000_u32.to_be_bytes(), &noise].concat();
        assert_eq!(compress(Box::new(noise.clone().into())).to_vec(), noise);
    }

    #[test]
    fn accept_encoding_header_is_parsed() {
        for (list, expected) in [
            ("gzip", true),
            ("identity, gzip", true),
            ("deflate,gzip,zstd", true),
            ("gzipped", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_HEADER, HeaderValue::from_str(list).unwrap());
            assert_eq!(is_accepted(&headers), expected, "{list}");
        }
        assert!(!is_accepted(&HeaderMap::new()));
    }
}
