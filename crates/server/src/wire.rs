//! Sizes of HTTP/2 in this server, and the prefix of gRPC's messages.

use bytes::{Buf, BufMut};
use shoal_buffer::Buffer;
use tonic::Status;

use crate::failure::Failure;

/// HTTP/2 window of one stream, in bytes: a value of 64 KiB is never stopped for a round trip, and one stream carries 256 MiB a second if a
/// round trip takes 1 ms. HTTP/2 holds this much of a message that waits for room (`line`), so a larger window means that fewer may wait.
/// Fixed windows, as adaptive ones cost pings and only pay on long fat networks.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// HTTP/2 window of one connection if memory allows it, in bytes: 112 long messages may wait for room on it, and 4 MiB are left for the
/// others.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;

/// The longest HTTP/2 frame that is accepted, in bytes: a message with a value of 64 KiB. Clients send the frames of their calls by turns,
/// so values in several frames are all complete at the same time, and the device has nothing to do until then.
pub(crate) const FRAME_BYTES_MAX: u32 = 72 << 10;

/// Bytes before each message: a flag, and the length.
pub(crate) const PREFIX_BYTES: usize = 5;

/// The length of the message after the prefix at the start of `received`; `None` while the prefix is incomplete.
pub(crate) fn length(received: &Buffer, message_bytes_max: usize) -> Result<Option<usize>, Status> {
    let mut prefix = [0; PREFIX_BYTES];
    if received.copy_out(0, &mut prefix).is_err() {
        return Ok(None);
    }
    let mut prefix = &prefix[..];
    if prefix.get_u8() != 0 {
        // The call checks the request's headers before.
        return Err(Status::internal(
            "the message is marked as compressed, but the request names no compression",
        ));
    }
    let bytes = prefix.get_u32() as usize;
    if bytes > message_bytes_max {
        return Err(Failure::too_long(message_bytes_max).into_status());
    }
    Ok(Some(bytes))
}

/// Puts the prefix before `message`; `flag` is 1 if it is compressed.
pub(crate) fn put_prefix(flag: u8, message: &mut Buffer) {
    let mut prefix = [flag, 0, 0, 0, 0];
    // A message is far below 4 GiB: the store returns at most 4 MiB for one.
    (&mut prefix[1..]).put_u32(message.len() as u32);
    message.prepend(&prefix);
}

/// The whole buffer in one piece: copied if it has several chunks.
pub(crate) fn into_contiguous(mut buffer: Box<Buffer>) -> bytes::Bytes {
    buffer.copy_to_bytes(buffer.len())
}

/// Takes the first `bytes_max` bytes, or all if there are fewer. No external chunk is copied.
pub(crate) fn take_front(buffer: &mut Buffer, bytes_max: usize) -> Buffer {
    if buffer.len() <= bytes_max {
        return std::mem::take(buffer);
    }
    let mut taken = Buffer::new();
    while taken.len() < bytes_max {
        let count = buffer.first_chunk().len().min(bytes_max - taken.len());
        taken.append(buffer.copy_to_bytes(count));
    }
    taken
}
