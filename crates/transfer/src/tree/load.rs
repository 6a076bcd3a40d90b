//! Imports a folder.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{CWD, Mode, OFlags};
use shoal_base::limits::VALUE_BYTES_MAX;
use shoal_client::{Error, PutItem};

use crate::attributes::extras::{Extras, now_ns};
use crate::attributes::{FileAttributes, FileKind};
use crate::import::Import;
use crate::text::{show_key, value_too_large};
use crate::tree::compare::{Existing, is_same};
use crate::tree::walk::{Found, Visit, Walk, is_file};
use crate::tree::xattr;
use crate::work::{self, BATCH_BYTES_MAX, Batches};

/// Files that do not fit in a batch are read and sent in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// A file that was read.
struct Content {
    value: Bytes,
    attributes: FileAttributes,
    extras: Extras,
}

/// How a file is put.
enum Outcome {
    /// With the other files of its batch.
    Value(Content),
    /// In pieces: it does not fit in a batch.
    Large(File),
}

impl Import {
    /// Counts the entries of `walk`, so that the report has a total. Blocks.
    pub fn count(&self, walk: Walk) {
        let (mut items, mut bytes) = (0, 0);
        for visit in walk.visits() {
            if self.report.is_stopped() {
                return;
            }
            if self.takes(visit.key()) {
                items += 1;
                bytes += if let Visit::Found(found) = visit { found.bytes } else { 0 };
            }
        }
        self.report.set_total(items, bytes);
    }

    /// Stores the entries of `walk` that the store does not have yet, with `jobs` workers. Blocks: not for threads of the runtime.
    pub fn folder(&self, walk: Walk, jobs: u16) {
        let existing = Existing::new(self);
        work::run(jobs, |batch| self.store_batch(batch), |batches| self.plan(walk, existing, batches));
    }

    fn plan(&self, walk: Walk, mut existing: Existing<'_>, batches: &mut Batches<Found>) {
        let own_file = self.objects.data_file().and_then(|path| rustix::fs::stat(path).ok());
        let own_file = own_file.map(|stat| (stat.st_dev, stat.st_ino));
        for visit in walk.visits() {
            if self.report.is_stopped() {
                return;
            }
            if !self.takes(visit.key()) {
                self.report.excluded(1);
                continue;
            }
            match visit {
                Visit::Special { path, kind, .. } => self.report.special(&shown(&path), kind),
                Visit::Leftover { path, .. } => self.report.leftover(&shown(&path)),
                Visit::Failed { path, why, .. } => self.report.failed(&shown(&path), &why),
                Visit::Found(found) if Some(found.inode) == own_file => {
                    self.report.failed(&shown(&found.path), "it is the data file of the store itself");
                }
                Visit::Found(found) => match existing.find(&found.key) {
                    Ok(Some(info)) if is_same(&found, &info) => self.report.unchanged(found.bytes),
                    Ok(_) if self.report.manner().dry_run => self.would_store(&found),
                    Ok(_) => {
                        let bytes = found.bytes;
                        batches.add(found, bytes);
                    }
                    Err(error) => self.report.stop(&format!("cannot list the store: {error}")),
                },
            }
        }
    }

    fn would_store(&self, found: &Found) {
        match found.extras() {
            Ok(extras) if extras.is_over(now_ns()) => self.report.expired(),
            Ok(_) => self.report.would(found.attributes.kind, &found.key, found.bytes),
            Err(why) => self.report.failed(&shown(&found.path), &why),
        }
    }

    fn store_batch(&self, batch: Vec<Found>) {
        let mut items = Vec::with_capacity(batch.len());
        let mut put = Vec::with_capacity(batch.len());
        for found in batch {
            if self.report.is_stopped() {
                return;
            }
            match read(&found) {
                Ok(Outcome::Value(Content { extras, .. })) if extras.is_over(now_ns()) => {
                    self.report.expired()
                }
                Ok(Outcome::Value(Content { value, attributes, extras })) => {
                    put.push((found.path, attributes.kind, value.len() as u64));
                    let options = extras.put_options(&attributes);
                    items.push(PutItem { key: found.key.into(), value, options });
                }
                Ok(Outcome::Large(file)) => self.store_large(&found, file),
                Err(trouble) => self.not_stored(&found, trouble),
            }
        }
        if items.is_empty() {
            return;
        }
        let results = self.handle.block_on(self.objects.put_many(&self.bucket, items));
        for ((path, kind, bytes), result) in put.into_iter().zip(results) {
            match result {
                Ok(_) => self.report.done(kind, bytes),
                Err(error) => self.failed(&shown(&path), &error),
            }
        }
    }

    fn store_large(&self, found: &Found, file: File) {
        let mut sent = 0;
        match self.send_pieces(found, file, &mut sent) {
            Ok(true) => self.report.done(FileKind::File, 0),
            Ok(false) => self.report.expired(),
            Err(trouble) => {
                self.report.take_back_bytes(sent);
                self.not_stored(found, trouble);
            }
        }
    }

    fn not_stored(&self, found: &Found, trouble: Trouble) {
        match trouble {
            Trouble::Store(error) => self.failed(&shown(&found.path), &error),
            Trouble::File(why) => self.report.failed(&shown(&found.path), &why),
        }
    }

