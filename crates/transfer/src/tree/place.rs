//! Writes files and symlinks below the target of an export: under a temporary name, with mode and time, then renamed. An existing file
//! is replaced atomically; an existing symlink is replaced, never followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::attributes::extras::Extras;
use crate::attributes::{FileAttributes, FileKind};
use crate::tree::folder::{Folder, timestamps};
use crate::tree::obstacle::{Obstacle, name_obstacle};
use crate::tree::temporary;
use crate::tree::xattr;

/// Maximum length of the target of a symlink on Linux.
pub(crate) const LINK_BYTES_MAX: usize = 4095;

/// A file with a temporary name. Dropping it without [`finish`](Self::finish) removes it.
pub(crate) struct NewFile<'a> {
    folder: &'a Folder,
    file: File,
    temporary: Option<String>,
}

impl<'a> NewFile<'a> {
    pub(crate) fn create(folder: &'a Folder, attributes: &FileAttributes) -> Result<Self, Obstacle> {
        // Other users cannot read the file before it has its final mode.
        let mode = if attributes.permissions.is_some() { 0o600 } else { 0o666 };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (temporary, descriptor) = temporary::create(|name| {
            rustix::fs::openat(folder.descriptor(), name, flags, Mode::from_raw_mode(mode))
        })?;
        Ok(Self { folder, file: descriptor.into(), temporary: Some(temporary) })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Sets the object's extras on the file.
    ///
    /// # Errors
    /// The reason why the file cannot have them.
    pub(crate) fn describe(&self, extras: &Extras) -> Result<(), String> {
        xattr::write(&self.file, extras)
    }

    /// Sets the file's mode, time and final name.
    pub(crate) fn finish(mut self, name: &[u8], attributes: &FileAttributes) -> Result<(), Obstacle> {
        if let Some(permissions) = attributes.permissions_to_restore() {
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(permissions))?;
        }
        rustix::fs::futimens(&self.file, &timestamps(attributes.mtime_ns))?;
        if let Some(temporary) = &self.temporary {
            rename(self.folder, temporary, name)?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            remove(self.folder, temporary.as_str());
        }
    }
}

