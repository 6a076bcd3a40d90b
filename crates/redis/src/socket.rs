//! A connection's socket: receives and sends without blocking.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use shoal_buffer::{Buffer, COPY_BYTES_MAX};
use shoal_engine::ReceiveBuffer;
use smallvec::SmallVec;

/// Interval of the keepalive probes to a silent peer.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(300);
/// Pieces of memory sent by one call.
const SLICES_MAX: usize = 256;
/// Bytes of the memory that requests are received into, shared by the connections of a thread.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;
/// Maximum size of a piece of a long value.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// The minimum room for a receiving call.
const RECEIVE_BYTES_MIN: usize = 4 << 10;
/// Bytes received into the common memory if a long value is expected: the command's words before the value, and the few bytes
/// of the value that come with them. Also the limit for bytes after a value in the same call.
const HEAD_BYTES: usize = 512;
/// A connection that closes with an error is still read for this time and this number of bytes: if the other side still sends,
/// closing at once would discard the error before it is read.
pub(crate) const LINGER_MAX: Duration = Duration::from_secs(5);
pub(crate) const LINGER_BYTES_MAX: usize = 64 << 20;

/// The other side, or the network, closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// A connection's demand on its socket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    /// The minimum number of missing bytes of the current command; zero if unknown.
    pub missing: usize,
    /// Only the start of a command, because it may announce a long value that has a separate buffer.
    pub head_only: bool,
}

