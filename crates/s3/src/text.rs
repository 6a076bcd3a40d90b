//! Percent coding as S3 does it, hex, and patterns with stars.

/// Decodes every percent escape once; `None` if one is incomplete. A plus sign stays.
#[must_use]
pub fn percent_decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        out.push((digit(*high)? << 4) | digit(*low)?);
        rest = after;
    }
    Some(out)
}

/// Appends `bytes` with every byte escaped except unreserved ones (letters, digits, `-._~`) and slashes.
pub fn percent_encode_path(out: &mut String, bytes: &[u8]) {
    encode(out, bytes, true);
}

/// Appends `bytes` with every byte escaped except unreserved ones.
pub fn percent_encode(out: &mut String, bytes: &[u8]) {
    encode(out, bytes, false);
}

fn encode(out: &mut String, bytes: &[u8], keeps_slash: bool) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.reserve(bytes.len());
    for &byte in bytes {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if is_plain || (keeps_slash && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

/// `bytes` as lower-case hex.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = |byte: &u8| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]].map(char::from);
    bytes.iter().flat_map(digits).collect()
}

/// The bytes of exactly `2 * N` hex digits of either case.
#[must_use]
pub fn unhex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut out = [0; N];
    for (to, [high, low]) in out.iter_mut().zip(pairs) {
        *to = (digit(*high)? << 4) | digit(*low)?;
    }
    Some(out)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Returns true if `text` matches `pattern`, in which `*` stands for any bytes, and `?` for one if `has_marks`.
///
/// Only the last star is ever retried: the time is at most the product of both lengths.
#[must_use]
pub fn star_match(pattern: &[u8], text: &[u8], has_marks: bool) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        match (pattern.get(at), text.get(from)) {
            (Some(b'*'), _) => {
                star = Some((at + 1, from));
                at += 1;
            }
            (None, None) => return true,
            (Some(b'?'), Some(_)) if has_marks => {
                at += 1;
                from += 1;
            }
            (Some(wanted), Some(byte)) if wanted == byte => {
                at += 1;
                from += 1;
            }
            (_, None) => return false,
            _ => {
                let Some((after, tried)) = star else { return false };
                star = Some((after, tried + 1));
                (at, from) = (after, tried + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_are_decoded_once_and_a_plus_stays() {
        assert_eq!(percent_decode(b"a%2525+%00%2f"), Some(b"a%25+\0/".to_vec()));
        for bad in ["%", "%4", "%zz", "a%2"] {
            assert_eq!(percent_decode(bad.as_bytes()), None, "{bad}");
        }
        let mut out = String::new();
        percent_encode_path(&mut out, "a b/+é~".as_bytes());
        percent_encode(&mut out, b"/*");
        assert_eq!(out, "a%20b/%2B%C3%A9~%2F%2A");
    }

    #[test]
    fn stars_match_in_bounded_time() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*b", "axxb", true),
            ("a*b", "axxbc", false),
            ("http://*.example.org", "http://www.example.org", true),
            ("?", "a", true),
            ("?", "", false),
            ("a*b*c", "abbbc", true),
        ] {
            assert_eq!(star_match(pattern.as_bytes(), text.as_bytes(), true), expected, "{pattern} {text}");
        }
        assert!(!star_match(b"?", b"a", false) && star_match(b"?", b"?", false));
        assert!(!star_match(("a*".repeat(16) + "b").as_bytes(), "a".repeat(100_000).as_bytes(), true));
    }

    proptest! {
        #[test]
        fn any_bytes_round_trip(bytes: Vec<u8>) {
            let mut text = String::new();
            percent_encode(&mut text, &bytes);
            prop_assert_eq!(percent_decode(text.as_bytes()), Some(bytes.clone()));
            let _ = percent_decode(&bytes);
            prop_assert_eq!(unhex::<4>(hex(&bytes).as_bytes()).map(Vec::from), (bytes.len() == 4).then_some(bytes));
        }
    }
}