/// Makes `name` in `folder` a symlink to `target`. Any target is safe, because nothing is written through it.
pub(crate) fn symlink(
    folder: &Folder,
    name: &[u8],
    target: &[u8],
    attributes: &FileAttributes,
) -> Result<(), Obstacle> {
    if target.is_empty() || target.contains(&0) || target.len() > LINK_BYTES_MAX {
        return Err(Obstacle::Unheld(
            "its value is no target of a symlink (1 to 4,095 bytes, no NUL)".into(),
        ));
    }
    let (temporary, ()) =
        temporary::create(|name| rustix::fs::symlinkat(OsStr::from_bytes(target), folder.descriptor(), name))
            .map_err(link_obstacle)?;
    let times = timestamps(attributes.mtime_ns);
    let result = rustix::fs::utimensat(folder.descriptor(), &temporary, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(Obstacle::from)
        .and_then(|()| rename(folder, &temporary, name));
    if result.is_err() {
        remove(folder, temporary.as_str());
    }
    result
}

fn link_obstacle(error: Errno) -> Obstacle {
    match error {
        Errno::PERM | Errno::OPNOTSUPP => Obstacle::Unheld("the file system has no symlinks".into()),
        _ => error.into(),
    }
}

/// Returns true if the folder `base` has the file `name` already, by type, size, mode, modification time and extended attributes.
pub(crate) fn is_same(
    base: impl AsFd,
    name: &OsStr,
    bytes: u64,
    attributes: &FileAttributes,
    extras: &Extras,
) -> bool {
    let Ok(stat) = rustix::fs::statat(&base, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
    let Ok(own) = FileAttributes::of(&stat) else { return false };
    let same_mode = match attributes.permissions_to_restore() {
        // Symlinks have no mode.
        Some(permissions) if attributes.kind == FileKind::File => own.permissions == Some(permissions),
        _ => true,
    };
    own.kind == attributes.kind
        && u64::try_from(stat.st_size) == Ok(bytes)
        && own.mtime_ns == attributes.mtime_ns
        && same_mode
        && (attributes.kind != FileKind::File || has_extras(base, name, extras))
}

fn has_extras(base: impl AsFd, name: &OsStr, extras: &Extras) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(base, name, flags, Mode::empty()) else { return false };
    xattr::read(&xattr::Holder::File(file.as_fd())).is_ok_and(|own| extras.is_same(&own))
}

fn rename(folder: &Folder, temporary: &str, name: &[u8]) -> Result<(), Obstacle> {
    let _taken = folder.names.take(name)?;
    let name = OsStr::from_bytes(name);
    match rustix::fs::renameat(folder.descriptor(), temporary, folder.descriptor(), name) {
        Err(Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST) => {
            Err(Obstacle::InTheWay("a folder has its name"))
        }
        result => result.map_err(name_obstacle),
    }
}

/// Removes a file of this export. Best effort: the error of the export is more useful.
pub(crate) fn remove(folder: &Folder, name: impl Arg + Copy) {
    if let Err(error) = rustix::fs::unlinkat(folder.descriptor(), name, AtFlags::empty()) {
        tracing::warn!("cannot remove the file {}: {error}", name.to_string_lossy());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn attributes(kind: FileKind) -> FileAttributes {
        FileAttributes { kind, permissions: Some(0o640), mtime_ns: 1_700_000_000_000_000_007 }
    }

    fn names(path: &std::path::Path) -> Vec<String> {
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_appears_complete_and_replaces_the_old_one() {
        let root = tempfile::tempdir().unwrap();
        let outside = root.path().join("outside");
        fs::write(&outside, b"precious").unwrap();
        let target = root.path().join("target");
        let folder = Folder::target(&target, report()).unwrap();
        std::os::unix::fs::symlink(&outside, target.join("f")).unwrap();

        let attributes = attributes(FileKind::File);
        let is_there =
            |bytes| is_same(folder.descriptor(), OsStr::new("f"), bytes, &attributes, &Extras::default());
        assert!(!is_there(3));
        let mut file = NewFile::create(&folder, &attributes).unwrap();
        file.write(b"new").unwrap();
        assert!(target.join("f").is_symlink(), "it is not visible before it is complete");
        file.finish(b"f", &attributes).unwrap();

        let metadata = fs::symlink_metadata(target.join("f")).unwrap();
        assert!(metadata.is_file());
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (1_700_000_000, 7));
        assert_eq!(fs::read(&outside).unwrap(), b"precious", "the symlink was replaced, not followed");
        assert!(is_there(3) && !is_there(4));

        drop(NewFile::create(&folder, &attributes).unwrap());
        assert_eq!(names(&target), ["f"], "no temporary file is left");
    }

    #[test]
    fn a_symlink_may_point_anywhere() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::target(root.path(), report()).unwrap();
        let attributes = attributes(FileKind::Symlink);
        symlink(&folder, b"l", b"../../etc/\xff", &attributes).unwrap();
        assert_eq!(fs::read_link(root.path().join("l")).unwrap().as_os_str().as_bytes(), b"../../etc/\xff");
        assert!(is_same(folder.descriptor(), OsStr::new("l"), 11, &attributes, &Extras::default()));
        fs::create_dir(root.path().join("d")).unwrap();
        assert!(matches!(symlink(&folder, b"d", b"x", &attributes), Err(Obstacle::InTheWay(_))));
        for target in [&b""[..], b"a\0b", &[b'x'; LINK_BYTES_MAX + 1]] {
            assert!(matches!(symlink(&folder, b"e", target, &attributes), Err(Obstacle::Unheld(_))));
        }
        let mut left = names(root.path());
        left.sort();
        assert_eq!(left, ["d", "l"]);
    }
}
