//! Requests: arrays of bulk strings, or lines that people type.
//!
//! The parser takes from the front of what was received what it understands, keeps what it has of an unfinished command
//! and says how many bytes it misses, so that a long value is received into one piece of memory and never scanned
//! again. Every announced length is checked before memory is taken for it. A word of a command refers to the received
//! bytes where they are not built into the buffer: a large value is not copied.
//!
//! After an error the connection cannot be understood any more: send the error, then close.

use bytes::{Buf, Bytes};
use shoal_buffer::Buffer;

use crate::inline;
use crate::number::parse_integer;

/// A line (an inline command, or a count) may have so many bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Words of a command that does not come from an authenticated client.
const UNAUTHENTICATED_WORDS_MAX: i64 = 10;

/// Bytes of a word that does not come from an authenticated client.
const UNAUTHENTICATED_WORD_BYTES_MAX: i64 = 16 << 10;

/// A line with a number is hardly ever longer than this.
const NUMBER_LINE_BYTES: usize = 24;

/// Room for so many words is taken on the announcement alone; for more as they come.
const WORDS_RESERVED_MAX: usize = 64;

/// What a request may be at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Bytes of a word (Redis: `proto-max-bulk-len`).
    pub word_bytes: usize,
    /// Words of a command.
    pub words: usize,
    /// Bytes of all words of a command together (Redis: `client-query-buffer-limit`).
    pub command_bytes: usize,
}

impl Default for RequestLimits {
    /// 512 MiB, 1 Mi words and 1 GiB, as in Redis.
    fn default() -> Self {
        Self { word_bytes: 512 << 20, words: 1 << 20, command_bytes: 1 << 30 }
    }
}

/// Why a connection cannot go on; the text is Redis's, without the `ERR` in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A line does not end.
    #[error("Protocol error: too big inline request")]
    InlineTooLong,
    /// The count of words does not end.
    #[error("Protocol error: too big mbulk count string")]
    CountTooLong,
    /// The length of a word does not end.
    #[error("Protocol error: too big bulk count string")]
    LengthTooLong,
    /// A quote is not closed.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The count of words is no number, or above the limit.
    #[error("Protocol error: invalid multibulk length")]
    InvalidCount,
    /// The length of a word is no number, below zero, or above the limit.
    #[error("Protocol error: invalid bulk length")]
    InvalidLength,
    /// More words than somebody who has not said who they are may send.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedCount,
    /// A longer word than somebody who has not said who they are may send.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedLength,
    /// Something else stands where a word should.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0))]
    ExpectedWord(u8),
}

/// Parses the requests of one connection.
#[derive(Debug)]
pub struct RequestParser {
    limits: RequestLimits,
    authenticated: bool,
    /// Words of the current command that are still to come; zero between commands.
    missing: usize,
    /// Length of the word that comes next, where it was read already.
    length: Option<usize>,
    words: Vec<Bytes>,
    /// Bytes of `words`.
    bytes: usize,
}

impl RequestParser {
    /// For a new connection.
    #[must_use]
    pub const fn new(limits: RequestLimits, authenticated: bool) -> Self {
        Self { limits, authenticated, missing: 0, length: None, words: Vec::new(), bytes: 0 }
    }

    /// Whether the client may use all of the limits from now on.
    pub const fn set_authenticated(&mut self, authenticated: bool) {
        self.authenticated = authenticated;
    }

    /// How many bytes must be received at least before the current command can end; zero where that is not known.
    #[must_use]
    pub fn missing_bytes(&self, received: &Buffer) -> usize {
        self.length.map_or(0, |length| (length + 2).saturating_sub(received.len()))
    }

