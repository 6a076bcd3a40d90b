//! HTTP/2 by hand, for clients that no library implements.

/// The first bytes of a client.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Kinds of frames.
pub const DATA: u8 = 0;
/// The headers of a call.
pub const HEADERS: u8 = 1;
/// The end of a stream, before its time.
pub const RESET: u8 = 3;
/// Demands of the sender on the other side.
pub const SETTINGS: u8 = 4;
/// Asks for the same bytes back.
pub const PING: u8 = 6;
/// The end of a connection.
pub const GO_AWAY: u8 = 7;
/// More room for data.
pub const WINDOW_UPDATE: u8 = 8;
/// More headers.
pub const CONTINUATION: u8 = 9;

/// Of data and headers: the last frame on this stream.
pub const END_STREAM: u8 = 1;
/// Of pings and settings: this is the answer.
pub const ACK: u8 = 1;
/// Of headers: the last frame of them.
pub const END_HEADERS: u8 = 4;

/// A frame's bytes before its payload.
pub const HEAD_BYTES: usize = 9;

/// One frame.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The first bytes of a client: its preface, and settings.
#[must_use]
pub fn greeting(settings: &[u8]) -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()
}

/// A header that is not in any table.
#[must_use]
pub fn header(name: &str, value: &str) -> Vec<u8> {
    // Literal without indexing, both as plain strings of fewer than 127 bytes.
    [&[0, name.len() as u8][..], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

/// The headers of a call by gRPC.
#[must_use]
pub fn call(path: &str) -> Vec<u8> {
    [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", path),
        header(":authority", "shoal"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ]
    .concat()
}

/// A message of gRPC, not compressed.
#[must_use]
pub fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// One received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its kind, as [`DATA`] and others.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream; 0: the connection.
    pub stream: u32,
    /// The bytes after the header.
    pub payload: Vec<u8>,
}

/// Takes the first frame off `received`; `None` if it is incomplete.
pub fn take_frame(received: &mut Vec<u8>) -> Option<Frame> {
    let head: [u8; HEAD_BYTES] = *received.first_chunk()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    if received.len() < HEAD_BYTES + length {
        return None;
    }
    let frame: Vec<u8> = received.drain(..HEAD_BYTES + length).collect();
    let stream = u32::from_be_bytes([head[5] & 0x7F, head[6], head[7], head[8]]);
    Some(Frame { kind: head[3], flags: head[4], stream, payload: frame[HEAD_BYTES..].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_what_was_written() {
        let mut bytes = frame(DATA, END_STREAM, 3, &message(b"abc"));
        let cut = bytes.split_off(12);
        assert_eq!(take_frame(&mut bytes), None);
        bytes.extend(cut);
        bytes.extend(frame(PING, 0, 0, &[7; 8]));
        let first = take_frame(&mut bytes).unwrap();
        assert_eq!((first.kind, first.flags, first.stream), (DATA, END_STREAM, 3));
        assert_eq!(first.payload, [&[0, 0, 0, 0, 3][..], b"abc"].concat());
        assert_eq!(take_frame(&mut bytes).unwrap().kind, PING);
        assert!(bytes.is_empty());
    }
}
