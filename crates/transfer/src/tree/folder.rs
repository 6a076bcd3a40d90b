//! The open folders below the target of an export.
//!
//! Every folder is opened relative to its parent's descriptor and never through a symlink, so nothing is written outside of the target,
//! for any keys and any content of the target. Dropping the last reference to a folder restores its mode and time; a folder keeps its
//! parent open, so the deepest come first.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use crate::attributes::FileAttributes;
use crate::report::TransferReport;
use crate::text::show_key;
use crate::tree::folding::{FileSystems, Names};
use crate::tree::obstacle::{Obstacle, altered, name_obstacle};

/// A folder below the target, or the target itself.
pub struct Folder {
    shown: String,
    pub(crate) names: Names,
    restore: Mutex<Restore>,
    shared: Arc<Shared>,
    /// Dropped after this folder is restored.
    _parent: Option<Arc<Folder>>,
}

struct Shared {
    report: Arc<TransferReport>,
    open: AtomicUsize,
    file_systems: Arc<FileSystems>,
}

/// The attributes that the folder gets on drop.
#[derive(Default)]
struct Restore {
    permissions: Option<u32>,
    mtime_ns: Option<i128>,
}

impl Folder {
    /// The target folder. It and its parents are created if they do not exist.
    ///
    /// # Errors
    /// As the file system.
    pub fn target(path: &Path, report: Arc<TransferReport>) -> io::Result<Arc<Self>> {
        fs::create_dir_all(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Mode::empty())?;
        let shared = Arc::new(Shared { report, open: AtomicUsize::new(1), file_systems: Arc::default() });
        Ok(Self::open(descriptor, String::new(), shared, None))
    }

    fn open(descriptor: OwnedFd, shown: String, shared: Arc<Shared>, parent: Option<Arc<Self>>) -> Arc<Self> {
        let names = Names::new(descriptor, shared.file_systems.clone());
        Arc::new(Self { shown, names, restore: Mutex::default(), shared, _parent: parent })
    }

