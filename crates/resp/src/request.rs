//! Requests: arrays of bulk strings, or lines that people type.
//!
//! The parser takes complete words from the front of the received bytes, keeps the words of an unfinished command and reports
//! the number of missing bytes, so that a long value is received into one piece of memory and never scanned again. Every
//! announced length is checked before memory is allocated for it. A word of a command refers to the received bytes unless they
//! are stored inside the buffer itself: a large value is not copied.
//!
//! A command with a word above the limit is refused when the length is announced; the command's bytes are thrown away, and
//! parsing resumes at the next command. After an error the stream cannot be parsed any more: send the error, then close.

use bytes::{Buf, Bytes};
use shoal_buffer::Buffer;

use crate::inline;
use crate::number::parse_integer;

/// Maximum length of a line (an inline command, or a count).
const LINE_BYTES_MAX: usize = 64 << 10;

/// Words of a command that does not come from an authenticated client.
const UNAUTHENTICATED_WORDS_MAX: i64 = 10;

/// Bytes of a word that does not come from an authenticated client.
const UNAUTHENTICATED_WORD_BYTES_MAX: i64 = 16 << 10;

/// A line with a number is hardly ever longer than this.
const NUMBER_LINE_BYTES: usize = 24;

/// Number of words for which room is reserved on the announcement alone; for more, as they arrive.
const WORDS_RESERVED_MAX: usize = 64;

/// The limits of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Bytes of a word (Redis: `proto-max-bulk-len`).
    pub word_bytes: usize,
    /// Words of a command.
    pub words: usize,
    /// Bytes of all words of a command together (Redis: `client-query-buffer-limit`).
    pub command_bytes: usize,
    /// Bytes of a word that is refused and thrown away; a longer one closes the connection.
    pub refused_word_bytes: usize,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The words of a command, at least one.
    Words(Vec<Bytes>),
    /// The current command is longer than the limit. It is refused: the rest of it is thrown away as it arrives.
    TooLong,
}

/// A short command, borrowed from the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance<'a> {
    /// The command's name.
    pub name: &'a [u8],
    /// Its first argument.
    pub argument: &'a [u8],
    /// Its second argument, if any.
    pub second: Option<&'a [u8]>,
    /// Bytes of the whole command.
    pub bytes: usize,
}

impl Default for RequestLimits {
    /// 512 MiB, 1 Mi words and 1 GiB, as in Redis.
    fn default() -> Self {
        Self { word_bytes: 512 << 20, words: 1 << 20, command_bytes: 1 << 30, refused_word_bytes: 512 << 20 }
    }
}

/// The reason why a connection cannot continue; the text is Redis's, without the leading `ERR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A line is too long.
    #[error("Protocol error: too big inline request")]
    InlineTooLong,
    /// The line with the count of words is too long.
    #[error("Protocol error: too big mbulk count string")]
    CountTooLong,
    /// The line with the length of a word is too long.
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
    /// More words than an unauthenticated client may send.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedCount,
    /// A longer word than an unauthenticated client may send.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedLength,
    /// Another byte in place of the `$` of a word.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0))]
    ExpectedWord(u8),
}

/// Parses the requests of one connection.
#[derive(Debug)]
pub struct RequestParser {
    limits: RequestLimits,
    authenticated: bool,
    /// Words of the current command that have not arrived yet; zero between commands.
    missing: usize,
    /// Length of the next word if it was read already; for a refused word, the number of bytes left.
    length: Option<usize>,
    words: Vec<Bytes>,
    /// Bytes of `words`.
    bytes: usize,
    /// The first `detached` words are already in separate memory.
    detached: usize,
    /// True if the current command is thrown away.
    refused: bool,
}

impl RequestParser {
    /// A parser for a new connection.
    #[must_use]
    pub const fn new(limits: RequestLimits, authenticated: bool) -> Self {
        Self {
            limits,
            authenticated,
            missing: 0,
            length: None,
            words: Vec::new(),
            bytes: 0,
            detached: 0,
            refused: false,
        }
    }

