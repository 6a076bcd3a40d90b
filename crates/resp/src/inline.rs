//! Commands as people type them: words between spaces, quoted if they contain spaces.
//!
//! In double quotes, `\n`, `\r`, `\t`, `\b`, `\a` and `\xHH` mean a byte, and a backslash before any other byte means that
//! byte; in single quotes, only `\'` is an escape. A closing quote must be followed by a space or the end. A zero byte outside
//! of quotes terminates the line.

use bytes::Bytes;

/// The words of a line; `None` if a quote is not closed, or is closed within a word.
pub(crate) fn split(line: &[u8]) -> Option<Vec<Bytes>> {
    let mut words = Vec::new();
    let mut rest = trim_start(line);
    while !rest.is_empty() {
        let (word, behind) = word(rest)?;
        words.push(Bytes::from(word));
        rest = trim_start(behind);
    }
    Some(words)
}

/// The spaces of C.
const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Strips leading spaces; returns an empty slice if a zero byte comes next, which terminates the line in Redis.
fn trim_start(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|&byte| !is_space(byte)).unwrap_or(line.len());
    if line.get(start) == Some(&0) { &[] } else { &line[start..] }
}

/// The first word and the rest of the line after it.
fn word(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    let mut rest = line;
    loop {
        rest = match rest {
            [] => return Some((word, rest)),
            [end, ..] if is_space(*end) || *end == 0 => return Some((word, rest)),
            [quote @ (b'"' | b'\''), rest @ ..] => quoted(*quote, rest, &mut word)?,
            [byte, rest @ ..] => {
                word.push(*byte);
                rest
            }
        };
    }
}

fn quoted<'a>(quote: u8, mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let is_double = quote == b'"';
    loop {
        let (byte, behind) = match rest {
            [end, behind @ ..] if *end == quote => return closed(behind),
            [b'\\', b'x', high, low, behind @ ..]
                if is_double && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                ((hex(*high) << 4) | hex(*low), behind)
            }
            [b'\\', escaped, behind @ ..] if is_double => (unescaped(*escaped), behind),
            [b'\\', b'\'', behind @ ..] => (b'\'', behind),
            [byte, behind @ ..] => (*byte, behind),
            [] => return None,
        };
        word.push(byte);
        rest = behind;
    }
}

/// The byte that a backslash and `byte` mean.
const fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

/// The rest after a closing quote, if a word may stop there.
fn closed(behind: &[u8]) -> Option<&[u8]> {
    behind.first().is_none_or(|&byte| is_space(byte) || byte == 0).then_some(behind)
}

const fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Option<Vec<Vec<u8>>> {
        split(line.as_bytes()).map(|words| words.iter().map(|word| word.to_vec()).collect())
    }

    #[test]
    fn words_are_split_as_redis_does() {
        assert_eq!(
            words("  SET key  value "),
            Some(vec![b"SET".to_vec(), b"key".to_vec(), b"value".to_vec()])
        );
        assert_eq!(
            words(r#"a "b \x41\n\"\q" 'c\'\n'"#).unwrap()[1..],
            [b"b A\n\"q".to_vec(), b"c'\\n".to_vec()]
        );
        assert_eq!(words(r#""\r\t\b\a\xfF\x0g\\""#).unwrap(), [b"\r\t\x08\x07\xFFx0g\\".to_vec()]);
        assert_eq!(words(r#""" ''"#), Some(vec![vec![], vec![]]));
        assert_eq!(words("   "), Some(vec![]));
        // With a zero byte, the parser used to loop forever.
        assert_eq!(words("a\x0bb\0 c"), Some(vec![b"a".to_vec(), b"b".to_vec()]));
        for unbalanced in [r#""abc"#, "'abc", r#""a"b"#, "'a'b", r#""abc\""#] {
            assert_eq!(words(unbalanced), None, "{unbalanced}");
        }
    }
}