/// A socket.
pub(crate) struct Socket {
    fd: OwnedFd,
    readable: bool,
    writable: bool,
    /// The end of the stream was reported: reading continues, because no more events follow.
    ended: bool,
    /// The time since which it has taken none of the bytes to send.
    stuck_since_ns: Option<u64>,
    /// Received bytes are thrown away until this time, up to this number of bytes.
    lingering: Option<(u64, usize)>,
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, readable: false, writable: true, ended: false, stuck_since_ns: None, lingering: None }
    }

    /// Records an event of the network.
    pub(crate) fn set_ready(&mut self, readable: bool, writable: bool, ended: bool) {
        self.ended |= ended;
        self.readable |= readable;
        self.writable |= writable;
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.readable
    }

    /// The time since which it has taken none of the bytes to send.
    pub(crate) fn stuck_since_ns(&self) -> Option<u64> {
        self.stuck_since_ns
    }

    /// Receives once and appends to `received`, as `wanted` requests. Returns the number of bytes, and `None` at the end of the
    /// stream.
    ///
    /// # Errors
    /// [`Gone`].
    pub(crate) fn receive(
        &mut self,
        received: &mut Buffer,
        wanted: Wanted,
        block: &mut BytesMut,
    ) -> Result<Option<usize>, Gone> {
        let Wanted { missing, head_only } = wanted;
        if missing > BLOCK_BYTES {
            // A long value: memory for this piece alone, allocated when the piece may arrive.
            let mut piece = Vec::with_capacity(missing.min(PIECE_BYTES_MAX));
            let most = piece.capacity();
            let result = rustix::net::recv(&self.fd, spare_capacity(&mut piece), RecvFlags::empty());
            return self.received(result.map(|(_, count)| count), most, |count| {
                if count <= COPY_BYTES_MAX {
                    return received.append_copy(&piece);
                }
                // If little of it came, it does not keep the rest of the memory.
                let bytes = if count < most / 2 { Bytes::copy_from_slice(&piece) } else { piece.into() };
                received.append_external(bytes);
            });
        }
        if block.len() < missing.max(RECEIVE_BYTES_MIN) {
            *block = BytesMut::zeroed(BLOCK_BYTES);
        }
        let most = if head_only { HEAD_BYTES } else { block.len() };
        let result = rustix::net::recv(&self.fd, &mut block[..most], RecvFlags::empty());
        self.received(result.map(|(count, _)| count), most, |count| {
            if count <= COPY_BYTES_MAX {
                received.append_copy(&block[..count]);
            } else {
                received.append_external(block.split_to(count).freeze());
            }
        })
    }

    /// Receives once into the buffer of a long value; bytes after the value go to `received`, which is empty.
    ///
    /// # Errors
    /// [`Gone`].
    pub(crate) fn receive_into(
        &mut self,
        buffer: &mut ReceiveBuffer,
        received: &mut Buffer,
    ) -> Result<Option<usize>, Gone> {
        let mut behind = [0; HEAD_BYTES];
        let missing = buffer.missing();
        let mut slices = buffer.spare();
        if slices.len() < SLICES_MAX {
            slices.push(IoSliceMut::new(&mut behind));
        }
        slices.truncate(SLICES_MAX);
        let wanted = slices.iter().map(|slice| slice.len()).sum();
        let result = rustix::io::readv(&self.fd, &mut slices);
        drop(slices);
        self.received(result, wanted, |count| {
            let into = count.min(missing);
            buffer.advance(into);
            received.append_copy(&behind[..count - into]);
        })
    }

    /// Handles the result of a call that could take `most` bytes.
    fn received(
        &mut self,
        result: Result<usize, Errno>,
        most: usize,
        keep: impl FnOnce(usize),
    ) -> Result<Option<usize>, Gone> {
        match result {
            // The other side sends no more; it may still read its answers.
            Ok(0) => {
                self.readable = false;
                Ok(None)
            }
            Ok(count) => {
                // Fewer bytes than the room: the socket is empty, and reports when it is not.
                self.readable = count == most || self.ended;
                keep(count);
                Ok(Some(count))
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(Some(0))
            }
            Err(Errno::INTR) => Ok(Some(0)),
            Err(_) => Err(Gone),
        }
    }

    /// Sends `out`, as far as the socket accepts it.
    ///
    /// # Errors
    /// [`Gone`].
    pub(crate) fn send(&mut self, out: &mut Buffer, now_ns: u64) -> Result<(), Gone> {
        while self.writable && !out.is_empty() {
            let sent = match out.as_contiguous() {
                Some(bytes) => {
                    let wanted = bytes.len();
                    rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL).map(|count| (count, wanted))
                }
                None => {
                    let mut slices: SmallVec<[IoSlice<'_>; 32]> = SmallVec::new();
                    slices.extend(out.io_slices().take(SLICES_MAX));
                    let wanted = slices.iter().map(|slice| slice.len()).sum();
                    let mut control = SendAncillaryBuffer::default();
                    rustix::net::sendmsg(&self.fd, &slices, &mut control, SendFlags::NOSIGNAL)
                        .map(|count| (count, wanted))
                }
            };
            match sent {
                Ok((count, wanted)) => {
                    self.stuck_since_ns = None;
                    if count == out.len() {
                        out.clear();
                    } else {
                        out.advance(count);
                    }
                    self.writable = count == wanted;
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Gone),
            }
        }
        if out.is_empty() {
            self.stuck_since_ns = None;
        } else if self.stuck_since_ns.is_none() {
            self.stuck_since_ns = Some(now_ns);
        }
        Ok(())
    }

    /// Shuts down the sending side, and still reads for a while so that the other side receives the last bytes. Bytes received
    /// then are thrown away.
    pub(crate) fn linger(&mut self, now_ns: u64) {
        if self.lingering.is_none() {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
            self.lingering = Some((now_ns + LINGER_MAX.as_nanos() as u64, LINGER_BYTES_MAX));
        }
    }

    pub(crate) fn is_lingering(&self) -> bool {
        self.lingering.is_some()
    }

    /// Throws away received bytes; returns true if the socket may be closed.
    pub(crate) fn drain(&mut self, block: &mut BytesMut, now_ns: u64) -> bool {
        let Some((until_ns, mut left)) = self.lingering else { return false };
        if block.len() < RECEIVE_BYTES_MIN {
            *block = BytesMut::zeroed(BLOCK_BYTES);
        }
        while self.readable {
            let result = rustix::net::recv(&self.fd, &mut block[..], RecvFlags::empty());
            match self.received(result.map(|(count, _)| count), block.len(), |_| {}) {
                Ok(Some(count)) if count < left => left -= count,
                _ => return true,
            }
        }
        self.lingering = Some((until_ns, left));
        now_ns >= until_ns
    }
}
