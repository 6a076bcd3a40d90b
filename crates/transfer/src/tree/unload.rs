//! Exports objects into a folder.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::CWD;
use rustix::io::Errno;
use shoal_client::{ByteRange, Error, GetResult, ListEntry};
use tokio::runtime::Handle;

use crate::attributes::extras::Extras;
use crate::attributes::{FileAttributes, FileKind};
use crate::export::Export;
use crate::objects::{ObjectReader, is_lasting};
use crate::text::show_key;
use crate::tree::folder::{Folder, OpenPath};
use crate::tree::names::{FilesAbove, components, components_of_file};
use crate::tree::obstacle::{Obstacle, altered};
use crate::tree::place::{self, LINK_BYTES_MAX, NewFile};
use crate::tree::xattr;
use crate::work::{self, BATCH_BYTES_MAX, Batches};

/// The planner's pause while the maximum number of folders is open.
const FOLDERS_PAUSE: Duration = Duration::from_millis(1);

/// An export into a folder.
pub struct FolderExport {
    /// The objects.
    pub export: Export,
    /// The runtime on which the threads of the export wait for the store.
    pub handle: Handle,
    /// The maximum number of open folders.
    pub folders_max: usize,
}

/// An object to write as a file or symlink.
struct Wanted {
    key: Bytes,
    bytes: u64,
    /// The deadline in the listing.
    expires_ns: Option<u64>,
    folder: Arc<Folder>,
}

impl Wanted {
    fn name(&self) -> &[u8] {
        self.key.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
    }
}

/// The file or folder to write for an object.
struct Planned<'a> {
    attributes: FileAttributes,
    extras: Extras,
    /// From the target down to its own; none for the target.
    names: Vec<&'a [u8]>,
}

/// A written file or symlink.
struct Written {
    kind: FileKind,
    bytes: u64,
    /// Bytes that the report has already: large files are written in pieces.
    counted_bytes: u64,
}

/// The reason why an object was not written.
enum Trouble {
    Store(Error),
    Target(Obstacle),
    /// It no longer exists.
    Gone,
    Other(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Obstacle> for Trouble {
    fn from(obstacle: Obstacle) -> Self {
        Self::Target(obstacle)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Target(Obstacle::Failed(error))
    }
}

impl FolderExport {
    /// Writes all objects below `target`, with `jobs` workers. Blocks: not for threads of the runtime.
    pub fn run(&self, target: Arc<Folder>, jobs: u16) {
        let plan = |batches: &mut Batches<Wanted>| {
            let mut open = OpenPath::new(target);
            self.each(|entry, above| self.plan_one(entry, above, &mut open, batches));
        };
        work::run(jobs, |batch| self.write_batch(batch), plan);
    }

    /// Reports the files that [`run`](Self::run) would write below `target`. Blocks: not for threads of the runtime.
    pub fn run_dry(&self, target: &Path) {
        self.each(|entry, above| {
            let Planned { attributes, extras, names } = &self.judge(&entry, above)?;
            if names.is_empty() {
                return Ok(());
            }
            let path = target.join(OsStr::from_bytes(&names.join(&b'/')));
            let is_there = attributes.kind != FileKind::Folder
                && place::is_same(CWD, path.as_os_str(), entry.info.bytes, attributes, extras);
            match is_there {
                true => self.export.report.unchanged(entry.info.bytes),
                false => self.export.report.would(attributes.kind, &entry.key, entry.info.bytes),
            }
            Ok(())
        });
    }

    /// Calls `plan` for each object that takes part, in the order of the keys.
    fn each(&self, mut plan: impl FnMut(ListEntry, &mut FilesAbove) -> Result<(), Trouble>) {
        let (mut pages, mut above) = (self.export.pages(), FilesAbove::default());
        loop {
            let entries = match self.handle.block_on(self.export.next(&mut pages)) {
                Ok(Some(entries)) => entries,
                Ok(None) => return,
                Err(error) => return self.export.report.stop(&format!("cannot list the store: {error}")),
            };
            for entry in entries {
                if self.export.report.is_stopped() {
                    return;
                }
                let key = entry.key.clone();
                if let Err(trouble) = plan(entry, &mut above) {
                    self.failed(&key, trouble);
                }
            }
        }
    }

    /// Decides whether and how an object becomes a file.
    fn judge<'a>(&self, entry: &'a ListEntry, above: &mut FilesAbove) -> Result<Planned<'a>, Trouble> {
        let ListEntry { key, info } = entry;
        let unheld = |why: &str| Trouble::Target(Obstacle::Unheld(why.into()));
        if let Some(file) = above.find(key) {
            return Err(unheld(&format!("the object {:?} has the name of its folder", show_key(file))));
        }
        let attributes = FileAttributes::of_object(key, info).map_err(|why| unheld(&why))?;
        let extras = Extras::of_object(info, &attributes);
        let relative = self.export.relative(key);
        let names = match attributes.kind {
            FileKind::Folder if info.bytes > 0 => return Err(unheld("it is a folder with a value")),
            // The object of the target itself: its owner decides its mode.
            FileKind::Folder if relative.is_empty() => Vec::new(),
            FileKind::Folder => {
                components(relative.strip_suffix(b"/").unwrap_or(relative)).map_err(unheld)?
            }
            FileKind::File | FileKind::Symlink => {
                let names = components_of_file(relative).map_err(unheld)?;
                above.add(key.clone());
                names
            }
        };
        if attributes.kind == FileKind::Symlink && !extras.is_plain() {
            self.lose(key, "a symlink has no extended attributes".into())?;
        }
        Ok(Planned { attributes, extras, names })
    }

