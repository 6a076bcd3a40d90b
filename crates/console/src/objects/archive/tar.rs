//! The form of a tar: POSIX headers, and extended ones for names and lengths that do not fit.

const BLOCK: usize = 512;

/// The longest name and the greatest length of a plain header.
const NAME_BYTES_MAX: usize = 100;
const LENGTH_MAX: u64 = 0o77_777_777_777;

/// Writes the headers of an object.
pub(super) fn header(out: &mut Vec<u8>, path: &str, is_folder: bool, bytes: u64, modified_s: u64) {
    let name = if is_folder { format!("{path}/") } else { path.to_owned() };
    let mut records = String::new();
    if name.len() > NAME_BYTES_MAX || !name.is_ascii() {
        records += &record("path", &name);
    }
    if bytes > LENGTH_MAX {
        records += &record("size", &bytes.to_string());
    }
    if !records.is_empty() {
        plain(out, "pax-header", b'x', records.len() as u64, modified_s);
        out.extend_from_slice(records.as_bytes());
        pad(out, records.len() as u64);
    }
    plain(out, &name, if is_folder { b'5' } else { b'0' }, bytes.min(LENGTH_MAX), modified_s);
}

/// Fills the last block of a value of this length.
pub(super) fn pad(out: &mut Vec<u8>, bytes: u64) {
    let rest = (bytes % BLOCK as u64) as usize;
    if rest > 0 {
        out.resize(out.len() + BLOCK - rest, 0);
    }
}

/// Writes the end of an archive.
pub(super) fn end(out: &mut Vec<u8>) {
    out.resize(out.len() + 2 * BLOCK, 0);
}

/// `LENGTH KEYWORD=VALUE`, whose length is that of all of it.
fn record(keyword: &str, value: &str) -> String {
    let rest = format!(" {keyword}={value}\n");
    let mut length = rest.len();
    while length.to_string().len() + rest.len() != length {
        length = length.to_string().len() + rest.len();
    }
    format!("{length}{rest}")
}

fn plain(out: &mut Vec<u8>, name: &str, kind: u8, bytes: u64, modified_s: u64) {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| {
        if let Some(place) = block.get_mut(at..at + text.len()) {
            place.copy_from_slice(text);
        }
    };
    let name = name.as_bytes();
    put(0, &name[..name.len().min(NAME_BYTES_MAX)]);
    put(100, if kind == b'5' { b"0000755\0" } else { b"0000644\0" });
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{bytes:011o}\0").as_bytes());
    put(136, format!("{:011o}\0", modified_s.min(LENGTH_MAX)).as_bytes());
    // The sum of the header counts its own place as spaces.
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(&block);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_record_counts_itself() {
        assert_eq!(record("path", "a"), "9 path=a\n");
        assert_eq!(record("path", "ab"), "11 path=ab\n");
        let long = record("path", &"x".repeat(91));
        assert!(long.starts_with("101 path=") && long.len() == 101, "{long}");
    }

    #[test]
    fn long_names_and_lengths_have_an_extended_header() {
        let blocks = |path: &str, bytes| {
            let mut out = Vec::new();
            header(&mut out, path, false, bytes, 1);
            assert_eq!(out.len() % BLOCK, 0);
            out.len() / BLOCK
        };
        assert_eq!(blocks(&"a".repeat(100), LENGTH_MAX), 1);
        assert_eq!(blocks(&"a".repeat(101), 0), 3);
        assert_eq!(blocks("é", 0), 3);
        assert_eq!(blocks("a", LENGTH_MAX + 1), 3);
    }
}