    /// Sets whether the client may use all of the limits from now on.
    pub const fn set_authenticated(&mut self, authenticated: bool) {
        self.authenticated = authenticated;
    }

    /// Returns true if a command has started and some of its words are missing.
    #[must_use]
    pub const fn is_within(&self) -> bool {
        self.missing > 0
    }

    /// The minimum number of bytes to receive before the current command can be complete; zero if unknown.
    #[must_use]
    pub fn missing_bytes(&self, received: &Buffer) -> usize {
        match self.length {
            Some(length) if !self.refused => (length + 2).saturating_sub(received.len()),
            _ => 0,
        }
    }

    /// The words received so far of the current command and the length of its last one, if only the last one is incomplete. The
    /// caller may move its bytes from the received ones into other memory, all of them; [`Self::end_elsewhere`] continues after
    /// it.
    #[must_use]
    pub fn last_word(&self) -> Option<(&[Bytes], usize)> {
        match self.length {
            Some(length) if self.missing == 1 && !self.refused => Some((&self.words, length)),
            _ => None,
        }
    }

    /// Completes the command whose last word was taken elsewhere; `received` starts right after that word. Returns the other
    /// words. `None` if the end of the word has not arrived, or if no last word is awaited.
    pub fn end_elsewhere(&mut self, received: &mut Buffer) -> Option<Vec<Bytes>> {
        self.last_word()?;
        if received.len() < 2 {
            return None;
        }
        received.truncate_front(2);
        (self.missing, self.length) = (0, None);
        (self.bytes, self.detached) = (0, 0);
        Some(std::mem::take(&mut self.words))
    }

