//! Commands and replies of the Redis protocol, version 2, as a client sees them.

use bytes::{Bytes, BytesMut};

/// The longest line of a reply, in bytes: an error's text, or a number.
const LINE_BYTES_MAX: usize = 4 << 10;

/// The longest value in a reply, in bytes: the server's longest, and what it may grow to.
const BULK_BYTES_MAX: usize = 64 << 20;

/// The longest reply as a whole, in bytes: the longest value or MGET's 64 MiB, and the heads of as many elements as there may be.
const REPLY_BYTES_MAX: usize = BULK_BYTES_MAX + (4 << 20);

/// Elements of one array: the longest list that is asked for is the map of slots.
const ARRAY_MAX: usize = 65_536;

/// Arrays in arrays.
const DEPTH_MAX: usize = 8;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A short text, as `OK`.
    Simple(Bytes),
    /// An error's text.
    Error(String),
    Integer(i64),
    Null,
    Bulk(Bytes),
    Array(Vec<Self>),
}

/// The bytes are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// Appends a command.
pub(crate) fn put_command(out: &mut Vec<u8>, words: &[&[u8]]) {
    put_head(out, b'*', words.len());
    for word in words {
        put_head(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn put_head(out: &mut Vec<u8>, kind: u8, count: usize) {
    use std::io::Write;
    // Writing into memory cannot fail.
    let _ = write!(out, "{}{count}\r\n", char::from(kind));
}

/// Takes the reply at the front of `input`, if all of it is there.
///
/// # Errors
/// [`Broken`]: what comes is not understood from here on.
pub(crate) fn take_reply(input: &mut BytesMut) -> Result<Option<Reply>, Broken> {
    let mut length = 0;
    if !measure(input, &mut length, 0)? {
        return Ok(None);
    }
    let bytes = input.split_to(length).freeze();
    let mut at = 0;
    build(&bytes, &mut at).map(Some)
}

/// Moves `at` behind the reply that begins there; false where it is not all there.
fn measure(input: &[u8], at: &mut usize, depth: usize) -> Result<bool, Broken> {
    let Some((kind, line)) = take_line(input, at)? else { return Ok(false) };
    match kind {
        b'+' | b'-' | b':' => Ok(true),
        b'$' => match count(line, BULK_BYTES_MAX)? {
            None => Ok(true),
            Some(bytes) => {
                *at += bytes + 2;
                if *at > REPLY_BYTES_MAX { Err(Broken) } else { Ok(*at <= input.len()) }
            }
        },
        b'*' if depth < DEPTH_MAX => {
            for _ in 0..count(line, ARRAY_MAX)?.unwrap_or(0) {
                if !measure(input, at, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Err(Broken),
    }
}

/// The reply at `at`, which is all there.
fn build(bytes: &Bytes, at: &mut usize) -> Result<Reply, Broken> {
    let (kind, line) = take_line(bytes, at)?.ok_or(Broken)?;
    Ok(match kind {
        b'+' => Reply::Simple(bytes.slice_ref(line)),
        b'-' => Reply::Error(String::from_utf8_lossy(line).into_owned()),
        b':' => Reply::Integer(number(line)?),
        b'$' => match count(line, BULK_BYTES_MAX)? {
            None => Reply::Null,
            Some(length) => {
                let value = bytes.get(*at..*at + length).ok_or(Broken)?;
                *at += length + 2;
                if bytes.get(*at - 2..*at) != Some(b"\r\n") {
                    return Err(Broken);
                }
                Reply::Bulk(bytes.slice_ref(value))
            }
        },
        b'*' => match count(line, ARRAY_MAX)? {
            None => Reply::Null,
            Some(items) => Reply::Array((0..items).map(|_| build(bytes, at)).collect::<Result<_, _>>()?),
        },
        _ => return Err(Broken),
    })
}

/// The kind and the rest of the line at `at`, which is moved behind it; none where its end is not there.
fn take_line<'a>(input: &'a [u8], at: &mut usize) -> Result<Option<(u8, &'a [u8])>, Broken> {
    let rest = input.get(*at..).unwrap_or_default();
    let Some(end) = rest.iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\r') else {
        return if rest.len() < LINE_BYTES_MAX { Ok(None) } else { Err(Broken) };
    };
    match rest.get(end + 1) {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) => return Err(Broken),
    }
    *at += end + 2;
    rest.get(..end).and_then(<[u8]>::split_first).map(|(kind, line)| Some((*kind, line))).ok_or(Broken)
}

fn number(line: &[u8]) -> Result<i64, Broken> {
    std::str::from_utf8(line).ok().and_then(|line| line.parse().ok()).ok_or(Broken)
}

/// A length; none where there is no value.
fn count(line: &[u8], most: usize) -> Result<Option<usize>, Broken> {
    match number(line)? {
        -1 => Ok(None),
        count => usize::try_from(count).ok().filter(|&count| count <= most).map(Some).ok_or(Broken),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REPLIES: &[u8] = b"+OK\r\n-ERR no\r\n:-5\r\n$-1\r\n$3\r\na\r\n\r\n*2\r\n*-1\r\n$0\r\n\r\n*0\r\n";

    #[test]
    fn replies_come_however_they_are_cut() {
        let bulk = |bytes: &'static [u8]| Reply::Bulk(Bytes::from_static(bytes));
        let expected = [
            Reply::Simple("OK".into()),
            Reply::Error("ERR no".into()),
            Reply::Integer(-5),
            Reply::Null,
            bulk(b"a\r\n"),
            Reply::Array(vec![Reply::Null, bulk(b"")]),
            Reply::Array(Vec::new()),
        ];
        for step in 1..REPLIES.len() {
            let (mut input, mut seen) = (BytesMut::new(), Vec::new());
            for piece in REPLIES.chunks(step) {
                input.extend_from_slice(piece);
                while let Some(reply) = take_reply(&mut input).unwrap() {
                    seen.push(reply);
                }
            }
            assert_eq!(seen, expected, "in pieces of {step}");
            assert!(input.is_empty());
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let long = [b'+'; LINE_BYTES_MAX];
        let deep = b"*1\r\n".repeat(DEPTH_MAX + 1);
        let wrong: [&[u8]; 9] = [
            b"?\r\n",
            b"\r\n",
            b":x\r\n",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b"+a\rb",
            b"$1\r\nabc",
            &long,
            &deep,
        ];
        for wrong in wrong {
            assert_eq!(take_reply(&mut wrong.into()), Err(Broken), "{}", wrong.escape_ascii());
        }
    }

    /// Each element may be as long as it is; all of them together may not, which is known before they came.
    #[test]
    fn a_reply_that_is_too_long_as_a_whole_is_refused() {
        let head = format!("*2\r\n${BULK_BYTES_MAX}\r\n").into_bytes();
        let mut input = BytesMut::from(&head[..]);
        assert_eq!(take_reply(&mut input), Ok(None));
        input.resize(head.len() + BULK_BYTES_MAX, b'x');
        input.extend_from_slice(b"\r\n$4194305\r\n");
        assert_eq!(take_reply(&mut input), Err(Broken));
    }

    #[test]
    fn commands_are_arrays() {
        let mut out = Vec::new();
        put_command(&mut out, &[b"SET", b"k", b""]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(prop::sample::select(b"+-:$*\r\n0123x".to_vec()), 0..60)) {
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take_reply(&mut input) {}
        }
    }
}