    /// Takes the next command from the front of `received`: its words, at least one. None where it is not there as a
    /// whole; what was there of it is kept.
    ///
    /// # Errors
    /// [`ProtocolError`] where the bytes are no command; the parser must not be used any more then.
    pub fn next(&mut self, received: &mut Buffer) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        loop {
            if self.missing > 0 {
                return self.take_words(received);
            }
            match received.first_chunk().first() {
                None => return Ok(None),
                Some(b'*') => {
                    if !self.start(received)? {
                        return Ok(None);
                    }
                }
                Some(_) => match inline_words(received)? {
                    Some(words) if words.is_empty() => {}
                    words => return Ok(words),
                },
            }
        }
    }

    /// Reads the words that are still missing; none where they are not there yet.
    fn take_words(&mut self, received: &mut Buffer) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        while self.missing > 0 {
            if !self.take_word(received)? {
                return Ok(None);
            }
        }
        self.bytes = 0;
        Ok(Some(std::mem::take(&mut self.words)))
    }

    /// Reads the count of words; false where it is not there yet. A command without words is none.
    fn start(&mut self, received: &mut Buffer) -> Result<bool, ProtocolError> {
        let Some(count) = take_number(received, ProtocolError::CountTooLong)? else { return Ok(false) };
        let count = count.ok_or(ProtocolError::InvalidCount)?;
        if count > 0 && count.unsigned_abs() > self.limits.words as u64 {
            return Err(ProtocolError::InvalidCount);
        }
        if !self.authenticated && count > UNAUTHENTICATED_WORDS_MAX {
            return Err(ProtocolError::UnauthenticatedCount);
        }
        self.missing = usize::try_from(count).unwrap_or(0);
        self.words = Vec::with_capacity(self.missing.min(WORDS_RESERVED_MAX));
        Ok(true)
    }

    /// Reads the next word; false where it is not there yet.
    fn take_word(&mut self, received: &mut Buffer) -> Result<bool, ProtocolError> {
        let length = match self.length {
            Some(length) => length,
            None => match self.take_length(received)? {
                Some(length) => *self.length.insert(length),
                None => return Ok(false),
            },
        };
        if received.len() < length + 2 {
            return Ok(false);
        }
        self.words.push(received.copy_to_bytes(length));
        received.truncate_front(2);
        self.bytes += length;
        self.missing -= 1;
        self.length = None;
        Ok(true)
    }

    fn take_length(&self, received: &mut Buffer) -> Result<Option<usize>, ProtocolError> {
        match received.first_chunk().first() {
            None => return Ok(None),
            Some(b'$') => {}
            // Redis waits for the end of the line before it complains.
            Some(&other) => {
                let line = take_line(received, ProtocolError::LengthTooLong)?;
                return if line.is_some() { Err(ProtocolError::ExpectedWord(other)) } else { Ok(None) };
            }
        }
        let Some(length) = take_number(received, ProtocolError::LengthTooLong)? else { return Ok(None) };
        let length = length.ok_or(ProtocolError::InvalidLength)?;
        let allowed = self.limits.word_bytes.min(self.limits.command_bytes - self.bytes);
        match usize::try_from(length) {
            Ok(bytes) if bytes <= allowed => {
                if !self.authenticated && length > UNAUTHENTICATED_WORD_BYTES_MAX {
                    return Err(ProtocolError::UnauthenticatedLength);
                }
                Ok(Some(bytes))
            }
            _ => Err(ProtocolError::InvalidLength),
        }
    }
}

/// Takes an inline command; none where its line does not end yet.
fn inline_words(received: &mut Buffer) -> Result<Option<Vec<Bytes>>, ProtocolError> {
    let Some(end) = find(received, b'\n') else {
        return if received.len() > LINE_BYTES_MAX { Err(ProtocolError::InlineTooLong) } else { Ok(None) };
    };
    if end > LINE_BYTES_MAX {
        return Err(ProtocolError::InlineTooLong);
    }
    let line = received.copy_to_bytes(end);
    received.truncate_front(1);
    let line = line.strip_suffix(b"\r").unwrap_or(&line);
    inline::split(line).map(Some).ok_or(ProtocolError::UnbalancedQuotes)
}

/// Takes a line with a number behind its first byte: none where the line does not end yet, and none inside where it is
/// no number.
fn take_number(received: &mut Buffer, too_long: ProtocolError) -> Result<Option<Option<i64>>, ProtocolError> {
    // Nearly always all of it is at the start of one chunk: then nothing is copied or counted.
    let chunk = received.first_chunk();
    let near = chunk.get(..NUMBER_LINE_BYTES.min(chunk.len())).unwrap_or(chunk);
    if let Some(end) = near.iter().position(|&byte| byte == b'\r')
        && end > 0
        && end + 2 <= chunk.len()
    {
        let number = near.get(1..end).and_then(parse_integer);
        received.truncate_front(end + 2);
        return Ok(Some(number));
    }
    Ok(take_line(received, too_long)?.map(|line| parse_integer(&line[1..])))
}