    fn plan_one(
        &self,
        entry: ListEntry,
        above: &mut FilesAbove,
        open: &mut OpenPath,
        batches: &mut Batches<Wanted>,
    ) -> Result<(), Trouble> {
        let Planned { attributes, extras, names } = self.judge(&entry, above)?;
        let Some((name, parents)) = names.split_last() else { return Ok(()) };
        self.wait_for_folders(open, batches);
        if attributes.kind == FileKind::Folder {
            let folder = open.enter(&names, attributes.permissions.is_some())?;
            if let Err(why) = xattr::write(folder.descriptor(), &extras) {
                self.lose(&entry.key, why)?;
            }
            folder.restore_later(&attributes);
            self.export.report.done(FileKind::Folder, 0);
            return Ok(());
        }
        let folder = open.enter(parents, false)?;
        let bytes = entry.info.bytes;
        let own_name = OsStr::from_bytes(name);
        if place::is_same(folder.descriptor(), own_name, bytes, &attributes, &extras)
            && folder.names.is_exact(name)
        {
            self.export.report.unchanged(bytes);
        } else {
            batches
                .add(Wanted { key: entry.key, bytes, expires_ns: entry.info.expire_time_ns, folder }, bytes);
        }
        Ok(())
    }

    /// The file of `key` cannot have the metadata or deadline: a lossy export continues without them.
    fn lose(&self, key: &[u8], why: String) -> Result<(), Trouble> {
        if !self.export.report.manner().lossy {
            return Err(Trouble::Target(Obstacle::Unheld(why)));
        }
        self.export.report.dropped(&show_key(key), &why);
        Ok(())
    }

    /// Waits until fewer folders are open: each is a descriptor, and the system limits those.
    fn wait_for_folders(&self, open: &OpenPath, batches: &mut Batches<Wanted>) {
        if open.count_open() < self.folders_max {
            return;
        }
        batches.send();
        while open.count_open() >= self.folders_max
            && !open.holds_all_open()
            && !self.export.report.is_stopped()
        {
            thread::sleep(FOLDERS_PAUSE);
        }
    }

    fn write_batch(&self, batch: Vec<Wanted>) {
        let (large, small): (Vec<Wanted>, Vec<Wanted>) =
            batch.into_iter().partition(|wanted| wanted.bytes > BATCH_BYTES_MAX);
        for wanted in large {
            if !self.export.report.is_stopped() {
                let result = self.write_large(&wanted);
                self.conclude(vec![(wanted, result)]);
            }
        }
        if small.is_empty() || self.export.report.is_stopped() {
            return;
        }
        let keys = small.iter().map(|wanted| wanted.key.clone()).collect();
        let objects = self.handle.block_on(self.export.objects.get_many(&self.export.bucket, keys));
        let results = small.into_iter().zip(objects).map(|(wanted, object)| {
            let result = match object {
                Ok(Some(object)) => self.write_small(&wanted, &object),
                Ok(None) => Err(Trouble::Gone),
                // The value grew meanwhile.
                Err(Error::Invalid(_)) => self.write_large(&wanted),
                Err(error) => Err(error.into()),
            };
            (wanted, result)
        });
        self.conclude(results.collect());
    }

    /// Checks that the new files have their names, and reports the results.
    fn conclude(&self, results: Vec<(Wanted, Result<Written, Trouble>)>) {
        let altered_keys = self.find_altered(&results);
        for (wanted, result) in results {
            match result {
                Ok(written) if altered_keys.contains(&wanted.key) => {
                    place::remove(&wanted.folder, wanted.name());
                    self.export.report.take_back_bytes(written.counted_bytes);
                    self.failed(&wanted.key, altered().into());
                }
                Ok(written) => self.export.report.done(written.kind, written.bytes - written.counted_bytes),
                Err(Trouble::Gone) => self.export.report.gone(&show_key(&wanted.key), wanted.expires_ns),
                Err(trouble) => self.failed(&wanted.key, trouble),
            }
        }
    }

