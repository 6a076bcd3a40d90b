//! Folders of file systems that fold names: exFAT, FAT, NTFS, SMB, or ext4 with the flag `casefold` take two names for one file, and
//! some store another name than the requested one.
//!
//! In such a folder a name that leads to something is used only if the folder lists the exact bytes of the name; a new file is looked for
//! in the folder's list afterwards. A probe finds out if a folder folds names, once for each file system of an export (and once for each
//! value of the flag, which folders inherit); elsewhere names cost nothing more.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::{Errno, Result};

use crate::temporary;
use crate::tree::obstacle::{Obstacle, folded};

/// Names of one folder that are remembered, eight bytes each. In a larger folder that folds names each look reads the folder.
const NAMES_MAX: usize = 1 << 20;
/// The flag `casefold` of a folder, as the kernel numbers it.
const CASEFOLD: u32 = 0x4000_0000;

/// The file systems that an export met: device and flag, and a mark if they fold names.
#[derive(Default)]
pub(crate) struct FileSystems(Mutex<HashMap<(u64, u32), bool>>);

/// The names of one folder.
#[derive(Default)]
pub(crate) struct Names {
    folds: OnceLock<bool>,
    /// Names that the folder had when it was first read, as hashes.
    found: OnceLock<Found>,
    /// Held from the look for a name until it is used: two names of this export may be one.
    taking: Mutex<()>,
}

struct Found {
    hasher: RandomState,
    hashes: HashSet<u64>,
    is_complete: bool,
}

impl FileSystems {
    /// Returns true if the file system of `folder` folds names. Also if a probe is not possible: then the names are looked at, which
    /// needs no permission to write.
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

/// Creates a file, looks for it under other names, and removes it.
fn probe(folder: &OwnedFd) -> Result<bool> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = |name: &str| rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o600));
    let made = temporary::create(|name| {
        let (composed, others) = temporary::probe_names(name);
        match create(&composed) {
            Ok(_) => Ok((composed, others.to_vec())),
            // The file system takes ASCII only, or only names of another encoding.
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
    /// Returns true if `folder`, whose names these are, folds names.
    fn fold(&self, folder: &OwnedFd, file_systems: &FileSystems) -> bool {
        *self.folds.get_or_init(|| file_systems.folds(folder))
    }

    /// Checks before `name` is used that it leads to nothing, or to the file or folder that is listed with these very bytes. In a
    /// folder that folds names no other name is taken until the guard is dropped.
    ///
    /// # Errors
    /// It is the name of another file.
    pub(crate) fn take(
        &self,
        folder: &OwnedFd,
        name: &[u8],
        file_systems: &FileSystems,
    ) -> std::result::Result<Option<MutexGuard<'_, ()>>, Obstacle> {
        if !self.fold(folder, file_systems) {
            return Ok(None);
        }
        let guard = self.taking.lock();
        match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(Some(guard)),
            Err(error) => Err(error.into()),
            Ok(_) if self.lists(folder, name)? => Ok(Some(guard)),
            Ok(_) => Err(folded()),
        }
    }

    /// Returns true if `folder` lists `name`, which leads to something in it, in exactly these bytes.
    pub(crate) fn is_exact(&self, folder: &OwnedFd, name: &[u8], file_systems: &FileSystems) -> bool {
        !self.fold(folder, file_systems) || self.lists(folder, name).unwrap_or(false)
    }

    /// Those of `names`, which were made in `folder`, that the folder does not list: it stored others in their place.
    pub(crate) fn missing<'n>(
        &self,
        folder: &OwnedFd,
        names: impl Iterator<Item = &'n [u8]>,
        file_systems: &FileSystems,
    ) -> Result<HashSet<&'n [u8]>> {
        if !self.fold(folder, file_systems) {
            return Ok(HashSet::new());
        }
        let mut missing: HashSet<&[u8]> = names.collect();
        each_name(folder, |name| _ = missing.remove(name))?;
        Ok(missing)
    }

    /// Returns true if `folder` had `name` when it was first read. Names that this export makes later are not among them: it makes
    /// each once.
    fn lists(&self, folder: &OwnedFd, name: &[u8]) -> Result<bool> {
        let found = match self.found.get() {
            Some(found) => found,
            None => {
                let found = Found::read(folder)?;
                self.found.get_or_init(|| found)
            }
        };
        if found.is_complete {
            return Ok(found.hashes.contains(&found.hasher.hash_one(name)));
        }
        let mut is_listed = false;
        each_name(folder, |listed| is_listed |= listed == name)?;
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

    /// A folder that is taken for one of a file system that folds names.
    fn folding(path: &std::path::Path) -> (OwnedFd, Names, FileSystems) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).unwrap();
        let names = Names::default();
        names.folds.set(true).unwrap();
        (folder, names, FileSystems::default())
    }

    #[test]
    fn this_file_system_tells_names_apart_and_the_probe_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (folder, ..) = folding(root.path());
        let systems = FileSystems::default();
        assert!(!systems.folds(&folder) && !systems.folds(&folder));
        assert_eq!(systems.0.lock().len(), 1);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_name_that_leads_to_another_file_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("before"), b"x").unwrap();
        let (folder, names, systems) = folding(root.path());
        assert!(names.take(&folder, b"before", &systems).is_ok(), "it is listed");
        assert!(names.take(&folder, b"new", &systems).is_ok(), "it leads to nothing");
        assert!(names.is_exact(&folder, b"before", &systems));
        // As if the file system took `new` for the name of a file that this export made after the first look.
        fs::write(root.path().join("new"), b"x").unwrap();
        assert!(matches!(names.take(&folder, b"new", &systems), Err(Obstacle::Unheld(_))));
        let missing = names.missing(&folder, [&b"new"[..], b"altered"].into_iter(), &systems).unwrap();
        assert_eq!(missing, HashSet::from([&b"altered"[..]]));
    }
}
