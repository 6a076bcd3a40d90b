//! Replies in the version of the protocol that the client chose.
//!
//! Protocol 2 has no nulls, maps or sets: they are written as Redis writes them there. A value is sent in its original chunks:
//! only short ones are copied.

use shoal_buffer::{Buffer, COPY_BYTES_MAX};

use crate::number::INTEGER_BYTES_MAX;

/// The version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The version of every new connection.
    #[default]
    V2,
    /// The version selected by HELLO 3.
    V3,
}

/// Appends replies to a buffer.
///
/// An aggregate is written as its head with the count of its elements, then the elements.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Buffer,
    protocol: Protocol,
}

impl<'a> Reply<'a> {
    /// Replies in `protocol` are appended to `out`.
    pub const fn new(out: &'a mut Buffer, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    /// Bytes that were not sent yet.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// A short text without line breaks, such as `OK`; a CR or LF is written as a space.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// `OK`, `times` times: the answers of that number of commands.
    #[inline]
    pub fn ok(&mut self, times: usize) {
        const OK: &[u8; 5] = b"+OK\r\n";
        for _ in 0..times {
            self.out.alloc(OK.len()).copy_from_slice(OK);
        }
    }

    /// An error: `ERR` or another code in capitals, and a description; a CR or LF is written as a space.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    /// An integer.
    pub fn integer(&mut self, value: i64) {
        self.head(b':', value);
    }

    /// A string of bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if bytes.len() > COPY_BYTES_MAX {
            self.count(b'$', bytes.len());
            self.out.append_copy(bytes);
            return self.out.append_copy(b"\r\n");
        }
        // A short value is written in one piece: most answers are short.
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(bytes.len()).as_bytes();
        let (head, value) = (1 + digits.len() + 2, bytes.len());
        let out = self.out.alloc(head + value + 2);
        out[0] = b'$';
        out[1..head - 2].copy_from_slice(digits);
        out[head - 2..head].copy_from_slice(b"\r\n");
        out[head..head + value].copy_from_slice(bytes);
        out[head + value..].copy_from_slice(b"\r\n");
    }

    /// A value, as the chunks it is made of.
    pub fn value(&mut self, value: Buffer) {
        self.count(b'$', value.len());
        self.out.append_buffer(value);
        self.out.append_copy(b"\r\n");
    }

    /// Text for people: `INFO`'s.
    pub fn verbatim(&mut self, text: &str) {
        if self.protocol == Protocol::V2 {
            return self.bulk(text.as_bytes());
        }
        self.count(b'=', text.len() + 4);
        self.out.append_copy(b"txt:");
        self.out.append_copy(text.as_bytes());
        self.out.append_copy(b"\r\n");
    }

    /// Null in place of a string.
    pub fn null(&mut self) {
        self.out.append_copy(self.by_protocol(b"$-1\r\n", b"_\r\n"));
    }

    /// Null in place of an array.
    pub fn null_array(&mut self) {
        self.out.append_copy(self.by_protocol(b"*-1\r\n", b"_\r\n"));
    }

    /// The head of an array; `count` replies follow.
    pub fn array(&mut self, count: usize) {
        self.count(b'*', count);
    }

    /// The head of a map; `pairs` keys, each with its value, follow.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::V2 => self.count(b'*', pairs * 2),
            Protocol::V3 => self.count(b'%', pairs),
        }
    }

    /// The head of a set; `count` replies follow.
    pub fn set(&mut self, count: usize) {
        self.count(if self.protocol == Protocol::V2 { b'*' } else { b'~' }, count);
    }

    const fn by_protocol(&self, two: &'static [u8], three: &'static [u8]) -> &'static [u8] {
        match self.protocol {
            Protocol::V2 => two,
            Protocol::V3 => three,
        }
    }

    fn line(&mut self, kind: u8, text: &str) {
        self.out.append_copy(&[kind]);
        for (index, part) in text.split(['\r', '\n']).enumerate() {
            if index > 0 {
                self.out.append_copy(b" ");
            }
            self.out.append_copy(part.as_bytes());
        }
        self.out.append_copy(b"\r\n");
    }

    fn count(&mut self, kind: u8, count: usize) {
        self.head(kind, count as i64);
    }

    fn head(&mut self, kind: u8, value: i64) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        let mut line = [kind; INTEGER_BYTES_MAX + 3];
        let end = 1 + digits.len();
        line[1..end].copy_from_slice(digits);
        line[end..end + 2].copy_from_slice(b"\r\n");
        self.out.append_copy(&line[..end + 2]);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn written(protocol: Protocol, write: impl Fn(&mut Reply<'_>)) -> String {
        let mut out = Buffer::new();
        write(&mut Reply::new(&mut out, protocol));
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn each_kind_in_both_versions() {
        let all = |reply: &mut Reply<'_>| {
            reply.simple("OK");
            reply.error("ERR a\r\nb");
            reply.integer(-7);
            reply.bulk(b"a\r\nb");
            reply.bulk(b"");
            reply.null();
            reply.null_array();
            reply.array(0);
            reply.map(2);
            reply.set(3);
            reply.verbatim("hi");
        };
        assert_eq!(
            written(Protocol::V2, all),
            "+OK\r\n-ERR a  b\r\n:-7\r\n$4\r\na\r\nb\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n*4\r\n*3\r\n$2\r\nhi\r\n"
        );
        assert_eq!(
            written(Protocol::V3, all),
            "+OK\r\n-ERR a  b\r\n:-7\r\n$4\r\na\r\nb\r\n$0\r\n\r\n_\r\n_\r\n*0\r\n%2\r\n~3\r\n=6\r\ntxt:hi\r\n"
        );
    }

    #[test]
    fn answers_of_many_commands_and_the_limits_of_numbers() {
        let all = |reply: &mut Reply<'_>| {
            reply.ok(0);
            reply.ok(2);
            reply.integer(i64::MIN);
        };
        let expected = "+OK\r\n+OK\r\n:-9223372036854775808\r\n";
        assert_eq!(written(Protocol::V2, all), expected);
        assert_eq!(written(Protocol::V3, all), expected);
    }

    #[test]
    fn strings_of_every_length_around_the_border_of_copying() {
        for bytes in [COPY_BYTES_MAX - 1, COPY_BYTES_MAX, COPY_BYTES_MAX + 1, 3 * COPY_BYTES_MAX] {
            let text: String = (b'a'..=b'z').cycle().take(bytes).map(char::from).collect();
            let mut out = Buffer::new();
            let mut reply = Reply::new(&mut out, Protocol::V2);
            reply.bulk(text.as_bytes());
            let expected = format!("${bytes}\r\n{text}\r\n");
            assert_eq!(reply.bytes(), expected.len());
            assert_eq!(out.to_vec(), expected.as_bytes());
        }
    }

    #[test]
    fn a_long_value_is_sent_from_where_it_is() {
        let value = Bytes::from(vec![b'v'; COPY_BYTES_MAX + 1]);
        let mut out = Buffer::new();
        Reply::new(&mut out, Protocol::V2).value(value.clone().into());
        let chunks: Vec<_> = out.chunks().collect();
        assert_eq!(
            (chunks[0], chunks[1].as_ptr(), chunks[2]),
            (&b"$513\r\n"[..], value.as_ptr(), &b"\r\n"[..])
        );
    }
}