    /// The keys of new files whose names the file system stored in another form.
    fn find_altered(&self, results: &[(Wanted, Result<Written, Trouble>)]) -> HashSet<Bytes> {
        let mut keys = HashSet::new();
        for group in results.chunk_by(|(one, _), (other, _)| Arc::ptr_eq(&one.folder, &other.folder)) {
            let written = || group.iter().filter(|(_, result)| result.is_ok()).map(|(wanted, _)| wanted);
            let Some(first) = written().next() else { continue };
            match first.folder.names.missing(written().map(Wanted::name)) {
                Ok(missing) => {
                    let is_missing = |wanted: &&Wanted| missing.contains(wanted.name());
                    keys.extend(written().filter(is_missing).map(|wanted| wanted.key.clone()));
                }
                Err(error) => {
                    let why = format!("cannot check the name of its file: {error}");
                    written().for_each(|wanted| self.export.report.failed(&show_key(&wanted.key), &why));
                }
            }
        }
        keys
    }

    fn write_small(&self, wanted: &Wanted, object: &GetResult) -> Result<Written, Trouble> {
        // As of the read, not as of the listing.
        let attributes = FileAttributes::of_object(&wanted.key, &object.info).map_err(Trouble::Other)?;
        match attributes.kind {
            FileKind::Symlink => place::symlink(&wanted.folder, wanted.name(), &object.value, &attributes)?,
            _ => {
                let mut file = NewFile::create(&wanted.folder, &attributes)?;
                file.write(&object.value)?;
                self.describe(&file, &wanted.key, &Extras::of_object(&object.info, &attributes))?;
                file.finish(wanted.name(), &attributes)?;
            }
        }
        Ok(Written { kind: attributes.kind, bytes: object.info.bytes, counted_bytes: 0 })
    }

    fn write_large(&self, wanted: &Wanted) -> Result<Written, Trouble> {
        let opened = self.export.objects.get_stream(&self.export.bucket, &wanted.key, ByteRange::ALL);
        let Some(mut stream) = self.handle.block_on(opened)? else {
            return Err(Trouble::Gone);
        };
        let attributes = FileAttributes::of_object(&wanted.key, stream.info()).map_err(Trouble::Other)?;
        if attributes.kind == FileKind::Symlink {
            let why = format!("the target of a symlink has at most {LINK_BYTES_MAX} bytes");
            return Err(Trouble::Target(Obstacle::Unheld(why)));
        }
        let mut written = 0;
        let result = self.write_pieces(wanted, &mut stream, &attributes, &mut written);
        match result {
            Ok(()) => Ok(Written { kind: FileKind::File, bytes: written, counted_bytes: written }),
            Err(trouble) => {
                self.export.report.take_back_bytes(written);
                Err(trouble)
            }
        }
    }

    fn write_pieces(
        &self,
        wanted: &Wanted,
        stream: &mut ObjectReader,
        attributes: &FileAttributes,
        written: &mut u64,
    ) -> Result<(), Trouble> {
        let mut file = NewFile::create(&wanted.folder, attributes)?;
        while let Some(piece) = self.handle.block_on(stream.next())? {
            if self.export.report.is_stopped() {
                return Err(Trouble::Other("not written: the export was stopped while it was read".into()));
            }
            file.write(&piece)?;
            self.export.report.add_bytes(piece.len() as u64);
            *written += piece.len() as u64;
        }
        self.describe(&file, &wanted.key, &Extras::of_object(stream.info(), attributes))?;
        Ok(file.finish(wanted.name(), attributes)?)
    }

    fn describe(&self, file: &NewFile<'_>, key: &[u8], extras: &Extras) -> Result<(), Trouble> {
        match file.describe(extras) {
            Ok(()) => Ok(()),
            Err(why) => self.lose(key, why),
        }
    }

    fn failed(&self, key: &[u8], trouble: Trouble) {
        let name = show_key(key);
        match trouble {
            Trouble::Store(error) => {
                self.export.report.failed(&name, &error.to_string());
                if is_lasting(&error) {
                    self.export.report.stop(&error.to_string());
                }
            }
            Trouble::Target(Obstacle::Unheld(why)) => self.export.report.refused(&name, &why),
            Trouble::Target(Obstacle::InTheWay(why)) => self.export.report.failed(&name, why),
            Trouble::Target(Obstacle::Failed(error)) => {
                self.export.report.failed(&name, &error.to_string());
                let full = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS].map(Errno::raw_os_error);
                if error.raw_os_error().is_some_and(|code| full.contains(&code)) {
                    self.export.report.stop(&error.to_string());
                }
            }
            Trouble::Gone => self.export.report.gone(&name, None),
            Trouble::Other(why) => self.export.report.failed(&name, &why),
        }
    }
}
