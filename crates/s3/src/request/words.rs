//! User metadata that is not ASCII travels as encoded words of RFC 2047: `=?UTF-8?B?w6k=?=`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The charset of bytes that are not UTF-8 (RFC 1428).
const UNKNOWN: &str = "unknown-8bit";

/// Decodes the encoded words of a value; spaces between two of them go. Anything else stays as it is.
#[must_use]
pub fn decode(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    // The length of `out` at the end of the last word, if only spaces came after it.
    let mut word_end = None;
    while !rest.is_empty() {
        if let Some((text, after)) = word(rest) {
            if let Some(end) = word_end {
                out.truncate(end);
            }
            out.extend_from_slice(&text);
            word_end = Some(out.len());
            rest = after;
            continue;
        }
        let (byte, after) = (rest[0], &rest[1..]);
        if byte != b' ' && byte != b'\t' {
            word_end = None;
        }
        out.push(byte);
        rest = after;
    }
    out
}

/// The text of the encoded word at the start of `bytes`, and the bytes after it.
fn word(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let rest = bytes.strip_prefix(b"=?")?;
    let mut parts = rest.splitn(3, |byte| *byte == b'?');
    let (charset, encoding, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let end = rest.windows(2).position(|pair| pair == b"?=")?;
    let (text, after) = (&rest[..end], &rest[end + 2..]);
    let raw = match encoding {
        b"B" | b"b" => STANDARD.decode(text).ok()?,
        b"Q" | b"q" => quoted(text)?,
        _ => return None,
    };
    let charset = charset.to_ascii_lowercase();
    let text = match charset.as_slice() {
        b"utf-8" | b"us-ascii" => String::from_utf8(raw).ok()?.into_bytes(),
        b"iso-8859-1" => raw.iter().map(|byte| char::from(*byte)).collect::<String>().into_bytes(),
        charset if charset == UNKNOWN.as_bytes() => raw,
        _ => return None,
    };
    Some((text, after))
}

/// Decodes the form in which `=` starts an escape and `_` is a space.
fn quoted(text: &[u8]) -> Option<Vec<u8>> {
    if text.contains(&b'%') {
        return None;
    }
    let escaped = text.iter().map(|byte| match byte {
        b'=' => b'%',
        b'_' => b' ',
        byte => *byte,
    });
    crate::text::percent_decode(&escaped.collect::<Vec<u8>>())
}

/// A value as the text of a header: as it is if it is printable ASCII, else one encoded word.
#[must_use]
pub fn encode(value: &[u8]) -> String {
    match str::from_utf8(value) {
        Ok(text) if value.iter().all(|byte| (b' '..=b'~').contains(byte)) => text.to_owned(),
        Ok(_) => format!("=?UTF-8?B?{}?=", STANDARD.encode(value)),
        Err(_) => format!("=?{UNKNOWN}?B?{}?=", STANDARD.encode(value)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_of_both_encodings_and_charsets() {
        for (value, expected) in [
            ("plain =?", "plain =?"),
            ("=?UTF-8?B?w6k=?=", "é"),
            ("=?utf-8?q?=C3=A9_x?=", "é x"),
            ("=?ISO-8859-1?Q?=E9?=", "é"),
            ("=?UTF-8?B?w6k=?= \t =?UTF-8?B?w6k=?= x", "éé x"),
            ("=?UTF-8?B?w6k=?= a =?UTF-8?B?w6k=?=", "é a é"),
            ("=?UTF-8?B?/w==?=", "=?UTF-8?B?/w==?="),
            ("=?KOI8-R?B?w6k=?=", "=?KOI8-R?B?w6k=?="),
            ("=?UTF-8?X?w6k=?=", "=?UTF-8?X?w6k=?="),
        ] {
            assert_eq!(String::from_utf8(decode(value.as_bytes())).unwrap(), expected, "{value}");
        }
        assert_eq!(encode("a é".as_bytes()), "=?UTF-8?B?YSDDqQ==?=");
        assert_eq!(encode(b"a~ b"), "a~ b");
    }

    proptest! {
        #[test]
        fn values_round_trip(value: Vec<u8>) {
            prop_assume!(!value.windows(2).any(|pair| pair == b"=?"));
            let text = encode(&value);
            prop_assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            prop_assert_eq!(decode(text.as_bytes()), value);
        }

        #[test]
        fn decoding_never_grows(value: Vec<u8>) {
            // A byte of ISO 8859-1 becomes two.
            prop_assert!(decode(&value).len() <= 2 * value.len());
        }
    }
}
