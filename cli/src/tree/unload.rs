//! From objects to files: the work of an export.

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
use shoal_client::{ByteRange, Error, ListEntry, ListRequest, Object};
use tokio::runtime::Handle;

use crate::objects::{GetStream, Objects, is_lasting};
use crate::output::show_key;
use crate::transfer::attributes::{Attributes, Kind};
use crate::transfer::extras::Extras;
use crate::transfer::filter::Filter;
use crate::transfer::report::Report;
use crate::transfer::work::{self, BATCH_BYTES_MAX, Batches};
use crate::tree::folder::{Folder, OpenPath};
use crate::tree::names::{FilesAbove, components, components_of_file};
use crate::tree::obstacle::{Obstacle, altered};
use crate::tree::place::{self, LINK_BYTES_MAX, NewFile};
use crate::tree::xattr;

/// While the workers hold more open folders than allowed the planner looks again after this time.
const FOLDERS_PAUSE: Duration = Duration::from_millis(1);

/// An export.
pub(crate) struct Unload {
    pub(crate) objects: Objects,
    pub(crate) handle: Handle,
    pub(crate) bucket: String,
    pub(crate) prefix: Bytes,
    pub(crate) filter: Filter,
    pub(crate) report: Arc<Report>,
    /// Folders that may be open at the same time.
    pub(crate) folders_max: usize,
}

/// An object that is to become a file or a symlink.
struct Wanted {
    key: Bytes,
    bytes: u64,
    /// Its deadline, as it was listed.
    expires_ns: Option<u64>,
    folder: Arc<Folder>,
}

impl Wanted {
    fn name(&self) -> &[u8] {
        self.key.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
    }
}

/// The file or folder that an object is to become.
struct Planned<'a> {
    attributes: Attributes,
    extras: Extras,
    /// From the target down to its own; none for the target itself.
    names: Vec<&'a [u8]>,
}

/// A file or symlink that was written.
struct Written {
    kind: Kind,
    bytes: u64,
    /// Bytes that the report has already, as they were written piece by piece.
    counted_bytes: u64,
}

/// Why an object did not become a file.
enum Trouble {
    Store(Error),
    Target(Obstacle),
    /// It does not exist any more.
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

impl Unload {
    /// Writes all objects below `target`, with `jobs` workers. Blocks; not to be called on a thread of the runtime.
    pub(crate) fn run(&self, target: Arc<Folder>, jobs: u16) {
        let plan = |batches: &mut Batches<Wanted>| {
            let mut open = OpenPath::new(target);
            self.each(|entry, above| self.plan_one(entry, above, &mut open, batches));
        };
        work::run(jobs, |batch| self.write_batch(batch), plan);
    }

    /// Reports the files that [`run`](Self::run) would write below `target`, and writes nothing.
    pub(crate) fn run_dry(&self, target: &Path) {
        self.each(|entry, above| {
            let Planned { attributes, extras, names } = &self.judge(&entry, above)?;
            if names.is_empty() {
                return Ok(());
            }
            let path = target.join(OsStr::from_bytes(&names.join(&b'/')));
            let is_there = attributes.kind != Kind::Folder
                && place::is_same(CWD, path.as_os_str(), entry.info.bytes, attributes, extras);
            match is_there {
                true => self.report.unchanged(entry.info.bytes),
                false => self.report.would(attributes.kind, &entry.key, entry.info.bytes),
            }
            Ok(())
        });
    }

    /// Calls `plan` for each object that takes part, in the order of the keys.
    fn each(&self, mut plan: impl FnMut(ListEntry, &mut FilesAbove) -> Result<(), Trouble>) {
        let (mut request, mut above) = (self.all(), FilesAbove::default());
        loop {
            let page = match self.handle.block_on(self.objects.list(&request)) {
                Ok(page) => page,
                Err(error) => return self.report.stop(&format!("cannot list the store: {error}")),
            };
            self.report.damaged(page.damaged);
            for entry in page.entries {
                if self.report.is_stopped() {
                    return;
                }
                if !self.takes(&entry.key) {
                    self.report.excluded();
                    continue;
                }
                let key = entry.key.clone();
                if let Err(trouble) = plan(entry, &mut above) {
                    self.tell(&key, trouble);
                }
            }
            match page.next {
                Some(next) => request.start_after = next,
                None => return,
            }
        }
    }

