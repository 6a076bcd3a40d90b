//! One connection to a server of HTTP/1.1, without a runtime: for a measurement of latencies, only the kernel should be between it and
//! the server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Memory for one read of the socket.
const READ_BYTES: usize = 256 << 10;
/// Longest head of an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A connection; another one if the server closed it.
pub(super) struct Link {
    address: SocketAddr,
    stream: Option<TcpStream>,
    input: Vec<u8>,
    /// Bytes of `input` that were received, and the part of them that was used.
    received: usize,
    at: usize,
}

/// The answer to a request; its body is in the memory that the caller gave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Time from the sending to the first byte.
    pub(super) first_byte: Duration,
}

/// The length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyLength {
    Known(usize),
    Chunked,
}

/// The parts of a head that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    length: BodyLength,
    closes: bool,
}

impl Head {
    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok());
        let status = status.with_context(|| format!("the server does not speak HTTP/1.1: {text:?}"))?;
        let mut head = Self { status, length: BodyLength::Known(0), closes: false };
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    head.length = BodyLength::Known(value.parse().context("content-length is a number")?);
                }
                "transfer-encoding" => head.length = BodyLength::Chunked,
                "connection" => head.closes = value.eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        if status == 204 {
            head.length = BodyLength::Known(0);
        }
        Ok(head)
    }
}

impl Link {
    /// A connection to `address`, which is made with the first request.
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, stream: None, input: vec![0; READ_BYTES], received: 0, at: 0 }
    }

    /// Connects, unless it is connected.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn connect(&mut self) -> Result<()> {
        if self.stream.is_none() {
            let connected = TcpStream::connect(self.address);
            let stream = connected.with_context(|| format!("no server answers at {}", self.address))?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
            (self.received, self.at) = (0, 0);
        }
        Ok(())
    }

    /// Sends a request, its head and body in one piece, and receives the answer's body into `body`.
    ///
    /// # Errors
    /// The connection failed, or the server does not speak HTTP/1.1.
    pub(super) fn call(&mut self, request: &[u8], body: &mut Vec<u8>) -> Result<Answer> {
        self.connect()?;
        body.clear();
        let sent = Instant::now();
        self.stream()?.write_all(request)?;
        self.receive()?;
        let first_byte = sent.elapsed();
        let head = self.head()?;
        match head.length {
            BodyLength::Known(bytes) => self.take(bytes, body)?,
            BodyLength::Chunked => self.take_chunks(body)?,
        }
        if head.closes {
            self.stream = None;
        }
        Ok(Answer { status: head.status, first_byte })
    }

    fn stream(&mut self) -> Result<&mut TcpStream> {
        self.stream.as_mut().context("there is no connection")
    }

    fn held(&self) -> &[u8] {
        self.input.get(self.at..self.received).unwrap_or_default()
    }

    /// The next bytes up to `end`, which are used, too.
    fn text_to(&mut self, end: &[u8]) -> Result<String> {
        loop {
            let found = self.held().windows(end.len()).position(|bytes| bytes == end);
            if let Some(length) = found {
                let text =
                    String::from_utf8_lossy(self.held().get(..length).unwrap_or_default()).into_owned();
                self.at += length + end.len();
                return Ok(text);
            }
            ensure!(self.held().len() < HEAD_BYTES_MAX, "the head of the answer is too long");
            self.receive()?;
        }
    }

    /// The head of the answer itself: the server may send an interim one first.
    fn head(&mut self) -> Result<Head> {
        loop {
            let head = Head::parse(&self.text_to(b"\r\n\r\n")?)?;
            if head.status >= 200 {
                return Ok(head);
            }
        }
    }

    /// Takes the next `bytes` bytes.
    fn take(&mut self, mut bytes: usize, body: &mut Vec<u8>) -> Result<()> {
        loop {
            let now = self.held().get(..bytes.min(self.received - self.at)).unwrap_or_default();
            let count = now.len();
            body.extend_from_slice(now);
            self.at += count;
            bytes -= count;
            if bytes == 0 {
                return Ok(());
            }
            self.receive()?;
        }
    }

    fn take_chunks(&mut self, body: &mut Vec<u8>) -> Result<()> {
        loop {
            let line = self.text_to(b"\r\n")?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let bytes = usize::from_str_radix(digits, 16).context("a chunk has its length in hex")?;
            if bytes == 0 {
                while !self.text_to(b"\r\n")?.is_empty() {}
                return Ok(());
            }
            self.take(bytes, body)?;
            ensure!(self.text_to(b"\r\n")?.is_empty(), "a chunk is longer than its length");
        }
    }

    /// Waits for more. Used bytes make room.
    fn receive(&mut self) -> Result<()> {
        self.input.copy_within(self.at..self.received, 0);
        self.received -= self.at;
        self.at = 0;
        let room = self.input.get_mut(self.received..).unwrap_or_default();
        let stream = self.stream.as_mut().context("there is no connection")?;
        match stream.read(room)? {
            0 => bail!("the server closed the connection"),
            bytes => self.received += bytes,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn heads_of_answers_are_read() {
        let head = |text: &str| Head::parse(text).unwrap();
        let found = head("HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close");
        assert_eq!(found, Head { status: 200, length: BodyLength::Known(12), closes: true });
        let found = head("HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked");
        assert_eq!(found, Head { status: 403, length: BodyLength::Chunked, closes: false });
        assert_eq!(head("HTTP/1.1 204 No Content").length, BodyLength::Known(0));
        for bad in ["", "HTTP/1.0 200 OK", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\nContent-Length: x"] {
            assert!(Head::parse(bad).is_err(), "{bad}");
        }
    }

    /// The server sends its bytes one by one, and closes the connection after two answers.
    #[test]
    fn bodies_of_both_forms_come_in_any_pieces_and_a_closed_connection_is_made_again() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_nodelay(true).unwrap();
                for answer in [
                    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst",
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3;x=y\r\nsec\r\n3\r\nond\r\n0\r\nT: t\r\n\r\n",
                ] {
                    stream.read_exact(&mut [0; 4]).unwrap();
                    for byte in answer.as_bytes() {
                        stream.write_all(&[*byte]).unwrap();
                    }
                }
            }
        });
        let (mut link, mut body) = (Link::new(address), Vec::new());
        for expected in ["first", "second", "first", "second"] {
            assert_eq!(link.call(b"head", &mut body).unwrap().status, 200);
            assert_eq!(body, expected.as_bytes());
        }
        server.join().unwrap();
        assert!(link.call(b"head", &mut body).is_err(), "nobody listens");
    }
}
