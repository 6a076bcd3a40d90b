//! A folder as a bucket, on another disk or a network file system.
//!
//! An object is a file. It is written under another name in `.unfinished`, flushed, and linked to its name, which fails if the name exists:
//! create-if-absent. A compare-and-swap holds the lock of `.lock` while it compares and renames. Each change of a folder is flushed before
//! the answer.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use shoal_base::Entropy;
use shoal_base::hash::hash64;

use super::requests::{Attempt, BucketEntry, BucketRequests, FetchedObject, RequestFailure, VersionTag};

/// Files that are being written.
const UNFINISHED: &str = ".unfinished";
const LOCK: &str = ".lock";
/// An unfinished file that nobody wrote to for this time is one of a process that crashed.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// A folder.
pub(super) struct FolderBucket(Arc<Inner>);

struct Inner {
    root: PathBuf,
    dice: Arc<dyn Entropy>,
    /// The folder of unfinished files is there, and has been cleaned.
    is_ready: AtomicBool,
}

type Outcome<T> = Result<T, RequestFailure>;

impl FolderBucket {
    /// The folder `root`. It may come later, as a disk that is not mounted yet, and it is never made: that would fill another disk.
    pub(super) fn new(root: &Path, dice: Arc<dyn Entropy>) -> Self {
        let is_ready = AtomicBool::new(false);
        Self(Arc::new(Inner { root: root.to_owned(), dice, is_ready }))
    }

    /// Runs `work` on a thread that may block.
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Outcome<T> + Send + 'static,
    ) -> Attempt<'static, T> {
        let inner = Arc::clone(&self.0);
        async move {
            let done = tokio::task::spawn_blocking(move || inner.ready().and_then(|()| work(&inner))).await;
            done.unwrap_or_else(|error| Err(RequestFailure::Unknown(error.to_string())))
        }
        .boxed()
    }
}

impl Inner {
    /// Checks that the folder exists: without it nothing would seem to be archived.
    fn ready(&self) -> Outcome<()> {
        let root = &self.root;
        let refused = |error: std::io::Error| {
            RequestFailure::Refused(format!(
                "{}: {error}; the folder of an archive must exist",
                root.display()
            ))
        };
        if !fs::metadata(root).map_err(refused)?.is_dir() {
            return Err(RequestFailure::Refused(format!("{} is not a folder", root.display())));
        }
        // Several threads may do it at once.
        if self.is_ready.load(Ordering::Acquire) {
            return Ok(());
        }
        let unfinished = root.join(UNFINISHED);
        match fs::create_dir(&unfinished) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(refused(error)),
            _ => {}
        }
        for file in fs::read_dir(&unfinished).map_err(refused)?.filter_map(Result::ok) {
            let age =
                file.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
            if age.is_some_and(|age| age > ABANDONED_AFTER) {
                // Somebody else may be quicker.
                let _ = fs::remove_file(file.path());
            }
        }
        self.is_ready.store(true, Ordering::Release);
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        assert!(name.split('/').all(|part| !part.starts_with('.')), "a name of the archive: {name}");
        self.root.join(name)
    }

    /// Writes and flushes `bytes` under a name that nobody else uses.
    fn unfinished(&self, bytes: &[u8]) -> Outcome<PathBuf> {
        let path = self.root.join(UNFINISHED).join(format!("{:016x}", self.dice.next_u64()));
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().map(|()| path.clone()).map_err(|error| {
            let _ = fs::remove_file(&path);
            match error.kind() {
                ErrorKind::NotFound => {
                    self.is_ready.store(false, Ordering::Release);
                    RequestFailure::Refused(format!(
                        "{}: the folder of the archive is gone",
                        self.root.display()
                    ))
                }
                _ => failure(&error),
            }
        })
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Outcome<()> {
        let (from, to) = (self.unfinished(bytes)?, self.path(name));
        let linked = make_folders(&self.root, &to).and_then(|()| link_new(&from, &to));
        let _ = fs::remove_file(&from);
        match linked {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(RequestFailure::Conflict),
            Err(error) => Err(failure(&error)),
            // The link may be lost before its folder is flushed: the outcome is unknown.
            Ok(()) => sync_folder_of(&to).map_err(|error| RequestFailure::Unknown(error.to_string())),
        }
    }

    fn replace(&self, name: &str, bytes: &[u8], tag: &VersionTag) -> Outcome<VersionTag> {
        let to = self.path(name);
        let lock = File::options().create(true).truncate(false).write(true).open(self.root.join(LOCK));
        let lock = lock.map_err(|error| failure(&error))?;
        lock.lock().map_err(|error| failure(&error))?;
        let found = match fs::read(&to) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(RequestFailure::Conflict),
            Err(error) => return Err(failure(&error)),
        };
        if tag_of(&found) != *tag {
            return Err(RequestFailure::Conflict);
        }
        let from = self.unfinished(bytes)?;
        fs::rename(&from, &to).map_err(|error| failure(&error))?;
        sync_folder_of(&to).map_err(|error| RequestFailure::Unknown(error.to_string()))?;
        Ok(tag_of(bytes))
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Outcome<FetchedObject> {
        let read = || {
            let mut file = File::open(self.path(name))?;
            let object_bytes = file.metadata()?.len();
            let range = range.clone().unwrap_or(0..object_bytes);
            let (start, end) = (range.start.min(object_bytes), range.end.min(object_bytes));
            let mut bytes = Vec::with_capacity(end.saturating_sub(start) as usize);
            file.seek(SeekFrom::Start(start))?;
            file.take(end.saturating_sub(start)).read_to_end(&mut bytes)?;
            Ok((bytes, object_bytes))
        };
        let (bytes, object_bytes) = read().map_err(|error| failure(&error))?;
        let tag = if range.is_none() { tag_of(&bytes) } else { VersionTag::default() };
        Ok(FetchedObject { bytes: bytes.into(), object_bytes, tag })
    }

    fn delete(&self, name: &str) -> Outcome<()> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failure(&error)),
            Ok(()) => {}
        }
        sync_folder_of(&path).map_err(|error| failure(&error))?;
        // Empty folders go, too. A create that meets that is repeated.
        let folders = path.ancestors().skip(1).take_while(|folder| *folder != self.root);
        folders.take_while(|folder| fs::remove_dir(folder).is_ok()).for_each(drop);
        Ok(())
    }

    fn list(&self, folder: &Path, found: &mut Vec<BucketEntry>) -> Outcome<()> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|error| failure(&error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| failure(&error))?;
            let path = entry.path();
            let meta = match entry.metadata() {
                // It was deleted meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                meta => meta.map_err(|error| failure(&error))?,
            };
            let name = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
            let Some(name) = name.filter(|name| !name.starts_with('.')) else { continue };
            if meta.is_dir() {
                self.list(&path, found)?;
            } else {
                found.push(BucketEntry { name: name.to_owned(), bytes: meta.len() });
            }
        }
        Ok(())
    }
}

