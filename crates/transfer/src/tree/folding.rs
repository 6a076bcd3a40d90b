//! File systems that fold names: exFAT, FAT, NTFS, SMB, and ext4 with the flag `casefold` treat two names as one file, and some store
//! another name than the requested one.
//!
//! In such a folder an existing name is used only if the folder lists exactly its bytes, and new names are looked up in the folder's list
//! afterwards. A probe detects folding once for each file system of an export and each value of the flag, which folders inherit. Other
//! file systems have no extra cost.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::{Errno, Result};

use crate::tree::obstacle::{Obstacle, folded};
use crate::tree::temporary;

/// Maximum number of remembered names of a folder, eight bytes each. In a larger folder each lookup reads the folder.
const NAMES_MAX: usize = 1 << 20;
/// The flag `casefold` of a folder, as the kernel numbers it.
const CASEFOLD: u32 = 0x4000_0000;

/// Whether the file systems of an export fold names, by device and flag.
#[derive(Default)]
pub(crate) struct FileSystems(Mutex<HashMap<(u64, u32), bool>>);

/// The names in an open folder.
pub(crate) struct Names {
    pub(crate) folder: OwnedFd,
    file_systems: Arc<FileSystems>,
    folds: OnceLock<bool>,
    /// Hashes of the names at the first read of the folder.
    found: OnceLock<Found>,
    /// Locked from the lookup of a name until it is used, because two names of this export may be one.
    taking: Mutex<()>,
}

struct Found {
    hasher: RandomState,
    hashes: HashSet<u64>,
    is_complete: bool,
}

impl FileSystems {
    /// Returns true if the file system of `folder` folds names, or cannot be probed: looking names up needs no permission to write.
    fn folds(&self, folder: &OwnedFd) -> bool {
        let Ok(stat) = rustix::fs::fstat(folder) else { return true };
        let flags = rustix::fs::ioctl_getflags(folder).map_or(0, |flags| flags.bits() & CASEFOLD);
        let key = (stat.st_dev, flags);
        if let Some(&folds) = self.0.lock().get(&key) {
            return folds;
        }
        let Ok(folds) = probe(folder) else { return true };
        self.0.lock().insert(key, folds);
        folds
    }
}

/// Creates a file, looks it up under other names, and removes it.
fn probe(folder: &OwnedFd) -> Result<bool> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = |name: &str| rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o600));
    let made = temporary::create(|name| {
        let (composed, others) = temporary::probe_names(name);
        match create(&composed) {
            Ok(_) => Ok((composed, others.to_vec())),
            // The file system accepts only ASCII, or another encoding.
            Err(Errno::INVAL | Errno::ILSEQ) => {
                create(name).map(|_| (name.to_owned(), vec![name.to_ascii_uppercase(), format!("{name}.")]))
            }
            Err(error) => Err(error),
        }
    });
    let (_, (name, others)) = made?;
    let folds =
        others.iter().any(|other| rustix::fs::statat(folder, other, AtFlags::SYMLINK_NOFOLLOW).is_ok());
    rustix::fs::unlinkat(folder, &name, AtFlags::empty())?;
    Ok(folds)
}

impl Names {
    pub(crate) fn new(folder: OwnedFd, file_systems: Arc<FileSystems>) -> Self {
        let (folds, found) = (OnceLock::new(), OnceLock::new());
        Self { folder, file_systems, folds, found, taking: Mutex::default() }
    }

    /// Returns true if the folder folds names.
    fn fold(&self) -> bool {
        *self.folds.get_or_init(|| self.file_systems.folds(&self.folder))
    }

    /// Checks, before `name` is used, that it is free, or listed with exactly these bytes. Keep the guard until it is used: in a folder
    /// that folds names it blocks other names.
    ///
    /// # Errors
    /// The file system treats it as the name of another file.
    pub(crate) fn take(&self, name: &[u8]) -> std::result::Result<Option<MutexGuard<'_, ()>>, Obstacle> {
        if !self.fold() {
            return Ok(None);
        }
        let guard = self.taking.lock();
        match rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(Some(guard)),
            Err(error) => Err(error.into()),
            Ok(_) if self.lists(name)? => Ok(Some(guard)),
            Ok(_) => Err(folded()),
        }
    }

    /// Returns true if the existing file `name` is listed with exactly these bytes.
    pub(crate) fn is_exact(&self, name: &[u8]) -> bool {
        !self.fold() || self.lists(name).unwrap_or(false)
    }

    /// Those of the new names `names` that the folder does not list: the file system stored them in another form.
    pub(crate) fn missing<'n>(&self, names: impl Iterator<Item = &'n [u8]>) -> Result<HashSet<&'n [u8]>> {
        if !self.fold() {
            return Ok(HashSet::new());
        }
        let mut missing: HashSet<&[u8]> = names.collect();
        each_name(&self.folder, |name| _ = missing.remove(name))?;
        Ok(missing)
    }

    /// Returns true if the folder had `name` at the first read. Later names of this export are not included: it makes each once.
    fn lists(&self, name: &[u8]) -> Result<bool> {
        let found = match self.found.get() {
            Some(found) => found,
            None => {
                let found = Found::read(&self.folder)?;
                self.found.get_or_init(|| found)
            }
        };
        if found.is_complete {
            return Ok(found.hashes.contains(&found.hasher.hash_one(name)));
        }
        let mut is_listed = false;
        each_name(&self.folder, |listed| is_listed |= listed == name)?;
        Ok(is_listed)
    }
}

impl Found {
    fn read(folder: &OwnedFd) -> Result<Self> {
        let mut found = Self { hasher: RandomState::new(), hashes: HashSet::new(), is_complete: true };
        each_name(folder, |name| {
            if found.hashes.len() < NAMES_MAX {
                found.hashes.insert(found.hasher.hash_one(name));
            } else {
                found.is_complete = false;
            }
        })?;
        Ok(found)
    }
}

fn each_name(folder: &OwnedFd, mut see: impl FnMut(&[u8])) -> Result<()> {
    for entry in Dir::read_from(folder)? {
        see(entry?.file_name().to_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A folder that counts as one of a file system that folds names.
    fn folding(path: &std::path::Path) -> Names {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).unwrap();
        let names = Names::new(folder, Arc::default());
        names.folds.set(true).unwrap();
        names
    }

    #[test]
    fn this_file_system_does_not_fold_names_and_the_probe_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let Names { folder, .. } = folding(root.path());
        let systems = FileSystems::default();
        assert!(!systems.folds(&folder) && !systems.folds(&folder));
        assert_eq!(systems.0.lock().len(), 1);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_name_of_another_file_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("before"), b"x").unwrap();
        let names = folding(root.path());
        assert!(names.take(b"before").is_ok(), "it is listed");
        assert!(names.take(b"new").is_ok(), "it is free");
        assert!(names.is_exact(b"before"));
        // As if `new` were another name of a file that this export made after the first read.
        fs::write(root.path().join("new"), b"x").unwrap();
        assert!(matches!(names.take(b"new"), Err(Obstacle::Unheld(_))));
        let missing = names.missing([&b"new"[..], b"altered"].into_iter()).unwrap();
        assert_eq!(missing, HashSet::from([&b"altered"[..]]));
    }
}
