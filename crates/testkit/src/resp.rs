//! The Redis protocol by hand.

/// A command as clients write it: an array of its words.
#[must_use]
pub fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_lengths_in_front() {
        assert_eq!(encode(&[b"get", b""]), b"*2\r\n$3\r\nget\r\n$0\r\n\r\n");
    }
}
