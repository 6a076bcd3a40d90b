//! Walks a folder in the order of its keys.
//!
//! The names in a folder are sorted as their keys, a folder's with its `/`. Depth-first order is then the byte order of the keys, so the
//! walk can be compared with a listing in one pass. Memory: the names of the open folders. Symlinks are not followed.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Stat};
use shoal_base::limits::KEY_BYTES_MAX;

use crate::attributes::extras::Extras;
use crate::attributes::{FileAttributes, FileKind};
use crate::tree::temporary::is_temporary;
use crate::tree::xattr;

/// A file, folder or symlink.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) key: Vec<u8>,
    pub(crate) path: PathBuf,
    pub(crate) attributes: FileAttributes,
    /// Length of a file, or of a symlink's target; 0 for a folder.
    pub(crate) bytes: u64,
    /// Device and inode.
    pub(crate) inode: (u64, u64),
}

/// An entry of a walk.
#[derive(Debug)]
pub(crate) enum Visit {
    Found(Found),
    /// A socket, fifo or device.
    Special {
        key: Vec<u8>,
        path: PathBuf,
        kind: &'static str,
    },
    /// A temporary file of a killed command.
    Leftover {
        key: Vec<u8>,
        path: PathBuf,
    },
    Failed {
        key: Vec<u8>,
        path: PathBuf,
        why: String,
    },
}

impl Visit {
    /// The key that the entry has or would have.
    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Self::Found(found) => &found.key,
            Self::Special { key, .. } | Self::Leftover { key, .. } | Self::Failed { key, .. } => key,
        }
    }
}

/// A walk through a folder.
pub struct Walk {
    open: Vec<Level>,
}

struct Level {
    path: PathBuf,
    /// The prefix and the path below the root, with a `/` at the end unless it is the root.
    key: Vec<u8>,
    /// In descending order: the next name is the last.
    names: Vec<Name>,
}

struct Name {
    /// As in a key: a folder's has a final `/`.
    bytes: Vec<u8>,
    is_folder: bool,
}

impl Walk {
    /// Starts at the folder `root`, or a symlink to it. `prefix` is prepended to every key.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn new(root: &Path, prefix: &[u8]) -> io::Result<Self> {
        Ok(Self { open: vec![Level::read(root.to_owned(), prefix.to_owned())?] })
    }

    /// The entries, in the order of their keys.
    pub(crate) fn visits(mut self) -> impl Iterator<Item = Visit> {
        std::iter::from_fn(move || {
            loop {
                match self.open.last_mut()?.names.pop() {
                    Some(name) => return self.visit(&name),
                    None => _ = self.open.pop(),
                }
            }
        })
    }

    fn visit(&mut self, name: &Name) -> Option<Visit> {
        let level = self.open.last()?;
        let plain = if name.is_folder { name.bytes.strip_suffix(b"/")? } else { &name.bytes[..] };
        let path = level.path.join(OsStr::from_bytes(plain));
        let key = [&level.key[..], &name.bytes].concat();
        if !name.is_folder && is_temporary(plain) {
            return Some(Visit::Leftover { key, path });
        }
        if key.len() > KEY_BYTES_MAX {
            let rest = if name.is_folder { "; nothing in it is stored either" } else { "" };
            let why = format!("its key would have {} bytes, {KEY_BYTES_MAX} are allowed{rest}", key.len());
            return Some(Visit::Failed { key, path, why });
        }
        let stat = match rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(error) => {
                return Some(Visit::Failed { key, path, why: io::Error::from(error).to_string() });
            }
        };
        let attributes = match FileAttributes::of(&stat) {
            Ok(attributes) => attributes,
            Err(kind) => return Some(Visit::Special { key, path, kind }),
        };
        if (attributes.kind == FileKind::Folder) != name.is_folder {
            return Some(Visit::Failed { key, path, why: "it was replaced while it was read".into() });
        }
        if name.is_folder {
            match Level::read(path.clone(), key.clone()) {
                Ok(level) => self.open.push(level),
                Err(error) => return Some(Visit::Failed { key, path, why: error.to_string() }),
            }
        }
        Some(Visit::Found(Found::new(key, path, attributes, &stat)))
    }
}

impl Found {
    fn new(key: Vec<u8>, path: PathBuf, attributes: FileAttributes, stat: &Stat) -> Self {
        let bytes =
            if attributes.kind == FileKind::Folder { 0 } else { u64::try_from(stat.st_size).unwrap_or(0) };
        Self { key, path, attributes, bytes, inode: (stat.st_dev, stat.st_ino) }
    }

    /// The extras, from Shoal's extended attributes; none for a symlink.
    pub(crate) fn extras(&self) -> Result<Extras, String> {
        match self.attributes.kind {
            FileKind::Symlink => Ok(Extras::default()),
            FileKind::File | FileKind::Folder => xattr::read(&xattr::Holder::Path(&self.path)),
        }
    }
}

impl Level {
    fn read(path: PathBuf, key: Vec<u8>) -> io::Result<Self> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            // If the entry is gone already, the visit reports it.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let mut bytes = entry.file_name().into_vec();
            if is_folder {
                bytes.push(b'/');
            }
            names.push(Name { bytes, is_folder });
        }
        names.sort_unstable_by(|a, b| b.bytes.cmp(&a.bytes));
        Ok(Self { path, key, names })
    }
}

/// Returns true if `stat` is of a regular file.
pub(crate) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn keys(root: &Path, prefix: &str) -> Vec<Vec<u8>> {
        let visits = Walk::new(root, prefix.as_bytes()).unwrap().visits();
        visits
            .filter_map(|visit| match visit {
                Visit::Found(found) => Some(found.key),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn entries_are_in_the_order_of_their_keys() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["a", "a!", "a0", "b/c/d", "empty"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        for file in ["a/z", "a!/x", "a0/y", "a-file", "b/c.txt", "b/c/e", "\u{e4}"] {
            fs::write(root.path().join(file), b"").unwrap();
        }
        symlink("b", root.path().join("link")).unwrap();
        fs::write(root.path().join(OsStr::from_bytes(b"\xff")), b"").unwrap();
        let keys = keys(root.path(), "p/");
        assert!(keys.is_sorted());
        assert_eq!(keys.len(), 7 + 7 + 2, "files, folders with parents, a link and a name that is not UTF-8");
        assert!(keys.contains(&b"p/a!/".to_vec()) && keys.contains(&b"p/b/c/d/".to_vec()));
        assert!(keys.contains(&b"p/link".to_vec()), "symlinks are not followed");
        assert!(keys.contains(&b"p/\xff".to_vec()));
    }

    #[test]
    fn entries_without_a_key_are_reported() {
        let root = tempfile::tempdir().unwrap();
        let deep: PathBuf = std::iter::repeat_n("d".repeat(200), 6).collect();
        fs::create_dir_all(root.path().join(&deep)).unwrap();
        fs::write(root.path().join(&deep).join("f"), b"").unwrap();
        rustix::fs::mknodat(CWD, root.path().join("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        let visits: Vec<Visit> = Walk::new(root.path(), b"").unwrap().visits().collect();
        let found = visits.iter().filter(|visit| matches!(visit, Visit::Found(_))).count();
        let failed = visits.iter().filter(|visit| matches!(visit, Visit::Failed { .. })).count();
        let special =
            visits.iter().filter(|visit| matches!(visit, Visit::Special { kind: "fifo", .. })).count();
        assert_eq!(
            (found, failed, special),
            (5, 1, 1),
            "five folders fit; the sixth is reported with its content"
        );
    }
}
