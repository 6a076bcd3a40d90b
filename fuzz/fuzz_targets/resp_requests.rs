//! The parser of Redis requests: whatever comes in, it neither panics nor takes memory for what is only announced, and
//! how the bytes are cut into pieces makes no difference.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use shoal_buffer::Buffer;
use shoal_resp::{ProtocolError, RequestLimits, RequestParser};

const LIMITS: RequestLimits = RequestLimits { word_bytes: 1 << 20, words: 1 << 20, command_bytes: 4 << 20 };

fn parse(input: &[u8], piece: usize, authenticated: bool) -> (Vec<Vec<Bytes>>, Option<ProtocolError>) {
    let mut parser = RequestParser::new(LIMITS, authenticated);
    let (mut received, mut commands) = (Buffer::new(), Vec::new());
    for bytes in input.chunks(piece.max(1)) {
        received.append(Bytes::copy_from_slice(bytes));
        loop {
            match parser.next(&mut received) {
                Ok(Some(words)) => commands.push(words),
                Ok(None) => break,
                Err(error) => return (commands, Some(error)),
            }
        }
        assert!(parser.missing_bytes(&received) <= LIMITS.word_bytes + 2);
    }
    (commands, None)
}

fuzz_target!(|input: &[u8]| {
    let Some((&how, input)) = input.split_first() else { return };
    let authenticated = how & 1 == 0;
    let whole = parse(input, input.len(), authenticated);
    assert_eq!(parse(input, usize::from(how >> 1) + 1, authenticated), whole);
});
