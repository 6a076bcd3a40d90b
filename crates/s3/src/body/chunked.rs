//! Decodes the framing `aws-chunked`: `SIZE[;chunk-signature=HEX]`, the bytes, and trailers after a chunk of size 0.
//!
//! The decoder works on pieces of any size and copies no bytes of chunks. The bytes are not verified before
//! [`ChunkDecoder::finish`]: a wrong signature is found at the end of its chunk, and a missing one at the end of the body.

use ring::digest;

use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::sign::chunks::ChunkSigner;
use crate::text::unhex;

/// Most bytes of all trailers.
pub const TRAILER_BYTES_MAX: usize = 4 << 10;

/// The largest chunk with a signature: at most this number of bytes passes before one is checked.
pub const SIGNED_CHUNK_BYTES_MAX: u64 = 16 << 20;

/// The least mean size of chunks after the first [`FREE_BYTES`] bytes of a body; the last chunk does not count.
pub const CHUNK_BYTES_MEAN_MIN: u64 = 64;

/// Bytes of a body, with framing, in which chunks may be small.
const FREE_BYTES: u64 = 64 << 10;

/// Longest line of a chunk's head: a size, and a signature with its name.
const HEAD_BYTES_MAX: usize = 128;

/// The trailer with the signature of the others.
const TRAILER_SIGNATURE: &str = "x-amz-trailer-signature";

/// Decodes one body.
#[derive(Debug)]
pub struct ChunkDecoder {
    state: ChunkState,
    signing: Option<Signing>,
    /// The present line, without its end.
    line: Vec<u8>,
    trailers: Vec<(String, String)>,
    trailer_bytes: usize,
    /// Bytes of the body with framing, and bytes of chunks.
    raw_bytes: u64,
    data_bytes: u64,
    chunks: u64,
}

struct Signing {
    signer: ChunkSigner,
    hash: digest::Context,
    /// The signature that the present chunk must have.
    given: [u8; 32],
}

impl std::fmt::Debug for Signing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signing").field("signer", &self.signer).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// In the line with a chunk's size.
    Head,
    /// In a chunk: bytes left.
    Data(u64),
    /// In the line end after a chunk.
    DataEnd,
    /// In a line after the last chunk.
    Trailer,
    /// After the empty line.
    End,
}

impl ChunkDecoder {
    /// A decoder of a body whose chunks `signer` verifies, if they are signed.
    #[must_use]
    pub fn new(signer: Option<ChunkSigner>) -> Self {
        let hash = || digest::Context::new(&digest::SHA256);
        Self {
            state: ChunkState::Head,
            signing: signer.map(|signer| Signing { signer, hash: hash(), given: [0; 32] }),
            line: Vec::new(),
            trailers: Vec::new(),
            trailer_bytes: 0,
            raw_bytes: 0,
            data_bytes: 0,
            chunks: 0,
        }
    }

