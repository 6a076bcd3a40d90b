//! Hostile requests: the body of the fuzz target, and the replay of its stored inputs.

use bytes::Bytes;
use shoal_buffer::Buffer;

use crate::{ProtocolError, Request, RequestLimits, RequestParser};

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
        // The words hold at most the received bytes, plus slots for the existing words or for a few reserved ones.
        assert!(parser.held_bytes() <= input.len() * 40 + 64 * 40);
        parser.detach();
    }
    (commands, None)
}

/// Parses `input`: its first byte selects the limits and the size of the pieces. For any input, the parser does not panic and
/// does not allocate memory for a length that is only announced, and the split into pieces makes no difference.
///
/// # Panics
/// If the parser breaks that promise.
pub fn resp_requests(input: &[u8]) {
    let Some((&how, input)) = input.split_first() else { return };
    let (authenticated, limits) = (how & 1 == 0, LIMITS[usize::from(how >> 1 & 1)]);
    let whole = parse(input, input.len(), limits, authenticated);
    assert_eq!(parse(input, usize::from(how >> 2) + 1, limits, authenticated), whole);
}

#[cfg(test)]
mod tests {
    use shoal_testkit::corpus;

    use super::*;

    #[test]
    fn stored_inputs_are_parsed_alike_in_pieces_of_any_size() {
        let stored = corpus::read("resp_requests");
        assert!(!stored.is_empty());
        stored.iter().for_each(|(_, input)| resp_requests(input));
    }
}
