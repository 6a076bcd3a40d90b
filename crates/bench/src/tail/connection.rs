//! One connection of the generator: it never blocks, and has a limited number of operations in flight.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::messages::{Message, Messages};
use super::record::Kind;

/// A command without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) kind: Kind,
    /// Its time in the schedule.
    pub(super) intended: Duration,
}

/// A connection.
pub(super) struct Connection {
    stream: TcpStream,
    messages: Messages,
    in_flight: VecDeque<InFlight>,
    in_flight_max: usize,
    /// Bytes of commands, and the part of them that was sent.
    out: Vec<u8>,
    sent: usize,
    /// The time since which it can take a command.
    free_since: Duration,
    /// Bytes of the value that a GET must return.
    value_bytes: u64,
}

impl Connection {
    /// Connects. A GET must return a value of `value_bytes` bytes.
    pub(super) fn new(address: SocketAddr, in_flight_max: usize, value_bytes: u64) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            messages: Messages::new(),
            in_flight: VecDeque::with_capacity(in_flight_max),
            in_flight_max,
            out: Vec::new(),
            sent: 0,
            free_since: Duration::ZERO,
            value_bytes,
        })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn is_free(&self) -> bool {
        self.in_flight.len() < self.in_flight_max
    }

    pub(super) fn free_since(&self) -> Duration {
        self.free_since
    }

    pub(super) fn in_flight(&self) -> &VecDeque<InFlight> {
        &self.in_flight
    }

    /// True if bytes of commands wait until the kernel takes them.
    pub(super) fn is_sending(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Adds a command, which `make` appends to the bytes to be sent.
    pub(super) fn push(&mut self, intended: Duration, make: impl FnOnce(&mut Vec<u8>) -> Kind) {
        let kind = make(&mut self.out);
        self.in_flight.push_back(InFlight { kind, intended });
    }

    /// Sends as many bytes as the kernel takes.
    pub(super) fn send(&mut self) -> Result<()> {
        while self.is_sending() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Receives the answers that have arrived at `now`, and calls `answered` for each.
    pub(super) fn receive(&mut self, now: Duration, mut answered: impl FnMut(InFlight)) -> Result<()> {
        if !self.messages.receive(&mut self.stream)? {
            return Ok(());
        }
        while let Some(message) = self.messages.next()? {
            let Some(command) = self.in_flight.front().copied() else { bail!("an answer without a command") };
            match (command.kind, message) {
                (Kind::Set, Message::Text) => {}
                (Kind::Get, Message::Value(Some(bytes))) if bytes == self.value_bytes => {}
                (Kind::Get, Message::Value(None)) => bail!("an object is missing: fill first"),
                (_, Message::Error(text)) => bail!("the server answers: {text}"),
                (kind, message) => bail!("{kind:?} was answered by {message:?}"),
            }
            if !self.is_free() {
                self.free_since = now;
            }
            self.in_flight.pop_front();
            answered(command);
        }
        Ok(())
    }
}