    /// Puts the file in pieces. Returns false if its deadline has passed.
    fn send_pieces(&self, found: &Found, mut file: File, sent: &mut u64) -> Result<bool, Trouble> {
        let before = State::of(&file)?;
        let extras = extras_of(&file)?;
        if extras.is_over(now_ns()) {
            return Ok(false);
        }
        if before.bytes > VALUE_BYTES_MAX {
            return Err(Trouble::File(value_too_large(Some(before.bytes))));
        }
        let options = extras.put_options(&before.attributes);
        let mut stream = self.objects.put_stream(&self.bucket, &found.key, options)?;
        loop {
            if self.report.is_stopped() {
                return Err(Trouble::File("not stored: the import was stopped while it was read".into()));
            }
            let mut piece = Vec::with_capacity(PIECE_BYTES);
            file.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
            if piece.is_empty() {
                break;
            }
            let bytes = piece.len() as u64;
            self.handle.block_on(stream.write(piece.into()))?;
            self.report.add_bytes(bytes);
            *sent += bytes;
        }
        before.check_unchanged(&file, *sent)?;
        self.handle.block_on(stream.finish())?;
        Ok(true)
    }
}

fn extras_of(file: &File) -> Result<Extras, Trouble> {
    xattr::read(&xattr::Holder::File(file.as_fd())).map_err(Trouble::File)
}

/// A failure of the file or of the store.
enum Trouble {
    File(String),
    Store(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::File(error.to_string())
    }
}

fn read(found: &Found) -> Result<Outcome, Trouble> {
    let value = match found.attributes.kind {
        FileKind::Folder => Bytes::new(),
        FileKind::Symlink => Bytes::from(std::fs::read_link(&found.path)?.into_os_string().into_vec()),
        FileKind::File => return read_file(&found.path),
    };
    let extras = found.extras().map_err(Trouble::File)?;
    Ok(Outcome::Value(Content { value, attributes: found.attributes, extras }))
}

fn read_file(path: &Path) -> Result<Outcome, Trouble> {
    // The file may have been replaced since the walk: do not follow a symlink, do not wait for a fifo.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let descriptor = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from)?;
    let mut file = File::from(descriptor);
    let before = State::of(&file)?;
    if before.bytes > BATCH_BYTES_MAX {
        return Ok(Outcome::Large(file));
    }
    let mut value = Vec::with_capacity(before.bytes as usize + 1);
    file.by_ref().take(before.bytes + 1).read_to_end(&mut value)?;
    before.check_unchanged(&file, value.len() as u64)?;
    let extras = extras_of(&file)?;
    Ok(Outcome::Value(Content { value: value.into(), attributes: before.attributes, extras }))
}

/// The state of a file before it is read.
struct State {
    attributes: FileAttributes,
    bytes: u64,
}

impl State {
    fn of(file: &File) -> Result<Self, Trouble> {
        let stat = rustix::fs::fstat(file).map_err(io::Error::from)?;
        match FileAttributes::of(&stat) {
            Ok(attributes) if is_file(&stat) => {
                Ok(Self { attributes, bytes: u64::try_from(stat.st_size).unwrap_or(0) })
            }
            _ => Err(Trouble::File("it was replaced while it was read".into())),
        }
    }

    fn check_unchanged(&self, file: &File, read_bytes: u64) -> Result<(), Trouble> {
        let after = Self::of(file)?;
        let same = after.bytes == self.bytes && after.attributes.mtime_ns == self.attributes.mtime_ns;
        if same && read_bytes == self.bytes {
            Ok(())
        } else {
            Err(Trouble::File("it changed while it was read; import it again".into()))
        }
    }
}

fn shown(path: &Path) -> String {
    show_key(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_change_during_a_read_is_detected() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        fs::write(&path, b"12345").unwrap();
        let mut file = fs::OpenOptions::new().read(true).append(true).open(&path).unwrap();
        let before = State::of(&file).ok().unwrap();
        assert!(before.check_unchanged(&file, 5).is_ok());
        assert!(before.check_unchanged(&file, 4).is_err(), "fewer bytes were read than it has");
        file.write_all(b"6").unwrap();
        assert!(before.check_unchanged(&file, 6).is_err());
        let before = State::of(&file).ok().unwrap();
        rustix::fs::futimens(&file, &crate::tree::folder::timestamps(7)).unwrap();
        assert!(before.check_unchanged(&file, 6).is_err(), "same length, other time");
    }

    #[test]
    fn only_regular_files_are_read() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        fs::write(&path, vec![7; 1000]).unwrap();
        assert!(matches!(read_file(&path), Ok(Outcome::Value(read)) if read.value.len() == 1000));
        fs::write(&path, vec![7; BATCH_BYTES_MAX as usize + 1]).unwrap();
        assert!(matches!(read_file(&path), Ok(Outcome::Large(_))));
        symlink(&path, root.path().join("l")).unwrap();
        assert!(read_file(&root.path().join("l")).is_err());
        let fifo = root.path().join("p");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(read_file(&fifo).is_err(), "without waiting for its other end");
        assert!(read_file(root.path()).is_err());
        assert!(read_file(&root.path().join("none")).is_err());
    }
}
