//! From objects to files: the work of an export.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use shoal_client::{ByteRange, Error, ListEntry, ListRequest, Object};
use tokio::runtime::Handle;

use crate::objects::{GetStream, Objects, is_lasting};
use crate::output::show_key;
use crate::transfer::attributes::{Attributes, Kind};
use crate::transfer::report::Report;
use crate::transfer::work::{self, BATCH_BYTES_MAX, Batches};
use crate::tree::folder::{Folder, Obstacle, OpenPath};
use crate::tree::names::components;
use crate::tree::place::{self, LINK_BYTES_MAX, NewFile};

/// While the workers hold more open folders than allowed the planner looks again after this time.
const FOLDERS_PAUSE: Duration = Duration::from_millis(1);

/// An export.
pub(crate) struct Unload {
    pub(crate) objects: Objects,
    pub(crate) handle: Handle,
    pub(crate) bucket: String,
    pub(crate) prefix: Bytes,
    pub(crate) report: Arc<Report>,
    /// Folders that may be open at the same time.
    pub(crate) folders_max: usize,
}

/// An object that is to become a file or a symlink.
struct Wanted {
    key: Bytes,
    bytes: u64,
    folder: Arc<Folder>,
}

impl Wanted {
    fn name(&self) -> &[u8] {
        self.key.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
    }
}

/// Why an object did not become a file.
enum Trouble {
    Store(Error),
    Place(Obstacle),
    Other(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Obstacle> for Trouble {
    fn from(obstacle: Obstacle) -> Self {
        Self::Place(obstacle)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Place(Obstacle::Failed(error))
    }
}

impl Unload {
    /// Writes all objects below `target`, with `jobs` workers. Blocks; not to be called on a thread of the runtime.
    pub(crate) fn run(&self, target: Arc<Folder>, jobs: u16) {
        work::run(jobs, |batch| self.write_batch(batch), |batches| self.plan(OpenPath::new(target), batches));
    }

    fn plan(&self, mut open: OpenPath, batches: &mut Batches<Wanted>) {
        let mut request = self.all();
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
                let key = entry.key.clone();
                if let Err(trouble) = self.plan_one(entry, &mut open, batches) {
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
        ListRequest { bucket: self.bucket.clone(), prefix: self.prefix.clone(), ..ListRequest::default() }
    }

    fn plan_one(
        &self,
        entry: ListEntry,
        open: &mut OpenPath,
        batches: &mut Batches<Wanted>,
    ) -> Result<(), Trouble> {
        let ListEntry { key, info } = entry;
        let outside = |why: &str| Trouble::Place(Obstacle::Outside(why.into()));
        let attributes = Attributes::of_object(&key, &info).map_err(|why| outside(&why))?;
        let relative = key.get(self.prefix.len()..).unwrap_or_default();
        if attributes.kind == Kind::Folder {
            // The target's own marker: its mode is its owner's business.
            let Some(relative) = relative.strip_suffix(b"/") else { return Ok(()) };
            let names = components(relative).map_err(outside)?;
            self.wait_for_folders(open, batches);
            open.enter(&names, attributes.permissions.is_some())?.restore_later(&attributes);
            self.report.done(Kind::Folder, 0);
            return Ok(());
        }
        let names = components(relative).map_err(outside)?;
        let Some((name, parents)) = names.split_last() else { return Ok(()) };
        self.wait_for_folders(open, batches);
        let folder = open.enter(parents, false)?;
        if place::is_same(&folder, name, info.bytes, &attributes) {
            self.report.unchanged(info.bytes);
        } else {
            batches.add(Wanted { key, bytes: info.bytes, folder }, info.bytes);
        }
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
                self.conclude(&wanted, result);
            }
        }
        if small.is_empty() || self.report.is_stopped() {
            return;
        }
        let keys = small.iter().map(|wanted| wanted.key.clone()).collect();
        let objects = self.handle.block_on(self.objects.get_many(&self.bucket, keys));
        for (wanted, object) in small.into_iter().zip(objects) {
            let result = match object {
                Ok(Some(object)) => self.write_small(&wanted, &object),
                Ok(None) => Err(Trouble::Other("it was deleted meanwhile".into())),
                // It grew meanwhile.
                Err(Error::Invalid(_)) => self.write_large(&wanted),
                Err(error) => Err(error.into()),
            };
            self.conclude(&wanted, result);
        }
    }

    fn conclude(&self, wanted: &Wanted, result: Result<(), Trouble>) {
        if let Err(trouble) = result {
            self.tell(&wanted.key, trouble);
        }
    }

    fn write_small(&self, wanted: &Wanted, object: &Object) -> Result<(), Trouble> {
        // As it is now, not as it was listed.
        let attributes = Attributes::of_object(&wanted.key, &object.info).map_err(Trouble::Other)?;
        match attributes.kind {
            Kind::Symlink => place::symlink(&wanted.folder, wanted.name(), &object.value, &attributes)?,
            _ => {
                let mut file = NewFile::create(&wanted.folder, &attributes)?;
                file.write(&object.value)?;
                file.finish(wanted.name(), &attributes)?;
            }
        }
        self.report.done(attributes.kind, object.info.bytes);
        Ok(())
    }

    fn write_large(&self, wanted: &Wanted) -> Result<(), Trouble> {
        let opened = self.objects.get_stream(&self.bucket, &wanted.key, ByteRange::ALL);
        let Some(mut stream) = self.handle.block_on(opened)? else {
            return Err(Trouble::Other("it was deleted meanwhile".into()));
        };
        let attributes = Attributes::of_object(&wanted.key, stream.info()).map_err(Trouble::Other)?;
        if attributes.kind == Kind::Symlink {
            return Err(Trouble::Other(format!(
                "the target of a symlink has at most {LINK_BYTES_MAX} bytes"
            )));
        }
        let mut written = 0;
        let result = self.write_pieces(wanted, &mut stream, &attributes, &mut written);
        match result {
            Ok(()) => self.report.done(Kind::File, 0),
            Err(_) => self.report.take_back_bytes(written),
        }
        result
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
        Ok(file.finish(wanted.name(), attributes)?)
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
            Trouble::Place(Obstacle::Outside(why)) => self.report.refused(&name, &why),
            Trouble::Place(Obstacle::InTheWay(why)) => self.report.failed(&name, why),
            Trouble::Place(Obstacle::Failed(error)) => {
                self.report.failed(&name, &error.to_string());
                let full = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS].map(Errno::raw_os_error);
                if error.raw_os_error().is_some_and(|code| full.contains(&code)) {
                    self.report.stop(&error.to_string());
                }
            }
            Trouble::Other(why) => self.report.failed(&name, &why),
        }
    }
}