    /// The listing of all objects of the export.
    pub(crate) fn all(&self) -> ListRequest {
        ListRequest { bucket: self.bucket.clone(), prefix: self.prefix.to_vec(), ..ListRequest::default() }
    }

    fn takes(&self, key: &[u8]) -> bool {
        self.filter.takes(key.get(self.prefix.len()..).unwrap_or_default())
    }

    /// Decides if an object can become a file, and its kind.
    fn judge<'a>(&self, entry: &'a ListEntry, above: &mut FilesAbove) -> Result<Planned<'a>, Trouble> {
        let ListEntry { key, info } = entry;
        let unheld = |why: &str| Trouble::Target(Obstacle::Unheld(why.into()));
        if let Some(file) = above.find(key) {
            return Err(unheld(&format!("the object {:?} has the name of its folder", show_key(file))));
        }
        let attributes = Attributes::of_object(key, info).map_err(|why| unheld(&why))?;
        let extras = Extras::of_object(info, &attributes);
        let relative = key.get(self.prefix.len()..).unwrap_or_default();
        let names = match attributes.kind {
            Kind::Folder if info.bytes > 0 => return Err(unheld("it is a folder with a value")),
            // The target's own marker: its mode is its owner's business.
            Kind::Folder if relative.is_empty() => Vec::new(),
            Kind::Folder => components(relative.strip_suffix(b"/").unwrap_or(relative)).map_err(unheld)?,
            Kind::File | Kind::Symlink => {
                let names = components_of_file(relative).map_err(unheld)?;
                above.add(key.clone());
                names
            }
        };
        if attributes.kind == Kind::Symlink && !extras.is_plain() {
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
        if attributes.kind == Kind::Folder {
            let folder = open.enter(&names, attributes.permissions.is_some())?;
            if let Err(why) = xattr::write(folder.descriptor(), &extras) {
                self.lose(&entry.key, why)?;
            }
            folder.restore_later(&attributes);
            self.report.done(Kind::Folder, 0);
            return Ok(());
        }
        let folder = open.enter(parents, false)?;
        let bytes = entry.info.bytes;
        let own_name = OsStr::from_bytes(name);
        if place::is_same(folder.descriptor(), own_name, bytes, &attributes, &extras) && folder.is_exact(name)
        {
            self.report.unchanged(bytes);
        } else {
            batches
                .add(Wanted { key: entry.key, bytes, expires_ns: entry.info.expire_time_ns, folder }, bytes);
        }
        Ok(())
    }

    /// The object `key` cannot have its metadata or deadline there: the export continues without them if that is allowed.
    fn lose(&self, key: &[u8], why: String) -> Result<(), Trouble> {
        if !self.report.manner().lossy {
            return Err(Trouble::Target(Obstacle::Unheld(why)));
        }
        self.report.dropped(&show_key(key), &why);
        Ok(())
    }

    /// Each open folder is a descriptor, and there is a limit on those.
    fn wait_for_folders(&self, open: &OpenPath, batches: &mut Batches<Wanted>) {
        if open.count_open() < self.folders_max {
            return;
        }
        batches.send();
        while open.count_open() >= self.folders_max && !open.holds_all_open() && !self.report.is_stopped() {
            thread::sleep(FOLDERS_PAUSE);
        }
    }

    fn write_batch(&self, batch: Vec<Wanted>) {
        let (large, small): (Vec<Wanted>, Vec<Wanted>) =
            batch.into_iter().partition(|wanted| wanted.bytes > BATCH_BYTES_MAX);
        for wanted in large {
            if !self.report.is_stopped() {
                let result = self.write_large(&wanted);
                self.conclude(vec![(wanted, result)]);
            }
        }
        if small.is_empty() || self.report.is_stopped() {
            return;
        }
        let keys = small.iter().map(|wanted| wanted.key.clone()).collect();
        let objects = self.handle.block_on(self.objects.get_many(&self.bucket, keys));
        let results = small.into_iter().zip(objects).map(|(wanted, object)| {
            let result = match object {
                Ok(Some(object)) => self.write_small(&wanted, &object),
                Ok(None) => Err(Trouble::Gone),
                // It grew meanwhile.
                Err(Error::Invalid(_)) => self.write_large(&wanted),
                Err(error) => Err(error.into()),
            };
            (wanted, result)
        });
        self.conclude(results.collect());
    }

