//! Keys as names below a folder. Any user with write access chooses keys, so none is trusted.

use bytes::Bytes;

use crate::tree::temporary::is_temporary;

/// Maximum length of a name on the file systems of Linux, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The names from the target folder down to the object, which is the last one. `relative` is the key after the prefix, for a folder
/// without the final `/`.
///
/// # Errors
/// The reason why it must not be written.
pub(crate) fn components(relative: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    if relative.is_empty() {
        return Err("its key has no bytes after the prefix");
    }
    if relative.starts_with(b"/") {
        return Err("its name is absolute (a prefix that is meant as a folder ends with '/')");
    }
    if relative.contains(&0) {
        return Err("its name has a NUL byte");
    }
    let components: Vec<&[u8]> = relative.split(|&byte| byte == b'/').collect();
    for component in &components {
        match *component {
            b"" => return Err("its name has an empty component"),
            b"." => return Err("its name has the component \".\""),
            b".." => return Err("its name has the component \"..\", which leads out of the folder"),
            long if long.len() > NAME_BYTES_MAX => {
                return Err("its name has a component of more than 255 bytes");
            }
            _ => {}
        }
    }
    Ok(components)
}

/// As [`components`], of a file or symlink.
///
/// # Errors
/// The reason why it must not be written.
pub(crate) fn components_of_file(relative: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    let components = components(relative)?;
    match components.last() {
        Some(name) if is_temporary(name) => {
            Err("its name is one of Shoal's temporary names, which an import leaves out")
        }
        _ => Ok(components),
    }
}

/// The files whose keys are prefixes of the current key: a name cannot be a file and a folder at once. Keys are in order, so the keys
/// that start with a file's key follow it directly.
#[derive(Default)]
pub(crate) struct FilesAbove {
    /// Each key starts with the one before.
    keys: Vec<Bytes>,
}

impl FilesAbove {
    /// The key of a file with the name of a folder that `key` needs.
    pub(crate) fn find(&mut self, key: &[u8]) -> Option<&Bytes> {
        while self.keys.last().is_some_and(|last| !key.starts_with(last)) {
            self.keys.pop();
        }
        self.keys.iter().find(|file| key.get(file.len()) == Some(&b'/'))
    }

    /// Adds `key`, the last argument of [`find`](Self::find), as a file.
    pub(crate) fn add(&mut self, key: Bytes) {
        self.keys.push(key);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_below_the_folder_are_accepted() {
        assert_eq!(components(b"a").unwrap(), [b"a"]);
        assert_eq!(components(b"a/..b/c.").unwrap(), [&b"a"[..], b"..b", b"c."]);
        assert_eq!(components(b"\xff/ \n").unwrap(), [&b"\xff"[..], b" \n"]);
    }

    #[test]
    fn other_names_are_refused() {
        for name in
            ["", "/", "/etc/passwd", "..", "../x", "a/../x", "a/..", ".", "a/./b", "a//b", "a/", "a\0b"]
        {
            assert!(components(name.as_bytes()).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_file_cannot_have_a_temporary_name() {
        assert!(
            components_of_file(b"a/.shoal-1-0.tmp").is_err()
                && components_of_file(b".shoal-1-0.tmp/a").is_ok()
        );
    }

    #[test]
    fn a_file_cannot_be_a_folder_too() {
        assert!(
            components("n".repeat(255).as_bytes()).is_ok() && components("n".repeat(256).as_bytes()).is_err()
        );
        let mut above = FilesAbove::default();
        let mut conflicts = Vec::new();
        for key in ["a", "a!", "a!/x", "a-b", "a/b", "a/b/c", "ab", "b/c", "b/c/d/e", "b/cd/e"] {
            match above.find(key.as_bytes()) {
                Some(file) => conflicts.push((key, file.clone())),
                None => above.add(key.into()),
            }
        }
        let expected = [("a!/x", "a!"), ("a/b", "a"), ("a/b/c", "a"), ("b/c/d/e", "b/c")];
        assert_eq!(conflicts, expected.map(|(key, file)| (key, Bytes::from(file))));
    }

    proptest! {
        #[test]
        fn accepted_names_stay_below_the_folder(name in "[a./]{0,12}") {
            if let Ok(components) = components(name.as_bytes()) {
                prop_assert!(components.iter().all(|it| !it.is_empty() && *it != b".." && *it != b"." && !it.contains(&b'/')));
                prop_assert_eq!(components.join(&b'/'), name.as_bytes());
            }
        }
    }
}