/// Moves the file `from` to the name `to`, or links it there, unless it exists.
fn link_new(from: &Path, to: &Path) -> std::io::Result<()> {
    match fs::hard_link(from, to) {
        // A file system without hard links may have a rename that replaces nothing.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => {
            let flags = rustix::fs::RenameFlags::NOREPLACE;
            rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags)
                .map_err(std::io::Error::from)
        }
        linked => linked,
    }
}

/// Makes the folders of `path` below `root`, and flushes each folder that got one.
fn make_folders(root: &Path, path: &Path) -> std::io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| *folder != root && !folder.is_dir()) else {
        return Ok(());
    };
    make_folders(root, folder)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => sync_folder_of(folder),
    }
}

fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// The version of a file: its contents. Two versions of the record differ.
fn tag_of(bytes: &[u8]) -> VersionTag {
    VersionTag { etag: Some(format!("{:016x}-{}", hash64(bytes), bytes.len())), generation: None }
}

fn failure(error: &std::io::Error) -> RequestFailure {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::NotFound => RequestFailure::NotFound,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => RequestFailure::Refused(text),
        ErrorKind::Unsupported => RequestFailure::Unsupported(text),
        // Full, or an error of the device: it may pass.
        _ => RequestFailure::Unknown(text),
    }
}

impl BucketRequests for FolderBucket {
    fn create(&self, name: &str, bytes: Bytes) -> Attempt<'_, ()> {
        let name = name.to_owned();
        self.run(move |folder| folder.create(&name, &bytes))
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &VersionTag) -> Attempt<'_, VersionTag> {
        let (name, tag) = (name.to_owned(), tag.clone());
        self.run(move |folder| folder.replace(&name, &bytes, &tag))
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Attempt<'_, FetchedObject> {
        let name = name.to_owned();
        self.run(move |folder| folder.get(&name, range))
    }

    fn delete(&self, name: &str) -> Attempt<'_, ()> {
        let name = name.to_owned();
        self.run(move |folder| folder.delete(&name))
    }

    fn list<'a>(&'a self, prefix: &str, take: &'a mut (dyn FnMut(BucketEntry) + Send)) -> Attempt<'a, ()> {
        let prefix = prefix.trim_end_matches('/').to_owned();
        let all = self.run(move |folder| {
            let mut found = Vec::new();
            folder.list(&folder.path(&prefix), &mut found).map(|()| found)
        });
        async move {
            all.await?.into_iter().for_each(take);
            Ok(())
        }
        .boxed()
    }
}
