//! Other names of the same bytes: a loop device writes to a file, a partition to its disk, a mapped device to other devices.
//!
//! The kernel excludes a second opening of one block device, and a lock a second opening of one file. Neither excludes a store on a
//! loop device from a store in the file under it. So an opening of a block device also locks every file under it, and an opening of a
//! file looks for a loop device over it that is in use. Both read sysfs, which names files as they were opened: a file that was deleted
//! or that this process does not see under its name is passed over.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Devices looked at under one device, at most: an array may have some hundred.
const DEVICES_MAX: usize = 4096;

/// Locks `file` for one writer, or for readers.
pub(crate) fn lock(file: &File, read_only: bool) -> Result<(), TryLockError> {
    if read_only { file.try_lock_shared() } else { file.try_lock() }
}

/// The way to a file or device that is in use, for the end of an error message.
pub(crate) fn words(through: Option<&Path>) -> String {
    through.map_or(String::new(), |path| format!(" through {}, which has the same bytes", path.display()))
}

/// Locks the files under the open block device `device`, and under all devices that it is made of.
///
/// # Errors
/// The file that another process has locked.
pub(crate) fn lock_files(device: &File, read_only: bool) -> Result<Vec<File>, PathBuf> {
    let mut locked = Vec::new();
    let mut devices: Vec<PathBuf> = folder_of(device).into_iter().collect();
    let mut next = 0;
    while let Some(folder) = devices.get(next).cloned() {
        next += 1;
        let mut found = parts_of(&folder);
        let opened = backing_file(&folder).and_then(|path| Some((File::open(&path).ok()?, path)));
        if let Some((file, path)) = opened {
            match lock(&file, read_only) {
                Err(TryLockError::WouldBlock) => return Err(path),
                // A file system without locks: there is none to wait for.
                Err(TryLockError::Error(error)) => {
                    tracing::debug!(path = %path.display(), %error, "the file under the device cannot be locked");
                }
                Ok(()) => {}
            }
            found.extend(folder_of(&file));
            locked.push(file);
        }
        found.retain(|folder| !devices.contains(folder));
        devices.extend(found);
        devices.truncate(DEVICES_MAX);
    }
    Ok(locked)
}

/// The loop device over the open file `file` that something uses: a mounted file system, a store.
pub(crate) fn loop_device_in_use(file: &File) -> Option<PathBuf> {
    let found = file.metadata().ok()?;
    let is_over = |folder: &PathBuf| {
        let backing = backing_file(folder).and_then(|path| fs::metadata(path).ok());
        backing.is_some_and(|backing| (backing.dev(), backing.ino()) == (found.dev(), found.ino()))
    };
    let devices = fs::read_dir("/sys/block").ok()?.flatten().map(|entry| entry.path());
    let mut over =
        devices.filter(is_over).filter_map(|folder| Some(Path::new("/dev").join(folder.file_name()?)));
    over.find(|device| {
        // The kernel refuses an exclusive opening of a device that is mounted or that another process has exclusively.
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device);
        opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
    })
}

/// The folder of sysfs about a block device.
fn folder_of(device: &File) -> Option<PathBuf> {
    let metadata = device.metadata().ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let number = metadata.rdev();
    let name = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    fs::canonicalize(name).ok()
}

/// The devices that a device is a part of or consists of.
fn parts_of(folder: &Path) -> Vec<PathBuf> {
    let disk = folder.join("partition").exists().then(|| folder.parent().map(Path::to_owned)).flatten();
    let slaves = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
    disk.into_iter().chain(slaves.filter_map(|slave| fs::canonicalize(slave.path()).ok())).collect()
}

/// The file under a loop device.
fn backing_file(folder: &Path) -> Option<PathBuf> {
    let mut name = fs::read(folder.join("loop/backing_file")).ok()?;
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    let path = PathBuf::from(OsString::from_vec(name));
    path.is_absolute().then_some(path)
}
