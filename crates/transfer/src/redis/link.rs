//! A client connection of the Redis protocol, version 2.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use bytes::Bytes;

/// Maximum time to connect.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum time without a byte from the server.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Larger values are read and dropped.
const VALUE_BYTES_MAX: u64 = 8 << 20;
/// Maximum bytes of a line.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of replies in a list.
const LIST_MAX: u64 = 1 << 20;
/// Maximum depth of nested lists.
const DEPTH_MAX: u32 = 4;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The null reply.
    Nil,
    Value(Bytes),
    /// The length of a value that was dropped.
    Long(u64),
    Number(i64),
    Text(String),
    Error(String),
    List(Vec<Reply>),
}

/// A connection.
pub(crate) struct Link<S> {
    stream: BufReader<S>,
    /// Encoded commands of the next call.
    requests: Vec<u8>,
    /// Their number.
    waiting: usize,
}

impl Link<TcpStream> {
    /// Connects to `HOST:PORT`.
    pub(crate) fn connect(address: &str) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIME_MAX) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(SILENCE_MAX))?;
                    stream.set_write_timeout(Some(SILENCE_MAX))?;
                    return Ok(Self::new(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl<S: Read + Write> Link<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream: BufReader::with_capacity(256 << 10, stream), requests: Vec::new(), waiting: 0 }
    }

    /// Adds a command to the next [`call`](Self::call).
    pub(crate) fn add(&mut self, words: &[&[u8]]) {
        self.requests.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.requests.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.requests.extend_from_slice(word);
            self.requests.extend_from_slice(b"\r\n");
        }
        self.waiting += 1;
    }

    /// Bytes of the added commands.
    pub(crate) fn added_bytes(&self) -> usize {
        self.requests.len()
    }

    /// Sends the commands and returns the reply to each.
    pub(crate) fn call(&mut self) -> io::Result<Vec<Reply>> {
        self.stream.get_mut().write_all(&self.requests)?;
        self.requests.clear();
        let waiting = std::mem::take(&mut self.waiting);
        (0..waiting).map(|_| self.reply(0)).collect()
    }

    /// Sends one command and returns its reply.
    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        self.add(words);
        Ok(self.call()?.pop().unwrap_or(Reply::Nil))
    }

    fn reply(&mut self, depth: u32) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, text) = line.split_first().ok_or_else(no_reply)?;
        let text = String::from_utf8_lossy(text).into_owned();
        let number = || text.parse::<i64>().map_err(|_| no_reply());
        Ok(match kind {
            b'+' => Reply::Text(text),
            b'-' => Reply::Error(text),
            b':' => Reply::Number(number()?),
            b'$' => match u64::try_from(number()?) {
                Ok(length) => self.value(length)?,
                Err(_) => Reply::Nil,
            },
            b'*' => match u64::try_from(number()?) {
                Ok(length) if length <= LIST_MAX && depth < DEPTH_MAX => {
                    Reply::List((0..length).map(|_| self.reply(depth + 1)).collect::<io::Result<_>>()?)
                }
                Ok(_) => return Err(no_reply()),
                Err(_) => Reply::Nil,
            },
            _ => return Err(no_reply()),
        })
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.stream.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(whole) => Ok(whole.to_vec()),
            None if (line.len() as u64) < LINE_BYTES_MAX => Err(ended()),
            None => Err(no_reply()),
        }
    }

    fn value(&mut self, length: u64) -> io::Result<Reply> {
        let reply = if length > VALUE_BYTES_MAX {
            let skipped = io::copy(&mut self.stream.by_ref().take(length), &mut io::sink())?;
            if skipped < length {
                return Err(ended());
            }
            Reply::Long(length)
        } else {
            let mut value = vec![0; length as usize];
            self.stream.read_exact(&mut value)?;
            Reply::Value(value.into())
        };
        let mut end = [0; 2];
        self.stream.read_exact(&mut end)?;
        if end == *b"\r\n" { Ok(reply) } else { Err(no_reply()) }
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended")
}

fn no_reply() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server does not speak the Redis protocol")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A server that sends fixed replies to any request, and the requests.
    struct Canned(io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Canned {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Canned {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn link(replies: &[u8]) -> Link<Canned> {
        Link::new(Canned(io::Cursor::new(replies.to_vec()), Vec::new()))
    }

    #[test]
    fn replies_are_read() {
        let mut link = link(b"+OK\r\n-ERR no\r\n:-5\r\n$3\r\na\r\n\r\n$-1\r\n*2\r\n$1\r\n0\r\n*0\r\n");
        for _ in 0..6 {
            link.add(&[b"GET", b"a\r\n"]);
        }
        let value = |text: &'static [u8]| Reply::Value(Bytes::from_static(text));
        assert_eq!(
            link.call().unwrap(),
            [
                Reply::Text("OK".into()),
                Reply::Error("ERR no".into()),
                Reply::Number(-5),
                value(b"a\r\n"),
                Reply::Nil,
                Reply::List(vec![value(b"0"), Reply::List(Vec::new())]),
            ]
        );
        assert!(link.stream.get_ref().1.starts_with(b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n*2"));
        assert_eq!(link.ask(&[b"PING"]).unwrap_err().to_string(), "the connection ended");
    }

    #[test]
    fn a_long_value_is_dropped_and_an_invalid_reply_is_an_error() {
        let long = [b"$9000000\r\n", &vec![b'x'; 9_000_000][..], b"\r\n:1\r\n"].concat();
        let mut long = link(&long);
        assert_eq!(long.ask(&[b"GET"]).unwrap(), Reply::Long(9_000_000));
        assert_eq!(long.ask(&[b"GET"]).unwrap(), Reply::Number(1));
        for wrong in [
            "*2000000\r\n",
            "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
            "HTTP/1.1 400\r\n",
            "$1\r\nab\r\n",
            ":x\r\n",
            "\r\n",
        ] {
            let error = link(wrong.as_bytes()).ask(&[b"GET"]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{wrong:?}");
        }
        assert!(link(&vec![b'+'; 1 << 20]).ask(&[b"GET"]).is_err());
        assert!(link(b"$99\r\nab").ask(&[b"GET"]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(replies in prop::collection::vec(prop::sample::select(b"+-:$*0129\r\nx".to_vec()), 0..40)) {
            let _ = link(&replies).ask(&[b"GET"]);
        }
    }
}
