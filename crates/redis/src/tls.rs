//! TLS between a connection and its socket: opens received bytes before they are parsed, seals answers before they are sent.
//! This module never blocks, and knows no sockets.
//!
//! Sealed bytes that were not sent are bounded: further answers wait unsealed. The handshake counts toward the time in which a
//! connection must authenticate.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use rustls::{ServerConfig, ServerConnection};
use shoal_buffer::{Buffer, COPY_BYTES_MAX};

/// Sealed and unsent bytes of a connection: a few records more than a socket takes at a time.
const SEALED_BYTES_MAX: usize = 256 << 10;

/// The TLS of new connections: certificates may be replaced while the server runs.
#[derive(Clone)]
pub struct Tls {
    /// The configuration for a connection that starts now; `None` without a certificate, and then no client is let in.
    pub config: Arc<dyn Fn() -> Option<Arc<ServerConfig>> + Send + Sync>,
    /// True if a client needs a certificate that proves its identity.
    pub asks_certificates: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("asks_certificates", &self.asks_certificates).finish_non_exhaustive()
    }
}

/// The TLS of one connection.
pub(crate) struct Sealing {
    tls: ServerConnection,
    /// Received bytes that were not opened.
    raw: Buffer,
    /// Sealed bytes to send.
    sealed: Buffer,
    /// The closing alert was sent.
    said_end: bool,
}

/// The result of opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// More may come.
    Open,
    /// The other side closed its sending direction.
    Ended,
    /// The peer does not speak TLS, or fails authentication; the sealed alert reports it.
    Broken,
}

impl Sealing {
    /// The TLS of a new connection; `None` if it cannot be served.
    pub(crate) fn new(tls: &Tls) -> Option<Self> {
        let tls = ServerConnection::new((tls.config)()?).ok()?;
        Some(Self { tls, raw: Buffer::new(), sealed: Buffer::new(), said_end: false })
    }

    /// Returns true if the handshake is complete.
    pub(crate) fn is_agreed(&self) -> bool {
        !self.tls.is_handshaking()
    }

    /// The buffer for received bytes.
    pub(crate) fn raw(&mut self) -> &mut Buffer {
        &mut self.raw
    }

    /// The bytes to be sent.
    pub(crate) fn sealed(&mut self) -> &mut Buffer {
        &mut self.sealed
    }

    /// Opens the received bytes, and appends them to `received`.
    pub(crate) fn open(&mut self, received: &mut Buffer) -> Opened {
        while !self.raw.is_empty() {
            let mut chunk = self.raw.first_chunk();
            // It takes nothing only if its buffer of opened bytes is full, and all of those are read below.
            let Ok(taken @ 1..) = self.tls.read_tls(&mut chunk) else { return self.give_up() };
            self.raw.truncate_front(taken);
            let state = match self.tls.process_new_packets() {
                Ok(state) => state,
                Err(error) => {
                    tracing::debug!("a connection does not speak TLS: {error}");
                    return self.give_up();
                }
            };
            let count = state.plaintext_bytes_to_read();
            if count > 0 {
                let mut bytes = vec![0; count];
                if self.tls.reader().read_exact(&mut bytes).is_err() {
                    return self.give_up();
                }
                match count {
                    ..=COPY_BYTES_MAX => received.append_copy(&bytes),
                    _ => received.append_external(Bytes::from(bytes)),
                }
            }
            if state.peer_has_closed() {
                self.raw.clear();
                return Opened::Ended;
            }
        }
        Opened::Open
    }

    fn give_up(&mut self) -> Opened {
        self.raw.clear();
        self.said_end = true;
        Opened::Broken
    }

    /// Takes the part of `out` that may wait, and seals it. `ends`: nothing more is sent after it.
    pub(crate) fn seal(&mut self, out: &mut Buffer, ends: bool) {
        loop {
            self.flush();
            if out.is_empty() || self.sealed.len() >= SEALED_BYTES_MAX {
                break;
            }
            match self.tls.writer().write(out.first_chunk()) {
                Ok(taken @ 1..) => out.advance(taken),
                // Its buffer is full, and it has nothing to send: the handshake is incomplete.
                _ => break,
            }
        }
        if ends && out.is_empty() && !self.said_end {
            self.said_end = true;
            self.tls.send_close_notify();
            self.flush();
        }
    }

    fn flush(&mut self) {
        while self.tls.wants_write() {
            // Memory takes everything.
            let Ok(1..) = self.tls.write_tls(&mut Into(&mut self.sealed)) else { return };
        }
    }
}

/// Appends to a buffer.
struct Into<'a>(&'a mut Buffer);

impl Write for Into<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.append_copy(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
