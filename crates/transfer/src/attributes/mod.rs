//! The attributes of a file that a store keeps.
//!
//! The mode is user metadata `mode`: octal, with the type of the file, as rclone writes it. The modification time is the object's own,
//! to the nanosecond; before 1970 it is user metadata `mtime`. The target of a symlink is the value. Owner and group are not kept.
//!
//! An object without `mode` is a file, or a folder if it is empty and its key has a final `/`.
//!
//! `extras` is everything else that an object has: content type, other metadata, deadline.

pub(crate) mod extras;

use bytes::Bytes;
use rustix::fs::{FileType, Stat};
use shoal_client::{Metadata, ObjectAttributes};

/// Name of the user metadata for the mode.
const MODE: &str = "mode";
/// Name of the user metadata for a modification time before 1970.
const MTIME: &str = "mtime";

/// The kinds of files that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder: its key has a final `/`.
    Folder,
    /// A symlink: the value is its target.
    Symlink,
}

/// Kind, permissions and modification time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAttributes {
    /// File, folder or symlink.
    pub kind: FileKind,
    /// The twelve permission bits, if known.
    pub permissions: Option<u32>,
    /// Modification time in nanoseconds since the Unix epoch; negative before it.
    pub mtime_ns: i128,
}

impl FileAttributes {
    /// Of a file on disk.
    ///
    /// # Errors
    /// The name of its type, if the store does not keep such files.
    pub(crate) fn of(stat: &Stat) -> Result<Self, &'static str> {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Folder,
            FileType::Symlink => FileKind::Symlink,
            FileType::Fifo => return Err("fifo"),
            FileType::Socket => return Err("socket"),
            FileType::CharacterDevice | FileType::BlockDevice => return Err("device"),
            _ => return Err("file of unknown type"),
        };
        let mtime_ns = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
        Ok(Self { kind, permissions: Some(stat.st_mode & 0o7777), mtime_ns })
    }

    /// Of an object.
    ///
    /// # Errors
    /// The reason why it cannot become a file.
    pub fn of_object(key: &[u8], info: &ObjectAttributes) -> Result<Self, String> {
        let mtime_ns = find(info, MTIME)
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| i128::from(info.modified_ns));
        let is_named_folder = key.ends_with(b"/");
        let Some(mode) = find(info, MODE).and_then(|text| u32::from_str_radix(text, 8).ok()) else {
            let kind = if is_named_folder && info.bytes == 0 { FileKind::Folder } else { FileKind::File };
            return Ok(Self { kind, permissions: None, mtime_ns });
        };
        let kind = match FileType::from_raw_mode(mode) {
            FileType::Directory => FileKind::Folder,
            FileType::Symlink => FileKind::Symlink,
            // Other programs store only the permissions.
            FileType::RegularFile => FileKind::File,
            FileType::Unknown if is_named_folder => FileKind::Folder,
            FileType::Unknown => FileKind::File,
            _ => return Err(format!("its mode {mode:o} is not that of a file, a folder or a symlink")),
        };
        if (kind == FileKind::Folder) != is_named_folder {
            return Err("its mode and its key disagree whether it is a folder".into());
        }
        Ok(Self { kind, permissions: Some(mode & 0o7777), mtime_ns })
    }

    /// The metadata and modification time of an object with these attributes.
    pub(crate) fn for_object(&self) -> (Metadata, Option<u64>) {
        let mut user = Vec::new();
        if let Some(permissions) = self.permissions {
            let kind = match self.kind {
                FileKind::File => FileType::RegularFile,
                FileKind::Folder => FileType::Directory,
                FileKind::Symlink => FileType::Symlink,
            };
            user.push((MODE.to_owned(), Bytes::from(format!("{:o}", kind.as_raw_mode() | permissions))));
        }
        let modified_ns = u64::try_from(self.mtime_ns).ok();
        if modified_ns.is_none() {
            user.push((MTIME.to_owned(), Bytes::from(self.mtime_ns.to_string())));
        }
        // The object's own time cannot be before 1970.
        (Metadata { user, ..Metadata::default() }, Some(modified_ns.unwrap_or(0)))
    }

    /// The permissions to restore. Set-user-id and set-group-id of a file are dropped: the owner is not kept, so they would grant
    /// the rights of the exporting user.
    pub(crate) fn permissions_to_restore(&self) -> Option<u32> {
        let mask = if self.kind == FileKind::Folder { 0o3777 } else { 0o0777 };
        self.permissions.map(|permissions| permissions & mask)
    }
}

fn find<'a>(info: &'a ObjectAttributes, name: &str) -> Option<&'a str> {
    let (_, value) = info.metadata.user.iter().find(|(own, _)| own == name)?;
    std::str::from_utf8(value).ok()
}

#[cfg(test)]
mod tests {
    use shoal_client::Lsn;

    use super::*;

    fn info(attributes: &FileAttributes, bytes: u64) -> ObjectAttributes {
        let (metadata, modified_ns) = attributes.for_object();
        ObjectAttributes {
            version: Lsn(1),
            bytes,
            modified_ns: modified_ns.unwrap(),
            metadata,
            ..ObjectAttributes::default()
        }
    }

    #[test]
    fn attributes_survive_a_round_trip() {
        for (kind, key) in [(FileKind::File, "a"), (FileKind::Folder, "a/"), (FileKind::Symlink, "a")] {
            for mtime_ns in
                [0, 1, 1_700_000_000_123_456_789, -1, -62_000_000_000_000_000_001, i128::from(u64::MAX)]
            {
                for permissions in [0, 0o644, 0o7777] {
                    let attributes = FileAttributes { kind, permissions: Some(permissions), mtime_ns };
                    let back = FileAttributes::of_object(key.as_bytes(), &info(&attributes, 0));
                    assert_eq!(back, Ok(attributes));
                }
            }
        }
    }

    #[test]
    fn objects_of_other_programs_become_files_and_folders() {
        let plain = |mode: &str, bytes| ObjectAttributes {
            version: Lsn(1),
            bytes,
            modified_ns: 5,
            metadata: Metadata {
                user: vec![("mode".into(), Bytes::copy_from_slice(mode.as_bytes()))],
                ..Metadata::default()
            },
            ..ObjectAttributes::default()
        };
        let kind = |key: &str, info: &ObjectAttributes| {
            FileAttributes::of_object(key.as_bytes(), info).map(|it| it.kind)
        };
        let none = ObjectAttributes { bytes: 3, ..ObjectAttributes::default() };
        assert_eq!(kind("a", &none), Ok(FileKind::File));
        assert_eq!(kind("a/", &ObjectAttributes::default()), Ok(FileKind::Folder));
        assert_eq!(kind("a/", &none), Ok(FileKind::File), "refused later, for its name");
        assert_eq!(kind("a", &plain("644", 3)), Ok(FileKind::File));
        assert_eq!(kind("a", &plain("rw-r--r--", 3)), Ok(FileKind::File));
        assert!(kind("a", &plain("20644", 0)).is_err(), "a device");
        assert!(kind("a", &plain("40755", 0)).is_err(), "a folder whose key is that of a file");
        assert!(kind("a/", &plain("100644", 0)).is_err());
    }

    #[test]
    fn a_restored_file_grants_no_rights_of_the_exporting_user() {
        let file = FileAttributes { kind: FileKind::File, permissions: Some(0o6755), mtime_ns: 0 };
        assert_eq!(file.permissions_to_restore(), Some(0o755));
        let folder = FileAttributes { kind: FileKind::Folder, permissions: Some(0o3775), mtime_ns: 0 };
        assert_eq!(folder.permissions_to_restore(), Some(0o3775));
    }
}