    /// The folder `name` in this one, created if it does not exist. With `will_be_restored` other users cannot read it until its mode
    /// is restored.
    pub(crate) fn child(
        self: &Arc<Self>,
        name: &[u8],
        will_be_restored: bool,
    ) -> Result<Arc<Self>, Obstacle> {
        let own_name = OsStr::from_bytes(name);
        let mode = if will_be_restored { 0o700 } else { 0o777 };
        let taken = self.names.take(name)?;
        let is_new = match rustix::fs::mkdirat(self.descriptor(), own_name, Mode::from_raw_mode(mode)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(name_obstacle(error)),
        };
        drop(taken);
        if is_new && !self.names.missing(std::iter::once(name))?.is_empty() {
            // Best effort: the returned error is more useful.
            let _ = rustix::fs::unlinkat(self.descriptor(), own_name, AtFlags::REMOVEDIR);
            return Err(altered());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = match rustix::fs::openat(self.descriptor(), own_name, flags, Mode::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(self.obstacle(name)),
            Err(error) => return Err(error.into()),
        };
        self.shared.open.fetch_add(1, Ordering::Relaxed);
        let shown = format!("{}{}/", self.shown, show_key(name));
        let child = Self::open(descriptor, shown, self.shared.clone(), Some(self.clone()));
        if !is_new {
            child.make_writable()?;
        }
        Ok(child)
    }

    /// An earlier export may have left the folder read-only, as in the store.
    fn make_writable(&self) -> Result<(), Obstacle> {
        let permissions = rustix::fs::fstat(self.descriptor())?.st_mode & 0o7777;
        if permissions & 0o300 != 0o300 {
            rustix::fs::fchmod(self.descriptor(), Mode::from_raw_mode(permissions | 0o700))?;
            self.restore.lock().permissions = Some(permissions);
        }
        Ok(())
    }

    fn obstacle(&self, name: &[u8]) -> Obstacle {
        let stat = rustix::fs::statat(self.descriptor(), OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW);
        match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Symlink) => Obstacle::Unheld(format!(
                "{}{} is a symlink; nothing is written through one",
                self.shown,
                show_key(name)
            )),
            _ => Obstacle::InTheWay("a part of its name is a file"),
        }
    }

    /// Sets the attributes that the folder gets on drop.
    pub(crate) fn restore_later(&self, attributes: &FileAttributes) {
        let mut restore = self.restore.lock();
        restore.mtime_ns = Some(attributes.mtime_ns);
        if let Some(permissions) = attributes.permissions_to_restore() {
            restore.permissions = Some(permissions);
        }
    }

    /// The descriptor, for operations relative to the folder.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.names.folder
    }

    fn apply(&self, restore: &Restore) -> rustix::io::Result<()> {
        if let Some(mtime_ns) = restore.mtime_ns {
            rustix::fs::futimens(self.descriptor(), &timestamps(mtime_ns))?;
        }
        if let Some(permissions) = restore.permissions {
            rustix::fs::fchmod(self.descriptor(), Mode::from_raw_mode(permissions))?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let restore = std::mem::take(&mut *self.restore.lock());
        if let Err(error) = self.apply(&restore) {
            self.shared.report.failed(&self.shown, &format!("its mode or time cannot be restored: {error}"));
        }
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The modification time for the kernel; the access time does not change.
pub(crate) fn timestamps(mtime_ns: i128) -> Timestamps {
    const SECOND: i128 = 1_000_000_000;
    let seconds = mtime_ns.div_euclid(SECOND).clamp(i64::MIN.into(), i64::MAX.into());
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        // Both casts are exact: the first is clamped, the second is below 10^9.
        last_modification: Timespec { tv_sec: seconds as i64, tv_nsec: mtime_ns.rem_euclid(SECOND) as _ },
    }
}

/// The open folders from the target to the current one. Keys are in order, so a folder that the planner leaves gets no further entries
/// and is dropped; workers may still write into it.
pub(crate) struct OpenPath {
    target: Arc<Folder>,
    levels: Vec<(Vec<u8>, Arc<Folder>)>,
}

impl OpenPath {
    pub(crate) fn new(target: Arc<Folder>) -> Self {
        Self { target, levels: Vec::new() }
    }

    /// The folder with these names below the target.
    pub(crate) fn enter(
        &mut self,
        components: &[&[u8]],
        will_be_restored: bool,
    ) -> Result<Arc<Folder>, Obstacle> {
        let common = self
            .levels
            .iter()
            .zip(components)
            .take_while(|((name, _), wanted)| name[..] == ***wanted)
            .count();
        self.levels.truncate(common);
        for (depth, name) in components.iter().enumerate().skip(common) {
            let is_last = depth + 1 == components.len();
            let child = self.here().child(name, will_be_restored && is_last)?;
            self.levels.push((name.to_vec(), child));
        }
        Ok(self.here().clone())
    }

    /// The number of open folders of this export.
    pub(crate) fn count_open(&self) -> usize {
        self.target.shared.open.load(Ordering::Relaxed)
    }

    /// Returns true if all open folders are on this path, so waiting does not close any.
    pub(crate) fn holds_all_open(&self) -> bool {
        self.count_open() <= self.levels.len() + 1
    }

    fn here(&self) -> &Arc<Folder> {
        self.levels.last().map_or(&self.target, |(_, folder)| folder)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;
    use crate::attributes::FileKind;
    use crate::report::tests::report;

    #[test]
    fn folders_are_restored_on_drop_deepest_first() {
        let root = tempfile::tempdir().unwrap();
        let mut open = OpenPath::new(Folder::target(&root.path().join("new/target"), report()).unwrap());
        let attributes =
            FileAttributes { kind: FileKind::Folder, permissions: Some(0o555), mtime_ns: 1_000_000_001 };
        open.enter(&[b"a"], true).unwrap().restore_later(&attributes);
        let inner = open.enter(&[b"a", b"b"], true).unwrap();
        inner.restore_later(&attributes);
        let path = root.path().join("new/target/a");
        open.enter(&[b"c"], false).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
            0o700,
            "a worker still writes below it"
        );
        assert_eq!(open.count_open(), 4);
        fs::write(path.join("b/file"), b"x").unwrap();
        drop(inner);
        for path in [&path, &path.join("b")] {
            let metadata = fs::metadata(path).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, 0o555);
            assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (1, 1));
        }
        assert_eq!(open.count_open(), 2);
        // A second export finds the read-only folder, writes into it and leaves it as it was.
        let folder = open.enter(&[b"a"], false).unwrap();
        rustix::fs::mkdirat(folder.descriptor(), "more", Mode::from_raw_mode(0o755)).unwrap();
        drop((open, folder));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o555);
    }

    #[test]
    fn nothing_is_entered_through_symlinks_and_files() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("target");
        fs::create_dir_all(&target).unwrap();
        symlink(root.path(), target.join("link")).unwrap();
        symlink("nowhere", target.join("dangling")).unwrap();
        fs::write(target.join("file"), b"").unwrap();
        let mut open = OpenPath::new(Folder::target(&target, report()).unwrap());
        for name in ["link", "dangling"] {
            let result = open.enter(&[name.as_bytes(), b"x"], false);
            assert!(matches!(result, Err(Obstacle::Unheld(_))), "{name}");
        }
        assert!(matches!(open.enter(&[b"file", b"x"], false), Err(Obstacle::InTheWay(_))));
        assert!(!root.path().join("x").exists() && !root.path().join("nowhere").exists());
    }

    #[test]
    fn times_before_1970_are_whole_seconds_down_and_nanoseconds_up() {
        let time = timestamps(-1).last_modification;
        assert_eq!((time.tv_sec, time.tv_nsec), (-1, 999_999_999));
    }
}