    /// Decodes the next piece of the body and passes the bytes of chunks to `sink`.
    ///
    /// # Errors
    /// `IncompleteBody` for malformed framing, `InvalidChunkSizeError`, `SignatureDoesNotMatch`, `MalformedTrailerError`.
    pub fn feed<'a>(&mut self, piece: &'a [u8], sink: &mut dyn FnMut(&'a [u8])) -> S3Result<()> {
        let mut rest = piece;
        while !rest.is_empty() {
            let used = match self.state {
                ChunkState::Data(left) => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    self.take_data(&rest[..count], left)?;
                    sink(&rest[..count]);
                    count
                }
                ChunkState::End => return Err(malformed("Bytes follow its end.")),
                _ => self.take_line(rest)?,
            };
            self.raw_bytes += used as u64;
            rest = &rest[used..];
        }
        Ok(())
    }

    /// Bytes of chunks so far.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Finishes the body, and returns its trailers: names in lower case, and values.
    ///
    /// # Errors
    /// `IncompleteBody` if the body is cut.
    pub fn finish(self) -> S3Result<Vec<(String, String)>> {
        if self.state == ChunkState::End { Ok(self.trailers) } else { Err(malformed("It is cut.")) }
    }

    fn take_data(&mut self, data: &[u8], left: u64) -> S3Result<()> {
        self.data_bytes += data.len() as u64;
        if let Some(signing) = &mut self.signing {
            signing.hash.update(data);
        }
        let left = left - data.len() as u64;
        self.state = if left == 0 { ChunkState::DataEnd } else { ChunkState::Data(left) };
        if left == 0 { self.check_signature() } else { Ok(()) }
    }

    /// Takes bytes up to the end of the present line, and the line if it is whole.
    fn take_line(&mut self, bytes: &[u8]) -> S3Result<usize> {
        let most = if self.state == ChunkState::Trailer { TRAILER_BYTES_MAX } else { HEAD_BYTES_MAX };
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let count = end.unwrap_or(bytes.len());
        if self.line.len() + count > most {
            return Err(self.too_long());
        }
        self.line.extend_from_slice(&bytes[..count]);
        if end.is_none() {
            return Ok(count);
        }
        let line = std::mem::take(&mut self.line);
        let line = match line.strip_suffix(b"\r") {
            Some(line) => line,
            // Some clients end a trailer as it is signed, with a line feed alone.
            None if self.state == ChunkState::Trailer => &line,
            None => return Err(malformed("A line has no carriage return.")),
        };
        match self.state {
            ChunkState::Head => self.take_head(line)?,
            ChunkState::DataEnd if line.is_empty() => self.state = ChunkState::Head,
            ChunkState::DataEnd => return Err(malformed("A chunk is longer than its size.")),
            _ => self.take_trailer(line)?,
        }
        Ok(count + 1)
    }

    fn too_long(&self) -> S3Error {
        match self.state {
            ChunkState::Trailer => {
                S3Error::new(ErrorCode::MalformedTrailerError, "The trailers are too long.")
            }
            ChunkState::DataEnd => malformed("A chunk is longer than its size."),
            _ => malformed("The head of a chunk is too long."),
        }
    }

    fn take_head(&mut self, line: &[u8]) -> S3Result<()> {
        let end = line.iter().position(|byte| *byte == b';').unwrap_or(line.len());
        let (size, extension) = (line[..end].trim_ascii(), line[end..].trim_ascii());
        let is_hex = !size.is_empty() && size.iter().all(u8::is_ascii_hexdigit);
        let size =
            str::from_utf8(size).ok().filter(|_| is_hex).and_then(|text| u64::from_str_radix(text, 16).ok());
        let size = size.ok_or_else(|| malformed("The size of a chunk is no number."))?;
        if let Some(signing) = &mut self.signing {
            let given = extension.strip_prefix(b";chunk-signature=").and_then(unhex);
            signing.given = given.ok_or_else(|| malformed("A chunk has no signature."))?;
        }
        self.check_size(size)?;
        if size == 0 {
            self.state = ChunkState::Trailer;
            return self.check_signature();
        }
        self.chunks += 1;
        self.state = ChunkState::Data(size);
        Ok(())
    }

    fn check_size(&self, size: u64) -> S3Result<()> {
        let is_small = self.raw_bytes > FREE_BYTES && self.data_bytes < self.chunks * CHUNK_BYTES_MEAN_MIN;
        let is_large = self.signing.is_some() && size > SIGNED_CHUNK_BYTES_MAX;
        // The last chunk is the only one that may be small, and it is followed by one of size 0.
        if (is_small && size != 0) || is_large {
            Err(ErrorCode::InvalidChunkSizeError.into())
        } else {
            Ok(())
        }
    }

    /// Checks the signature at the end of a chunk.
    fn check_signature(&mut self) -> S3Result<()> {
        let Some(signing) = &mut self.signing else { return Ok(()) };
        let hash = std::mem::replace(&mut signing.hash, digest::Context::new(&digest::SHA256)).finish();
        let mut bytes = [0; 32];
        bytes.copy_from_slice(hash.as_ref());
        if signing.signer.is_next_chunk(&bytes, &signing.given) {
            Ok(())
        } else {
            Err(S3Error::new(ErrorCode::SignatureDoesNotMatch, "The signature of a chunk does not match."))
        }
    }

    fn take_trailer(&mut self, line: &[u8]) -> S3Result<()> {
        if line.is_empty() {
            return self.end_trailers();
        }
        self.trailer_bytes += line.len();
        let text = str::from_utf8(line).ok().filter(|_| self.trailer_bytes <= TRAILER_BYTES_MAX);
        let pair = text.and_then(|text| text.split_once(':'));
        let (name, value) = pair.ok_or(ErrorCode::MalformedTrailerError)?;
        self.trailers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        Ok(())
    }

    fn end_trailers(&mut self) -> S3Result<()> {
        self.state = ChunkState::End;
        let Some(signing) = &mut self.signing else { return Ok(()) };
        let signature = self.trailers.iter().position(|(name, _)| name == TRAILER_SIGNATURE);
        let signature = signature.map(|at| self.trailers.remove(at).1);
        if signature.is_none() && self.trailers.is_empty() {
            return Ok(());
        }
        let text: String = self.trailers.iter().flat_map(|(name, value)| [name, ":", value, "\n"]).collect();
        let given = signature.and_then(|signature| unhex(signature.as_bytes()));
        let is_right = given.is_some_and(|given| signing.signer.is_trailer(text.as_bytes(), &given));
        let why = "The signature of the trailers is missing or does not match.";
        if is_right { Ok(()) } else { Err(S3Error::new(ErrorCode::SignatureDoesNotMatch, why)) }
    }
}