    /// Memory taken by the words of an unfinished command.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes + self.words.capacity() * size_of::<Bytes>()
    }

    /// Copies the words of an unfinished command into separate memory: they may be a small part of a chunk that held many
    /// commands.
    pub fn detach(&mut self) {
        for word in self.words.iter_mut().skip(self.detached) {
            *word = Bytes::copy_from_slice(word);
        }
        self.detached = self.words.len();
    }

    /// The command at the start of `received`, if it is complete, has one or two arguments and is written as nearly all clients
    /// write it. Takes and decides nothing: without a glance, or if the caller cannot use it, [`next`](Self::next) has the
    /// answer. The caller takes [`Glance::bytes`] itself.
    #[inline]
    #[must_use]
    pub fn glance<'a>(&self, received: &'a [u8]) -> Option<Glance<'a>> {
        if self.missing > 0 {
            return None;
        }
        let (has_second, rest) = match received.split_at_checked(4)? {
            (b"*2\r\n", rest) => (false, rest),
            (b"*3\r\n", rest) => (true, rest),
            _ => return None,
        };
        let (name, rest) = glance_word(rest)?;
        let (argument, rest) = glance_word(rest)?;
        let (second, rest) = match has_second {
            true => glance_word(rest).map(|(second, rest)| (Some(second), rest))?,
            false => (None, rest),
        };
        let second_bytes = second.map_or(0, <[u8]>::len);
        if name.len().max(argument.len()).max(second_bytes) > self.limits.word_bytes
            || name.len() + argument.len() + second_bytes > self.limits.command_bytes
        {
            return None;
        }
        Some(Glance { name, argument, second, bytes: received.len() - rest.len() })
    }

    /// Takes the next command from the front of `received`. `None` if it is incomplete; the part received so far is kept.
    ///
    /// # Errors
    /// [`ProtocolError`] if the bytes are not a command; the parser must not be used after that.
    pub fn next(&mut self, received: &mut Buffer) -> Result<Option<Request>, ProtocolError> {
        loop {
            if self.missing > 0 {
                let request = self.take_words(received)?;
                if request.is_some() || self.missing > 0 {
                    return Ok(request);
                }
                // A refused command is complete.
                continue;
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
                    words => return Ok(words.map(Request::Words)),
                },
            }
        }
    }

    /// Reads the missing words; `None` if they have not arrived, or were thrown away.
    fn take_words(&mut self, received: &mut Buffer) -> Result<Option<Request>, ProtocolError> {
        while self.missing > 0 {
            let was_refused = self.refused;
            if !self.take_word(received)? {
                return Ok(if self.refused && !was_refused { Some(Request::TooLong) } else { None });
            }
        }
        self.bytes = 0;
        self.detached = 0;
        let words = std::mem::take(&mut self.words);
        Ok(if std::mem::take(&mut self.refused) { None } else { Some(Request::Words(words)) })
    }

    /// Reads the count of words; false if it has not arrived. A command without words is skipped.
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

    /// Reads the next word, or throws it away; false if it has not arrived, or if the command is refused from now on.
    fn take_word(&mut self, received: &mut Buffer) -> Result<bool, ProtocolError> {
        let length = match self.length {
            Some(length) => length,
            None => {
                let Some(length) = self.take_length(received)? else { return Ok(false) };
                if self.refused {
                    return Ok(self.throw_away(length + 2, received));
                }
                if length > self.limits.word_bytes.min(self.limits.command_bytes - self.bytes) {
                    self.refuse(length);
                    return Ok(false);
                }
                *self.length.insert(length)
            }
        };
        if self.refused {
            return Ok(self.throw_away(length, received));
        }
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

    /// Drops the words of the current command and keeps nothing more of it; its next word has `length` bytes.
    fn refuse(&mut self, length: usize) {
        self.refused = true;
        self.words = Vec::new();
        (self.bytes, self.detached) = (0, 0);
        self.length = Some(length + 2);
    }

    /// Throws away the available part of `left` bytes; returns true if that was all of them.
    fn throw_away(&mut self, left: usize, received: &mut Buffer) -> bool {
        let now = left.min(received.len());
        received.truncate_front(now);
        if now < left {
            self.length = Some(left - now);
            return false;
        }
        self.length = None;
        self.missing -= 1;
        true
    }

    fn take_length(&self, received: &mut Buffer) -> Result<Option<usize>, ProtocolError> {
        match received.first_chunk().first() {
            None => return Ok(None),
            Some(b'$') => {}
            // Redis waits for the end of the line before it reports the error.
            Some(&other) => {
                let line = take_line(received, ProtocolError::LengthTooLong)?;
                return if line.is_some() { Err(ProtocolError::ExpectedWord(other)) } else { Ok(None) };
            }
        }
        let Some(length) = take_number(received, ProtocolError::LengthTooLong)? else { return Ok(None) };
        let length = length.ok_or(ProtocolError::InvalidLength)?;
        let most = self.limits.word_bytes.max(self.limits.refused_word_bytes);
        match usize::try_from(length) {
            Ok(bytes) if bytes <= most => {
                if !self.authenticated && length > UNAUTHENTICATED_WORD_BYTES_MAX {
                    return Err(ProtocolError::UnauthenticatedLength);
                }
                Ok(Some(bytes))
            }
            _ => Err(ProtocolError::InvalidLength),
        }
    }
}

/// The word at the start of `received`, if its length has at most four digits, and the rest after it.
#[inline]
fn glance_word(received: &[u8]) -> Option<(&[u8], &[u8])> {
    const DIGITS_MAX: usize = 4;
    let rest = received.strip_prefix(b"$")?;
    let mut length = 0_usize;
    for (at, &byte) in rest.iter().enumerate().take(DIGITS_MAX + 1) {
        match byte {
            b'0'..=b'9' => length = length * 10 + usize::from(byte - b'0'),
            // `next` handles unusual ways to write a number.
            b'\r' if at > 0 && at <= DIGITS_MAX && (at == 1 || rest[0] != b'0') => {
                let rest = rest.get(at + 1..)?.strip_prefix(b"\n")?;
                let (word, rest) = rest.split_at_checked(length)?;
                return Some((word, rest.strip_prefix(b"\r\n")?));
            }
            _ => return None,
        }
    }
    None
}