    /// Reports the results, after a check that the new files have their names.
    fn conclude(&self, results: Vec<(Wanted, Result<Written, Trouble>)>) {
        let altered_keys = self.find_altered(&results);
        for (wanted, result) in results {
            match result {
                Ok(written) if altered_keys.contains(&wanted.key) => {
                    place::remove(&wanted.folder, wanted.name());
                    self.report.take_back_bytes(written.counted_bytes);
                    self.tell(&wanted.key, altered().into());
                }
                Ok(written) => self.report.done(written.kind, written.bytes - written.counted_bytes),
                Err(Trouble::Gone) => self.report.gone(&show_key(&wanted.key), wanted.expires_ns),
                Err(trouble) => self.tell(&wanted.key, trouble),
            }
        }
    }

    /// The keys of written files that the file system renamed.
    fn find_altered(&self, results: &[(Wanted, Result<Written, Trouble>)]) -> HashSet<Bytes> {
        let mut keys = HashSet::new();
        for group in results.chunk_by(|(one, _), (other, _)| Arc::ptr_eq(&one.folder, &other.folder)) {
            let written = || group.iter().filter(|(_, result)| result.is_ok()).map(|(wanted, _)| wanted);
            let Some(first) = written().next() else { continue };
            match first.folder.missing(written().map(Wanted::name)) {
                Ok(missing) => {
                    let is_missing = |wanted: &&Wanted| missing.contains(wanted.name());
                    keys.extend(written().filter(is_missing).map(|wanted| wanted.key.clone()));
                }
                Err(error) => {
                    let why = format!("whether its file has this name cannot be seen: {error}");
                    written().for_each(|wanted| self.report.failed(&show_key(&wanted.key), &why));
                }
            }
        }
        keys
    }

    fn write_small(&self, wanted: &Wanted, object: &Object) -> Result<Written, Trouble> {
        // As it is now, not as it was listed.
        let attributes = Attributes::of_object(&wanted.key, &object.info).map_err(Trouble::Other)?;
        match attributes.kind {
            Kind::Symlink => place::symlink(&wanted.folder, wanted.name(), &object.value, &attributes)?,
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
        let opened = self.objects.get_stream(&self.bucket, &wanted.key, ByteRange::ALL);
        let Some(mut stream) = self.handle.block_on(opened)? else {
            return Err(Trouble::Gone);
        };
        let attributes = Attributes::of_object(&wanted.key, stream.info()).map_err(Trouble::Other)?;
        if attributes.kind == Kind::Symlink {
            let why = format!("the target of a symlink has at most {LINK_BYTES_MAX} bytes");
            return Err(Trouble::Target(Obstacle::Unheld(why)));
        }
        let mut written = 0;
        let result = self.write_pieces(wanted, &mut stream, &attributes, &mut written);
        match result {
            Ok(()) => Ok(Written { kind: Kind::File, bytes: written, counted_bytes: written }),
            Err(trouble) => {
                self.report.take_back_bytes(written);
                Err(trouble)
            }
        }
    }

    fn write_pieces(
        &self,
        wanted: &Wanted,
        stream: &mut GetStream,
        attributes: &Attributes,
        written: &mut u64,
    ) -> Result<(), Trouble> {
        let mut file = NewFile::create(&wanted.folder, attributes)?;
        while let Some(piece) = self.handle.block_on(stream.next())? {
            if self.report.is_stopped() {
                return Err(Trouble::Other("not written: the export was ended while it was read".into()));
            }
            file.write(&piece)?;
            self.report.add_bytes(piece.len() as u64);
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

    fn tell(&self, key: &[u8], trouble: Trouble) {
        let name = show_key(key);
        match trouble {
            Trouble::Store(error) => {
                self.report.failed(&name, &error.to_string());
                if is_lasting(&error) {
                    self.report.stop(&error.to_string());
                }
            }
            Trouble::Target(Obstacle::Unheld(why)) => self.report.refused(&name, &why),
            Trouble::Target(Obstacle::InTheWay(why)) => self.report.failed(&name, why),
            Trouble::Target(Obstacle::Failed(error)) => {
                self.report.failed(&name, &error.to_string());
                let full = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS].map(Errno::raw_os_error);
                if error.raw_os_error().is_some_and(|code| full.contains(&code)) {
                    self.report.stop(&error.to_string());
                }
            }
            Trouble::Gone => self.report.gone(&name, None),
            Trouble::Other(why) => self.report.failed(&name, &why),
        }
    }
}