/// Takes a line that ends with a carriage return and one more byte, which Redis does not look at; gives at least one
/// byte. None where it does not end yet.
fn take_line(received: &mut Buffer, too_long: ProtocolError) -> Result<Option<Bytes>, ProtocolError> {
    let Some(end) = find(received, b'\r') else {
        return if received.len() > LINE_BYTES_MAX { Err(too_long) } else { Ok(None) };
    };
    if end > LINE_BYTES_MAX {
        return Err(too_long);
    }
    if received.len() < end + 2 {
        return Ok(None);
    }
    // The line's first byte was looked at, and is no carriage return but where it is the wrong one.
    let line = received.copy_to_bytes(end.max(1));
    received.truncate_front(end + 2 - line.len());
    Ok(Some(line))
}

/// Where the first such byte is, within the longest line and one byte more.
fn find(received: &Buffer, byte: u8) -> Option<usize> {
    let mut before = 0;
    for chunk in received.chunks() {
        let chunk = &chunk[..chunk.len().min(LINE_BYTES_MAX + 2 - before)];
        if let Some(at) = chunk.iter().position(|&other| other == byte) {
            return Some(before + at);
        }
        before += chunk.len();
        if before > LINE_BYTES_MAX + 1 {
            break;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(input: &[u8]) -> (Vec<Vec<Bytes>>, Option<ProtocolError>) {
        parse_pieces(&[input], true)
    }

    fn parse_pieces(pieces: &[&[u8]], authenticated: bool) -> (Vec<Vec<Bytes>>, Option<ProtocolError>) {
        let mut parser = RequestParser::new(RequestLimits::default(), authenticated);
        let (mut received, mut commands) = (Buffer::new(), Vec::new());
        for piece in pieces {
            received.append(Bytes::copy_from_slice(piece));
            loop {
                match parser.next(&mut received) {
                    Ok(Some(words)) => commands.push(words),
                    Ok(None) => break,
                    Err(error) => return (commands, Some(error)),
                }
            }
        }
        (commands, None)
    }

    fn text(error: Option<ProtocolError>) -> String {
        error.map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn a_pipeline_of_both_kinds() {
        let (commands, error) = parse(b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n\r\nPING \"x y\"\r\n*0\r\n*-1\r\n*1\r\n$0\r\n\r\n*1\r\n$4\r\nQU");
        assert_eq!(error, None);
        assert_eq!(commands, [vec!["GET", "a\r\n"], vec!["PING", "x y"], vec![""]]);
    }

    #[test]
    fn errors_have_the_texts_of_redis() {
        let cases: [(&[u8], &str); 10] = [
            (b"*3000000000\r\n", "Protocol error: invalid multibulk length"),
            (b"*x\r\n", "Protocol error: invalid multibulk length"),
            (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfooz\r\n", "Protocol error: expected '$', got 'f'"),
            (b"*1\r\n$-10\r\n", "Protocol error: invalid bulk length"),
            (b"*1\r\n$2000000000\r\n", "Protocol error: invalid bulk length"),
            (b"*1\r\n$blabla\r\n", "Protocol error: invalid bulk length"),
            (b"*1\r\n$9223372036854775807\r\n", "Protocol error: invalid bulk length"),
            (b"*1\r\n\r\n", "Protocol error: expected '$', got '\r'"),
            (b"SET \"\"\"test-key\"\"\" v\r\n", "Protocol error: unbalanced quotes in request"),
            (b"*\r\n", "Protocol error: invalid multibulk length"),
        ];
        for (input, expected) in cases {
            assert_eq!(text(parse(input).1), expected, "{:?}", String::from_utf8_lossy(input));
        }
        let long = vec![b'1'; LINE_BYTES_MAX + 1];
        assert_eq!(text(parse(&long).1), "Protocol error: too big inline request");
        assert_eq!(text(parse(&[b"*", &long[..]].concat()).1), "Protocol error: too big mbulk count string");
        assert_eq!(
            text(parse(&[b"*1\r\n$", &long[..]].concat()).1),
            "Protocol error: too big bulk count string"
        );
    }

    #[test]
    fn strangers_may_send_little() {
        let stranger = |input: &[u8]| text(parse_pieces(&[input], false).1);
        assert_eq!(stranger(b"*11\r\n"), "Protocol error: unauthenticated multibulk length");
        assert_eq!(stranger(b"*1\r\n$16385\r\n"), "Protocol error: unauthenticated bulk length");
        assert_eq!(stranger(b"*10\r\n$16384\r\n"), "");
    }

    #[test]
    fn announcements_take_no_memory_and_limits_hold() {
        let limits = RequestLimits { word_bytes: 100, words: 1 << 20, command_bytes: 150 };
        let parse = |input: &'static [u8]| {
            let mut parser = RequestParser::new(limits, true);
            let mut received = Buffer::from(input);
            let result = parser.next(&mut received);
            (result.map(|words| words.is_some()), parser.words.capacity(), parser.missing_bytes(&received))
        };
        assert_eq!(parse(b"*1048576\r\n"), (Ok(false), WORDS_RESERVED_MAX, 0));
        assert_eq!(parse(b"*2\r\n$100\r\nabc"), (Ok(false), 2, 99));
        assert_eq!(parse(b"*2\r\n$101\r\n").0, Err(ProtocolError::InvalidLength));
        let first = b"*2\r\n$90\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n$61\r\n";
        assert_eq!(parse(first).0, Err(ProtocolError::InvalidLength), "151 bytes");
    }

    #[test]
    fn a_large_word_is_not_copied() {
        let value = Bytes::from(vec![7; 100_000]);
        let mut received = Buffer::from(&b"*1\r\n$100000\r\n"[..]);
        received.append_external(value.clone());
        received.append_copy(b"\r\n");
        let words = RequestParser::new(RequestLimits::default(), true).next(&mut received).unwrap().unwrap();
        assert_eq!(words[0].as_ptr(), value.as_ptr());
        assert!(received.is_empty());
    }

    fn command() -> impl Strategy<Value = Vec<Vec<u8>>> {
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 1..6)
    }

    fn encode(commands: &[Vec<Vec<u8>>]) -> Vec<u8> {
        let mut out = Vec::new();
        for words in commands {
            out.extend(format!("*{}\r\n", words.len()).bytes());
            for word in words {
                out.extend(format!("${}\r\n", word.len()).bytes());
                out.extend_from_slice(word);
                out.extend_from_slice(b"\r\n");
            }
        }
        out
    }

    /// `input` in pieces that end at `cuts`.
    fn cut<'a>(input: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (input.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(input.len());
        let mut start = 0;
        cuts.into_iter().map(|end| &input[std::mem::replace(&mut start, end)..end]).collect()
    }

    /// Bytes that look like the protocol more often than random ones do.
    fn noise() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            3 => proptest::sample::select(vec!["*", "$", "\r\n", "\r", "\n", "1", "2", "-1", "0", "\"", "'", "\\x4", " ", "GET", "$3\r\nabc\r\n", "*1\r\n", "*2\r\n"])
                .prop_map(|text| text.as_bytes().to_vec()),
            1 => proptest::collection::vec(any::<u8>(), 0..8),
        ];
        proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn reads_what_clients_write(commands in proptest::collection::vec(command(), 0..6), cuts in proptest::collection::vec(any::<usize>(), 0..8)) {
            let input = encode(&commands);
            let (parsed, error) = parse_pieces(&cut(&input, &cuts), true);
            prop_assert_eq!(error, None);
            prop_assert_eq!(parsed, commands);
        }

        #[test]
        fn anything_gives_the_same_however_it_is_cut(input in noise(), cuts in proptest::collection::vec(any::<usize>(), 0..12), authenticated in any::<bool>()) {
            let whole = parse_pieces(&[&input], authenticated);
            prop_assert_eq!(parse_pieces(&cut(&input, &cuts), authenticated), whole);
        }
    }
}
