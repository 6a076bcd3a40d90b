//! The messages of the Redis protocol in a stream that does not block: replies, and for the server of [`super::echo`] commands,
//! which are arrays of bulk strings in the same grammar.
//!
//! Only kinds and lengths are kept: the bytes of a value are skipped. An array in an array is refused: neither side sends one.

use std::io::{ErrorKind, Read};

use anyhow::{Context, Result, bail};

/// Memory for one read of a stream.
const READ_BYTES: usize = 64 << 10;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A text or a number.
    Text,
    /// The length of a value; none for an absent one.
    Value(Option<u64>),
    /// The number of words of an array.
    Array(u64),
    /// The text of an error.
    Error(String),
}

/// The received bytes of one stream.
pub(super) struct Messages {
    input: Vec<u8>,
    /// Bytes of `input` that were received, and the part of them that was parsed.
    received: usize,
    at: usize,
    /// Bytes of a value, and its line end, that are still to be skipped.
    skip: u64,
    /// The value that `skip` belongs to.
    value: Option<u64>,
    /// The array that is being read: its words, and those that are missing.
    array: Option<(u64, u64)>,
}

impl Messages {
    pub(super) fn new() -> Self {
        let input = vec![0; READ_BYTES];
        Self { input, received: 0, at: 0, skip: 0, value: None, array: None }
    }

    /// Reads once. Returns false if there is nothing to read.
    pub(super) fn receive(&mut self, stream: &mut impl Read) -> Result<bool> {
        self.input.copy_within(self.at..self.received, 0);
        self.received -= self.at;
        self.at = 0;
        match stream.read(&mut self.input[self.received..]) {
            Ok(0) => bail!("the connection ended"),
            Ok(bytes) => self.received += bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(false);
            }
            Err(error) => return Err(error).context("cannot receive"),
        }
        Ok(true)
    }

    /// The next complete message.
    pub(super) fn next(&mut self) -> Result<Option<Message>> {
        while let Some(message) = self.element()? {
            let Some((words, missing)) = &mut self.array else {
                match message {
                    Message::Array(words) if words > 0 => self.array = Some((words, words)),
                    message => return Ok(Some(message)),
                }
                continue;
            };
            if matches!(message, Message::Array(_)) {
                bail!("an array in an array");
            }
            *missing -= 1;
            if *missing == 0 {
                let words = *words;
                self.array = None;
                return Ok(Some(Message::Array(words)));
            }
        }
        Ok(None)
    }

    /// The next element: a message, or a word of an array.
    fn element(&mut self) -> Result<Option<Message>> {
        if self.skip == 0 {
            let Some((kind, text)) = self.line()? else { return Ok(None) };
            match kind {
                b'+' | b':' => return Ok(Some(Message::Text)),
                b'-' => return Ok(Some(Message::Error(text))),
                b'*' => return Ok(Some(Message::Array(text.parse().unwrap_or_default()))),
                b'_' => return Ok(Some(Message::Value(None))),
                b'$' if text == "-1" => return Ok(Some(Message::Value(None))),
                b'$' => {
                    let bytes: u64 = text.parse().context("a value without a length")?;
                    (self.value, self.skip) = (Some(bytes), bytes + 2);
                }
                _ => bail!("a message starts with {:?}", char::from(kind)),
            }
        }
        let held = self.skip.min((self.received - self.at) as u64);
        self.at += held as usize;
        self.skip -= held;
        Ok((self.skip == 0).then(|| Message::Value(self.value.take())))
    }

    /// The next whole line: its first byte, and the text after it.
    fn line(&mut self) -> Result<Option<(u8, String)>> {
        let held = &self.input[self.at..self.received];
        let Some(end) = held.iter().position(|&byte| byte == b'\n') else {
            if held.len() == self.input.len() {
                bail!("a line without an end");
            }
            return Ok(None);
        };
        let line = held[..end].strip_suffix(b"\r").unwrap_or(&held[..end]);
        let Some((&kind, text)) = line.split_first() else { bail!("an empty line") };
        let found = (kind, String::from_utf8_lossy(text).into_owned());
        self.at += end + 1;
        Ok(Some(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that has a few bytes at a time, and nothing in between.
    struct Slow<'a>(&'a [u8], usize, bool);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.2 = !self.2;
            if self.2 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let bytes = self.1.min(buffer.len()).min(self.0.len());
            buffer[..bytes].copy_from_slice(&self.0[..bytes]);
            self.0 = &self.0[bytes..];
            Ok(bytes)
        }
    }

    fn parsed(bytes: &[u8], at_once: usize) -> Result<Vec<Message>> {
        let (mut stream, mut messages, mut found) =
            (Slow(bytes, at_once, false), Messages::new(), Vec::new());
        while !stream.0.is_empty() {
            messages.receive(&mut stream)?;
            while let Some(message) = messages.next()? {
                found.push(message);
            }
        }
        Ok(found)
    }

    #[test]
    fn messages_are_the_same_in_any_pieces() {
        let value = vec![b'\n'; 200_000];
        let mut bytes = b"+OK\r\n$3\r\nabc\r\n$-1\r\n$0\r\n\r\n_\r\n:7\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*0\r\n-ERR x\r\n$200000\r\n".to_vec();
        bytes.extend_from_slice(&value);
        bytes.extend_from_slice(b"\r\n+OK\r\n");
        let absent = Message::Value(None);
        let wanted = [
            Message::Text,
            Message::Value(Some(3)),
            absent.clone(),
            Message::Value(Some(0)),
            absent,
            Message::Text,
            Message::Array(2),
            Message::Array(0),
            Message::Error("ERR x".into()),
            Message::Value(Some(200_000)),
            Message::Text,
        ];
        for at_once in [1, 2, 3, 7, 1000, 1 << 20] {
            assert_eq!(parsed(&bytes, at_once).unwrap(), wanted, "{at_once}");
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        for bytes in [&b"\n"[..], b"hello\r\n", b"$x\r\n", b"*1\r\n*1\r\n"] {
            assert!(parsed(bytes, 100).is_err(), "{bytes:?}");
        }
        assert!(parsed(&vec![b'+'; READ_BYTES + 1], 1 << 20).is_err());
        let mut ended: &[u8] = b"";
        assert!(Messages::new().receive(&mut ended).is_err());
    }
}
