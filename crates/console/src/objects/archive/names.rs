//! The names of objects in an archive: paths that are safe to be unpacked, each for one object.
//!
//! A key that is a safe path keeps it. Another one gets a mark, a `~` and a number at the end of a part of its path. Names with marks are
//! remembered by their hashes, so that each is used once; names without marks are as different as their keys. So the memory does not depend on
//! the number of ordinary keys.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// The most names with marks in an archive.
const MARKED_MAX: usize = 1 << 20;

/// The name of an object in an archive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EntryName {
    /// A relative path, without a slash at its end.
    pub(super) path: String,
    /// The object is empty, and its key ends with a slash: it is a folder.
    pub(super) is_folder: bool,
}

/// The names in an archive so far.
pub(super) struct EntryNames {
    /// Bytes at the start of all keys that are no part of names.
    skipped: usize,
    hasher: RandomState,
    marked: HashSet<u64>,
    /// Earlier keys of objects that the present key starts with.
    files: Vec<Vec<u8>>,
}

impl EntryNames {
    /// The names of objects below `prefix`: without the folders above the last part of that.
    pub(super) fn new(prefix: &[u8]) -> Self {
        let parent = prefix.strip_suffix(b"/").unwrap_or(prefix);
        let skipped = parent.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        Self { skipped, hasher: RandomState::new(), marked: HashSet::new(), files: Vec::new() }
    }

    /// Bytes of memory for the names with marks.
    pub(super) fn bytes(&self) -> usize {
        self.marked.capacity() * (size_of::<u64>() + 1)
    }

    /// The name of the next object, in the order of keys; `None` if there are too many unsafe ones.
    pub(super) fn name(&mut self, key: &[u8], is_empty: bool) -> Option<EntryName> {
        let key = key.get(self.skipped..).unwrap_or(key);
        let (text, is_folder) = match key.strip_suffix(b"/") {
            Some(folder) if is_empty && !folder.is_empty() => (String::from_utf8_lossy(folder), true),
            _ => (String::from_utf8_lossy(key), false),
        };
        let mut parts: Vec<String> = text.split('/').map(safe_part).collect();
        if let Some(first) = parts.first_mut() {
            without_drive(first);
        }
        let is_safe =
            parts.join("/").as_bytes() == key.strip_suffix(b"/").filter(|_| is_folder).unwrap_or(key);
        if !is_safe && let Some(last) = parts.last_mut().filter(|last| !has_mark(last)) {
            last.push_str("~1");
        }
        while self.files.last().is_some_and(|file| !key.starts_with(file)) {
            self.files.pop();
        }
        // A file cannot also be a folder.
        for file in self.files.iter().filter(|file| key.get(file.len()) == Some(&b'/')) {
            let place = file.iter().filter(|&&byte| byte == b'/').count();
            if let Some(part) = parts.get_mut(place) {
                part.push_str("~1");
            }
        }
        if !is_folder {
            self.files.push(key.to_vec());
        }
        let mut path = parts.join("/");
        if parts.iter().any(|part| has_mark(part)) {
            let start = path.clone();
            let mut number = 1;
            while !self.marked.insert(self.hasher.hash_one(&path)) {
                number += 1;
                path = format!("{start}~{number}");
            }
            if self.marked.len() > MARKED_MAX {
                return None;
            }
        }
        Some(EntryName { path, is_folder })
    }
}

/// A part of a path without anything that leads elsewhere, on any system.
fn safe_part(part: &str) -> String {
    match part {
        "" | "." => "_".to_owned(),
        ".." => "__".to_owned(),
        // A backslash separates parts on some systems.
        part => part.chars().map(|c| if c.is_control() || c == '\\' { '_' } else { c }).collect(),
    }
}

/// Replaces the colon of a drive, as in `C:name`.
fn without_drive(part: &mut String) {
    if part.as_bytes().first().is_some_and(u8::is_ascii_alphabetic) && part.as_bytes().get(1) == Some(&b':') {
        part.replace_range(1..2, "_");
    }
}

/// Returns true if the part has a mark at its end.
fn has_mark(part: &str) -> bool {
    part.rsplit_once('~')
        .is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(prefix: &str, keys: &[&[u8]]) -> Vec<String> {
        let mut names = EntryNames::new(prefix.as_bytes());
        let name = |key: &&[u8]| names.name(key, key.ends_with(b"/")).unwrap();
        keys.iter().map(name).map(|name| name.path + if name.is_folder { "/" } else { "" }).collect()
    }

    #[test]
    fn safe_keys_keep_their_paths_below_the_folder() {
        assert_eq!(named("", &[b"a", b"b/c d", "é/~".as_bytes()]), ["a", "b/c d", "é/~"]);
        assert_eq!(named("x/y/", &[b"x/y/", b"x/y/a", b"x/y/z/"]), ["y/", "y/a", "y/z/"]);
        assert_eq!(named("x/y", &[b"x/y1", b"x/y2/z"]), ["y1", "y2/z"]);
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for (key, expected) in [
            (&b"/etc/passwd"[..], "_/etc/passwd~1"),
            (b"../../x", "__/__/x~1"),
            (b"a/../b", "a/__/b~1"),
            (b"..", "__~1"),
            (b"a/./b", "a/_/b~1"),
            (b"a//b", "a/_/b~1"),
            (b"/", "_/_~1"),
            (b"a\0b", "a_b~1"),
            (b"a\nb", "a_b~1"),
            (b"..\\..\\x", ".._.._x~1"),
            (b"C:x", "C_x~1"),
            (b"12:30", "12:30"),
            (b"\xff", "\u{fffd}~1"),
        ] {
            assert_eq!(named("", &[key]), [expected], "{}", key.escape_ascii());
        }
    }

    #[test]
    fn every_object_has_its_name() {
        let keys: [&[u8]; 8] =
            [b"a\x01b", b"a\x02b", b"a_b", b"a_b~1", b"a_b~2", b"a_b~1~2", b"x~1", b"x~1~2"];
        let names = named("", &keys);
        assert_eq!(names[..4], ["a_b~1", "a_b~1~2", "a_b", "a_b~1~3"]);
        let different: HashSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
    }

    #[test]
    fn a_file_is_no_folder() {
        let keys: [&[u8]; 7] = [b"a", b"a-b", b"a/b", b"a/b/c", b"a/c", b"a~1/b", b"b/"];
        assert_eq!(named("", &keys), ["a", "a-b", "a~1/b", "a~1/b~1/c", "a~1/c", "a~1/b~2", "b/"]);
    }
}