fn malformed(why: &str) -> S3Error {
    S3Error::new(ErrorCode::IncompleteBody, format!("The chunks of the body are malformed. {why}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sign::vectors::chunked_upload;

    type Decoded = Result<(Vec<u8>, Vec<(String, String)>), ErrorCode>;

    /// Decodes a body in pieces of `step` bytes.
    fn decode(signer: Option<ChunkSigner>, body: &[u8], step: usize) -> Decoded {
        let mut decoder = ChunkDecoder::new(signer);
        let mut data = Vec::new();
        for piece in body.chunks(step) {
            decoder.feed(piece, &mut |bytes| data.extend_from_slice(bytes)).map_err(|error| error.code)?;
        }
        assert_eq!(decoder.data_bytes(), data.len() as u64);
        Ok((data, decoder.finish().map_err(|error| error.code)?))
    }

    fn published(has_trailer: bool) -> Vec<u8> {
        let signatures = if has_trailer {
            [
                "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
                "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
                "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
            ]
        } else {
            [
                "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
                "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
                "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
            ]
        };
        let mut body = String::new();
        for (bytes, signature) in [65_536, 1_024, 0].into_iter().zip(signatures) {
            body += &format!("{bytes:x};chunk-signature={signature}\r\n{}", "a".repeat(bytes));
            body += if bytes == 0 { "" } else { "\r\n" };
        }
        if has_trailer {
            body += "x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:";
            body += "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n";
        }
        (body + "\r\n").into_bytes()
    }

    #[test]
    fn published_uploads_are_decoded_in_pieces_of_any_size() {
        for (has_trailer, bytes) in [(false, 66_824), (true, 66_824 + 32 + 90)] {
            let body = published(has_trailer);
            assert_eq!(body.len(), bytes);
            for step in [1, 7, 1_000, 1 << 20] {
                let (data, trailers) = decode(chunked_upload(has_trailer).chunks, &body, step).unwrap();
                assert!(data.len() == 66_560 && data.iter().all(|byte| *byte == b'a'));
                let checksum = ("x-amz-checksum-crc32c".to_owned(), "sOO8/Q==".to_owned());
                assert_eq!(trailers, if has_trailer { vec![checksum] } else { vec![] });
            }
        }
    }

    #[test]
    fn a_changed_byte_anywhere_is_refused() {
        for has_trailer in [false, true] {
            let body = published(has_trailer);
            // Framing, the last bytes of the chunks, and everything after them.
            let places = (0..120).chain(65_500..65_700).chain(66_600..body.len());
            for place in places {
                let mut changed = body.clone();
                changed[place] ^= 0x11;
                let result = decode(chunked_upload(has_trailer).chunks, &changed, 1 << 20);
                assert!(result.is_err(), "{has_trailer} {place}");
            }
        }
    }

    #[test]
    fn a_cut_body_is_refused() {
        for has_trailer in [false, true] {
            let body = published(has_trailer);
            for end in (0..200).chain(65_500..65_700).chain(66_500..body.len()) {
                let result = decode(chunked_upload(has_trailer).chunks, &body[..end], 1 << 20);
                assert!(result.is_err(), "{has_trailer} {end}");
            }
        }
    }

    #[test]
    fn unsigned_chunks_have_trailers() {
        for body in [
            "3\r\nabc\r\n2;any=1\r\nde\r\n0\r\nX-Amz-Checksum-CRC32: AAAAAA==\r\n\r\n",
            "00005\r\nabcde\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\n\r\n",
        ] {
            let (data, trailers) = decode(None, body.as_bytes(), 1).unwrap();
            assert_eq!(data, b"abcde", "{body}");
            assert_eq!(trailers, [("x-amz-checksum-crc32".to_owned(), "AAAAAA==".to_owned())]);
        }
        assert_eq!(decode(None, b"0\r\n\r\n", 1), Ok((vec![], vec![])));
        for (body, code) in [
            ("", ErrorCode::IncompleteBody),
            ("abc", ErrorCode::IncompleteBody),
            ("x\r\n", ErrorCode::IncompleteBody),
            ("3\nabc\r\n", ErrorCode::IncompleteBody),
            ("+3\r\nabc\r\n", ErrorCode::IncompleteBody),
            ("fffffffffffffffff\r\n", ErrorCode::IncompleteBody),
            ("3\r\nabcd\r\n0\r\n\r\n", ErrorCode::IncompleteBody),
            ("4\r\nabc\r\n0\r\n\r\n", ErrorCode::IncompleteBody),
            ("0\r\n\r\nx", ErrorCode::IncompleteBody),
            ("5\r\nabcde\r\n0\r\n", ErrorCode::IncompleteBody),
            ("0\r\nx-amz\r\n\r\n", ErrorCode::MalformedTrailerError),
        ] {
            assert_eq!(decode(None, body.as_bytes(), 3), Err(code), "{body}");
        }
        let head = format!("{}3\r\nabc", "0".repeat(HEAD_BYTES_MAX));
        assert_eq!(decode(None, head.as_bytes(), 9), Err(ErrorCode::IncompleteBody));
    }

    #[test]
    fn small_chunks_large_signed_chunks_and_long_trailers_are_refused() {
        let small = "1\r\na\r\n".repeat(20_000) + "0\r\n\r\n";
        assert_eq!(decode(None, small.as_bytes(), 4_096), Err(ErrorCode::InvalidChunkSizeError));
        let few = "1\r\na\r\n".repeat(10_000) + "0\r\n\r\n";
        assert_eq!(decode(None, few.as_bytes(), 4_096).unwrap().0.len(), 10_000);
        let large = format!("{:x};chunk-signature={}\r\n", SIGNED_CHUNK_BYTES_MAX + 1, "0".repeat(64));
        let result = decode(chunked_upload(false).chunks, large.as_bytes(), 64);
        assert_eq!(result, Err(ErrorCode::InvalidChunkSizeError));
        // One chunk of the whole body, as some SDKs send it, needs no signature in between.
        let whole = format!("{:x}\r\nabc", 5_u64 << 30);
        assert_eq!(decode(None, whole.as_bytes(), 64), Err(ErrorCode::IncompleteBody));
        for trailers in ["a:1\r\n".repeat(2_000), format!("a:{}\r\n", "1".repeat(5_000))] {
            let body = format!("0\r\n{trailers}\r\n");
            assert_eq!(decode(None, body.as_bytes(), 512), Err(ErrorCode::MalformedTrailerError));
        }
    }

    proptest! {
        #[test]
        fn chunks_of_any_sizes_round_trip(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..20), step in 1_usize..200) {
            let mut body = Vec::new();
            for chunk in &chunks {
                body.extend(format!("{:X}\r\n", chunk.len()).bytes().chain(chunk.iter().copied()).chain(*b"\r\n"));
            }
            body.extend(b"0\r\n\r\n");
            prop_assert_eq!(decode(None, &body, step), Ok((chunks.concat(), vec![])));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused_in_bounded_memory(body: Vec<u8>, step in 1_usize..64) {
            let mut decoder = ChunkDecoder::new(None);
            for piece in body.chunks(step) {
                if decoder.feed(piece, &mut |_| {}).is_err() {
                    break;
                }
                prop_assert!(decoder.line.len() <= TRAILER_BYTES_MAX);
            }
        }
    }
}
