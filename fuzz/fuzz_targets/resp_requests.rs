//! The parser of Redis requests: whatever comes in, it neither panics nor takes memory for what is only announced, and
//! how the bytes are cut into pieces makes no difference.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use shoal_buffer::Buffer;
use shoal_engine as _; // Its allocator with a limit.
use shoal_resp::{ProtocolError, Request, RequestLimits, RequestParser};

/// The limits of servers, and limits that inputs of some hundred bytes reach.
const LIMITS: [RequestLimits; 2] = [
    RequestLimits {
        word_bytes: 1 << 20,
        words: 1 << 20,
        command_bytes: 4 << 20,
        refused_word_bytes: 1 << 29,
    },
    RequestLimits { word_bytes: 20, words: 50, command_bytes: 40, refused_word_bytes: 100 },
];

fn parse(
    input: &[u8],
    piece: usize,
    limits: RequestLimits,
    authenticated: bool,
) -> (Vec<Request>, Option<ProtocolError>) {
    let mut parser = RequestParser::new(limits, authenticated);
    let (mut received, mut commands) = (Buffer::new(), Vec::new());
    for bytes in input.chunks(piece.max(1)) {
        received.append(Bytes::copy_from_slice(bytes));
        loop {
            let glance = parser.glance(received.first_chunk());
            let glance = glance.map(|glance| {
                let words = [Some(glance.name), Some(glance.argument), glance.second];
                let words = words.into_iter().flatten().map(Bytes::copy_from_slice).collect();
                (words, received.len() - glance.bytes)
            });
            let request = parser.next(&mut received);
            if let Some((words, left)) = glance {
                assert_eq!(request, Ok(Some(Request::Words(words))));
                assert_eq!(received.len(), left);
            }
            match request {
                Ok(Some(request)) => commands.push(request),
                Ok(None) => break,
                Err(error) => return (commands, Some(error)),
            }
        }
        assert!(parser.missing_bytes(&received) <= limits.word_bytes + 2);
        // Of the words at most what was received, and room for those that are there or a few.
        assert!(parser.held_bytes() <= input.len() * 40 + 64 * 40);
        parser.detach();
    }
    (commands, None)
}

fuzz_target!(|input: &[u8]| {
    let Some((&how, input)) = input.split_first() else { return };
    let (authenticated, limits) = (how & 1 == 0, LIMITS[usize::from(how >> 1 & 1)]);
    let whole = parse(input, input.len(), limits, authenticated);
    assert_eq!(parse(input, usize::from(how >> 2) + 1, limits, authenticated), whole);
});
