//! One connection to a server of the Redis protocol, without a runtime: for a measurement of latencies, only the kernel should
//! be between it and the server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail, ensure};

/// Memory for one read of the socket.
const READ_BYTES: usize = 256 << 10;

/// A connection.
pub struct Link {
    stream: TcpStream,
    input: Vec<u8>,
    /// Bytes of `input` that were received, and the part of them that was parsed.
    received: usize,
    at: usize,
}

impl Link {
    /// Connects.
    ///
    /// # Errors
    /// Those of the system.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: vec![0; READ_BYTES], received: 0, at: 0 })
    }

    /// Sends commands and waits for `replies` replies; returns the bytes of all their values. An error reply is an error.
    ///
    /// # Errors
    /// The connection failed, or a reply is an error.
    pub fn call(&mut self, commands: &[u8], replies: usize) -> Result<usize> {
        self.stream.write_all(commands)?;
        let mut bytes = 0;
        for _ in 0..replies {
            bytes += self.reply()?;
        }
        Ok(bytes)
    }

    /// One page of a walk over all keys: the cursor of the next page, 0 after the last one, and the number of its keys.
    ///
    /// # Errors
    /// The connection failed, or the reply is not that of a SCAN.
    pub fn scan(&mut self, cursor: u64, count: usize) -> Result<(u64, u64)> {
        let (cursor, count) = (cursor.to_string(), count.to_string());
        self.stream.write_all(&alone(&[b"SCAN", cursor.as_bytes(), b"COUNT", count.as_bytes()]))?;
        ensure!(self.line()? == (b'*', 2), "a SCAN is answered with a cursor and keys");
        ensure!(self.line()?.0 == b'$', "a cursor is a string");
        // The cursor's digits are a line without a kind.
        let next = self.text()?.parse().context("a cursor is a number")?;
        let (kind, keys) = self.line()?;
        ensure!(kind == b'*' && keys >= 0, "a SCAN is answered with an array of keys");
        for _ in 0..keys {
            self.reply()?;
        }
        Ok((next, keys as u64))
    }

    /// Bytes of the values in the next reply.
    fn reply(&mut self) -> Result<usize> {
        let (kind, count) = self.line()?;
        match kind {
            b'$' if count >= 0 => {
                self.skip(count as usize + 2)?;
                Ok(count as usize)
            }
            b'*' => (0..count.max(0)).try_fold(0, |bytes, _| Ok(bytes + self.reply()?)),
            _ => Ok(0),
        }
    }

    /// The kind of the next line, and the number on it, 0 for a text.
    fn line(&mut self) -> Result<(u8, i64)> {
        let line = self.text()?;
        let Some(kind) = line.bytes().next() else { bail!("an empty line") };
        let text = line.get(1..).unwrap_or_default();
        if kind == b'-' {
            bail!("the server answers: {text}");
        }
        Ok((kind, text.parse().unwrap_or(0)))
    }

    /// The next line; empty if it is not text.
    fn text(&mut self) -> Result<&str> {
        let mut seen = 0;
        let length = loop {
            let held = self.input.get(self.at + seen..self.received).unwrap_or_default();
            if let Some(end) = held.iter().position(|&byte| byte == b'\n') {
                break seen + end;
            }
            seen += held.len();
            self.receive()?;
        };
        let line = self.input.get(self.at..(self.at + length).saturating_sub(1)).unwrap_or_default();
        self.at += length + 1;
        Ok(std::str::from_utf8(line).unwrap_or_default())
    }

    fn skip(&mut self, mut count: usize) -> Result<()> {
        loop {
            let held = count.min(self.received - self.at);
            self.at += held;
            count -= held;
            if count == 0 {
                return Ok(());
            }
            self.receive()?;
        }
    }

    /// Waits for more. Parsed bytes make room.
    fn receive(&mut self) -> Result<()> {
        self.input.copy_within(self.at..self.received, 0);
        self.received -= self.at;
        self.at = 0;
        let room = self.input.get_mut(self.received..).unwrap_or_default();
        match self.stream.read(room)? {
            0 => bail!("the connection ended"),
            bytes => self.received += bytes,
        }
        Ok(())
    }
}

/// Appends a command.
pub fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    let head = |kind: char, count: usize, out: &mut Vec<u8>| {
        out.extend_from_slice(format!("{kind}{count}\r\n").as_bytes());
    };
    head('*', words.len(), out);
    for word in words {
        head('$', word.len(), out);
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// The same, alone.
#[must_use]
pub fn alone(words: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    command(&mut out, words);
    out
}