/// Takes an inline command; `None` if its line is incomplete.
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

/// Takes a line with a number after its first byte: `None` if the line is incomplete, an inner `None` if it is not a number.
fn take_number(received: &mut Buffer, too_long: ProtocolError) -> Result<Option<Option<i64>>, ProtocolError> {
    // Nearly always the whole line is at the start of one chunk: then nothing is copied or counted.
    let chunk = received.first_chunk();
    let start = chunk.get(..NUMBER_LINE_BYTES.min(chunk.len())).unwrap_or(chunk);
    if let Some(end) = start.iter().position(|&byte| byte == b'\r')
        && end > 0
        && end + 2 <= chunk.len()
    {
        let number = start.get(1..end).and_then(parse_integer);
        received.truncate_front(end + 2);
        return Ok(Some(number));
    }
    Ok(take_line(received, too_long)?.map(|line| parse_integer(&line[1..])))
}

/// Takes a line terminated by a carriage return and one more byte, which Redis does not check; returns at least one byte.
/// `None` if the line is incomplete.
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
    // The line's first byte was checked already: it is a carriage return only if it is the wrong byte.
    let line = received.copy_to_bytes(end.max(1));
    received.truncate_front(end + 2 - line.len());
    Ok(Some(line))
}

/// Position of the first `byte`, within the longest line and one byte more.
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
    use shoal_testkit::resp::encode;

    use super::*;

    fn parse(input: &[u8]) -> (Vec<Vec<Bytes>>, Option<ProtocolError>) {
        parse_pieces(&[input], RequestLimits::default(), true)
    }

    /// The commands; an empty one represents a command that was too long.
    fn parse_pieces(
        pieces: &[&[u8]],
        limits: RequestLimits,
        authenticated: bool,
    ) -> (Vec<Vec<Bytes>>, Option<ProtocolError>) {
        let mut parser = RequestParser::new(limits, authenticated);
        let (mut received, mut commands) = (Buffer::new(), Vec::new());
        for piece in pieces {
            received.append(Bytes::copy_from_slice(piece));
            loop {
                let glance = parser.glance(received.first_chunk());
                let glance = glance.map(|glance| {
                    let words = [Some(glance.name), Some(glance.argument), glance.second];
                    (words.into_iter().flatten().map(<[u8]>::to_vec).collect::<Vec<_>>(), glance.bytes)
                });
                let before = received.len();
                match parser.next(&mut received) {
                    Ok(Some(Request::Words(words))) => {
                        if let Some((glanced, bytes)) = glance {
                            assert_eq!((words == glanced, before - received.len()), (true, bytes));
                        }
                        commands.push(words);
                    }
                    Ok(Some(Request::TooLong)) => commands.push(Vec::new()),
                    Ok(None) => break,
                    Err(error) => return (commands, Some(error)),
                }
                assert!(parser.missing_bytes(&received) <= limits.word_bytes + 2);
            }
            parser.detach();
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
    fn partial_command_is_kept_until_complete() {
        let mut parser = RequestParser::new(RequestLimits::default(), true);
        let mut received = Buffer::new();
        for (piece, is_within) in [(&b"*2\r\n$3\r\nGET\r\n"[..], true), (b"$1\r\n", true), (b"a\r\n", false)]
        {
            received.append(Bytes::copy_from_slice(piece));
            let came = parser.next(&mut received).unwrap();
            assert_eq!((parser.is_within(), came.is_some()), (is_within, !is_within));
        }
    }

    #[test]
    fn unauthenticated_limits_are_small() {
        let stranger = |input: &[u8]| text(parse_pieces(&[input], RequestLimits::default(), false).1);
        assert_eq!(stranger(b"*11\r\n"), "Protocol error: unauthenticated multibulk length");
        assert_eq!(stranger(b"*1\r\n$16385\r\n"), "Protocol error: unauthenticated bulk length");
        assert_eq!(stranger(b"*10\r\n$16384\r\n"), "");
    }

    #[test]
    fn announced_lengths_allocate_nothing() {
        let limits =
            RequestLimits { word_bytes: 100, words: 1 << 20, command_bytes: 150, refused_word_bytes: 1000 };
        let parse = |input: &'static [u8]| {
            let mut parser = RequestParser::new(limits, true);
            let mut received = Buffer::from(input);
            let result = parser.next(&mut received);
            (result.map(|words| words.is_some()), parser.words.capacity(), parser.missing_bytes(&received))
        };
        assert_eq!(parse(b"*1048576\r\n"), (Ok(false), WORDS_RESERVED_MAX, 0));
        assert_eq!(parse(b"*2\r\n$100\r\nabc"), (Ok(false), 2, 99));
        assert_eq!(parse(b"*2\r\n$1001\r\n").0, Err(ProtocolError::InvalidLength));
    }

    #[test]
    fn oversized_command_is_rejected_and_skipped() {
        let limits =
            RequestLimits { word_bytes: 100, words: 1 << 20, command_bytes: 150, refused_word_bytes: 1000 };
        for long in [
            &b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$101\r\n"[..],
            b"*3\r\n$3\r\nSET\r\n$99\r\nkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\r\n$49\r\n",
        ] {
            let mut parser = RequestParser::new(limits, true);
            let mut received = Buffer::from(long);
            assert_eq!(parser.next(&mut received), Ok(Some(Request::TooLong)), "on the announcement alone");
            assert_eq!((parser.held_bytes(), parser.missing_bytes(&received)), (0, 0));
            let bytes = if long.ends_with(b"$101\r\n") { 101 } else { 49 };
            for _ in 0..bytes + 1 {
                received.append_copy(b"*");
                assert_eq!(parser.next(&mut received), Ok(None));
                assert!(received.is_empty());
            }
            received.append_copy(b"\n*1\r\n$4\r\nPING\r\n");
            assert_eq!(parser.next(&mut received), Ok(Some(Request::Words(vec!["PING".into()]))));
        }
        // Words after the one that was too long are also thrown away, regardless of their length.
        let input =
            [&b"*3\r\n$101\r\n"[..], &[b'x'; 101], b"\r\n$0\r\n\r\n$200\r\n", &[b'y'; 200], b"\r\nPING\r\n"];
        let (commands, error) = parse_pieces(&[&input.concat()], limits, true);
        assert_eq!((commands, error), (vec![vec![], vec![Bytes::from("PING")]], None));
    }

    #[test]
    fn glance_needs_complete_command() {
        let parser = RequestParser::new(RequestLimits::default(), true);
        let get = b"*2\r\n$3\r\nGET\r\n$3\r\nabc\r\n*1\r\n";
        let glance = parser.glance(get).unwrap();
        assert_eq!((glance.name, glance.argument, glance.bytes), (&b"GET"[..], &b"abc"[..], 22));
        assert_eq!(glance.second, None);
        assert!((0..22).all(|end| parser.glance(&get[..end]).is_none()));
        let set = b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$2\r\nvv\r\n*1";
        let glance = parser.glance(set).unwrap();
        assert_eq!((glance.name, glance.argument), (&b"set"[..], &b"k"[..]));
        assert_eq!((glance.second, glance.bytes), (Some(&b"vv"[..]), 28));
        assert!((0..28).all(|end| parser.glance(&set[..end]).is_none()));
        for other in [
            &b"*1\r\n$4\r\nPING\r\n"[..],
            b"PING\r\n",
            b"*2\r\n$03\r\nGET\r\n$1\r\na\r\n",
            b"*2\r\n$3\r\nGET\r\n$-1\r\n",
            b"*2\r\n$3\r\nGET\r\n$99999\r\n",
        ] {
            assert_eq!(parser.glance(other), None);
        }
        let limits = RequestLimits { word_bytes: 3, command_bytes: 5, ..RequestLimits::default() };
        let strict = RequestParser::new(limits, true);
        let set = b"*3\r\n$1\r\ns\r\n$2\r\nkk\r\n$3\r\nvvv\r\n";
        for long in [&b"*2\r\n$4\r\nPING\r\n$1\r\na\r\n"[..], b"*2\r\n$1\r\na\r\n$4\r\nPING\r\n", get, set] {
            assert_eq!(strict.glance(long), None, "found by fuzzing: `next` refuses it");
        }
        let mut received = Buffer::from(&b"*2\r\n$3\r\nSET\r\n"[..]);
        let mut parser = parser;
        assert_eq!(parser.next(&mut received), Ok(None));
        assert_eq!(parser.glance(get), None, "these bytes belong to a command that began before");
    }

    #[test]
    fn a_large_word_is_not_copied() {
        let value = Bytes::from(vec![7; 100_000]);
        let mut received = Buffer::from(&b"*1\r\n$100000\r\n"[..]);
        received.append_external(value.clone());
        received.append_copy(b"\r\n");
        let request = RequestParser::new(RequestLimits::default(), true).next(&mut received).unwrap();
        let Some(Request::Words(words)) = request else { panic!("{request:?}") };
        assert_eq!(words[0].as_ptr(), value.as_ptr());
        assert!(received.is_empty());
    }

    #[test]
    fn last_word_can_use_external_memory() {
        let mut parser = RequestParser::new(RequestLimits::default(), true);
        let mut received = Buffer::from(&b"*3\r\n$3\r\nSET\r\n"[..]);
        assert_eq!(parser.next(&mut received), Ok(None));
        assert_eq!(parser.last_word(), None, "two are missing");
        assert_eq!(parser.end_elsewhere(&mut received), None);
        received.append_copy(b"$1\r\nk\r\n$5\r\nva");
        assert_eq!(parser.next(&mut received), Ok(None));
        let words = [Bytes::from("SET"), Bytes::from("k")];
        assert_eq!(parser.last_word(), Some((&words[..], 5)));
        assert_eq!((parser.missing_bytes(&received), received.to_vec()), (5, b"va".to_vec()));
        // The value was taken elsewhere, and the line break arrives in two pieces.
        received.truncate_front(2);
        assert_eq!(parser.end_elsewhere(&mut received), None);
        received.append_copy(b"\r");
        assert_eq!(parser.end_elsewhere(&mut received), None);
        received.append_copy(b"\n*1\r\n$4\r\nPING\r\n");
        assert_eq!(parser.end_elsewhere(&mut received), Some(words.to_vec()));
        assert_eq!((parser.last_word(), parser.held_bytes()), (None, 0));
        assert_eq!(parser.next(&mut received), Ok(Some(Request::Words(vec!["PING".into()]))));
        assert!(received.is_empty());
    }

    #[test]
    fn an_authenticated_client_may_send_more() {
        let mut parser = RequestParser::new(RequestLimits::default(), false);
        parser.set_authenticated(true);
        let mut received = Buffer::from(&b"*11\r\n$16385\r\n"[..]);
        assert_eq!(parser.next(&mut received), Ok(None));
        assert_eq!(parser.missing_bytes(&received), 16_387);
        let mut parser = RequestParser::new(RequestLimits::default(), true);
        parser.set_authenticated(false);
        let refused = parser.next(&mut Buffer::from(&b"*11\r\n"[..]));
        assert_eq!(refused, Err(ProtocolError::UnauthenticatedCount));
    }

    #[test]
    fn words_of_partial_command_are_detached() {
        let received_into = Bytes::from([&b"*2\r\n$3\r\nGET\r\n$700\r\n"[..], &[b'x'; 600]].concat());
        let mut parser = RequestParser::new(RequestLimits::default(), true);
        let mut received = Buffer::new();
        received.append_external(received_into.clone());
        assert_eq!(parser.next(&mut received), Ok(None));
        let inside = received_into.as_ptr_range();
        assert!(parser.words.iter().all(|word| inside.contains(&word.as_ptr())));
        parser.detach();
        assert!(parser.words.iter().all(|word| !inside.contains(&word.as_ptr())));
        assert_eq!((&parser.words[0][..], parser.detached), (&b"GET"[..], 1));
    }

    #[test]
    fn line_limit_holds_for_any_split() {
        for (start, error) in [
            (&b""[..], ProtocolError::InlineTooLong),
            (b"*", ProtocolError::CountTooLong),
            (b"*1\r\n$", ProtocolError::LengthTooLong),
            (b"*1\r\nx", ProtocolError::LengthTooLong),
        ] {
            // Each in a separate chunk, so that the search stops in the middle of them, and with a line break after the limit.
            let pieces = LINE_BYTES_MAX / 1_000 + 2;
            for end in [&b""[..], b"\r\n"] {
                let mut received = Buffer::from(start);
                (0..pieces).for_each(|_| received.append_external(Bytes::from(vec![b'1'; 1_000])));
                received.append_copy(end);
                let mut parser = RequestParser::new(RequestLimits::default(), true);
                assert_eq!(parser.next(&mut received), Err(error), "{} {}", start.escape_ascii(), end.len());
            }
            // In a line that people type, the carriage return is part of the line.
            let end = if start.is_empty() { &b"\n"[..] } else { b"\r\n" };
            let before = start.iter().rev().take_while(|&&byte| byte != b'\n').count();
            for too_long in [false, true] {
                let line = vec![b'1'; LINE_BYTES_MAX - before + usize::from(too_long)];
                let mut received = Buffer::from(Bytes::from([start, &line, end].concat()));
                let result = RequestParser::new(RequestLimits::default(), true).next(&mut received);
                assert_eq!(result == Err(error), too_long, "{}: {result:?}", start.escape_ascii());
            }
        }
    }

    #[test]
    fn line_end_split_in_two() {
        let mut parser = RequestParser::new(RequestLimits::default(), true);
        let mut received = Buffer::new();
        for piece in [&b"*1\r"[..], b"\n$", b"4\r", b"\nPING", b"\r"] {
            received.append_copy(piece);
            assert_eq!(parser.next(&mut received), Ok(None), "{}", piece.escape_ascii());
        }
        received.append_copy(b"\n");
        assert_eq!(parser.next(&mut received), Ok(Some(Request::Words(vec!["PING".into()]))));
        // A line that is not a word is refused when it is complete.
        let mut received = Buffer::from(&b"*1\r\nfoo\r"[..]);
        assert_eq!(parser.next(&mut received), Ok(None));
        received.append_copy(b"\n");
        assert_eq!(parser.next(&mut received), Err(ProtocolError::ExpectedWord(b'f')));
    }

    fn command() -> impl Strategy<Value = Vec<Vec<u8>>> {
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 1..6)
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
            let one = |words: &Vec<Vec<u8>>| encode(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let input: Vec<u8> = commands.iter().flat_map(one).collect();
            let (parsed, error) = parse_pieces(&cut(&input, &cuts), RequestLimits::default(), true);
            prop_assert_eq!(error, None);
            prop_assert_eq!(parsed, commands);
        }

        #[test]
        fn result_is_independent_of_split(input in noise(), cuts in proptest::collection::vec(any::<usize>(), 0..12), authenticated in any::<bool>()) {
            let limits = RequestLimits { word_bytes: 4, words: 100, command_bytes: 6, refused_word_bytes: 20 };
            for limits in [limits, RequestLimits::default()] {
                let whole = parse_pieces(&[&input], limits, authenticated);
                prop_assert_eq!(parse_pieces(&cut(&input, &cuts), limits, authenticated), whole);
            }
        }
    }
}
