//! The prefix of gRPC's messages, and their bytes.

use bytes::{Buf, BufMut};
use shoal_api::MESSAGE_BYTES_MAX;
use shoal_buffer::Buffer;
use shoal_http::WAITING_BYTES_MAX;
use tonic::Status;

use crate::failure::Failure;

/// Bytes before each message: a flag, and the length.
pub(crate) const PREFIX_BYTES: usize = 5;

// Any request may continue when it is the oldest one in the queue for room.
const _: () = assert!(MESSAGE_BYTES_MAX + PREFIX_BYTES <= WAITING_BYTES_MAX);

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
