//! The place of a new backup or tar: standard output, or a file that has its name only when it is whole.
//!
//! Until then the file is NAME.unfinished, and a file of that name that an interrupted run left is taken over. It is recognised by its
//! content: the start of a backup without its end, or, in place of the first bytes of a tar, a mark. Any other file stays.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::failure::whole_output_error;
use crate::store::file::{HELD_MAX, HELD_PAUSE};

/// The bytes of a tar that are written last: its first header.
const HEAD_BYTES: usize = 512;
/// Takes the place of the first bytes in a tar that is not whole.
const MARK: &[u8] = b"Shoal: this tar is unfinished\n";
/// Bytes that are read at either end of a file, to recognise it: more than a header has, or an end.
const RECOGNISED_BYTES: u64 = 64 << 10;

/// The kind of file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    Backup,
    Tar,
}

/// The file that has the name of `dest` with an ending.
pub(crate) fn beside(dest: &Path, ending: &str) -> PathBuf {
    let mut name = dest.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// A backup or a tar that is being written.
pub(crate) enum Sink {
    Stdout(io::Stdout),
    File(Unfinished),
}

/// A file under a temporary name, which is removed on drop unless it is kept.
pub(crate) struct Unfinished {
    file: File,
    path: PathBuf,
    dest: PathBuf,
    force: bool,
    /// The first bytes of a tar so far; none of a backup.
    head: Option<Vec<u8>>,
    is_done: bool,
    /// The file stays under its temporary name if it is not finished.
    is_kept: bool,
}

impl Sink {
    /// A sink for `dest`, `-` for standard output. An existing file is refused unless `force` is set. A file with its temporary name is
    /// always refused, unless an interrupted run left it.
    pub(crate) fn open(dest: &Path, force: bool, contents: Contents) -> anyhow::Result<Self> {
        if dest == Path::new("-") {
            return Ok(Self::Stdout(io::stdout()));
        }
        check_free(dest, force)?;
        let path = beside(dest, ".unfinished");
        let what = || format!("cannot write {}", path.display());
        // It holds all objects in clear text: it is for its owner alone, as the data file is.
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
            bail!("{}: it is no file; move it elsewhere, or remove it", what());
        }
        let file = options.open(&path).with_context(what)?;
        let started = Instant::now();
        // A killed command holds its lock until its last write completes.
        while file.try_lock().is_err() {
            if started.elapsed() >= HELD_MAX {
                bail!("{}: another shoal writes to it", what());
            }
            thread::sleep(HELD_PAUSE);
        }
        if !is_ours(&file).with_context(what)? {
            bail!(
                "{}: it is there already, and not left by an interrupted backup or export. Move it elsewhere, or remove it, and try again",
                what()
            );
        }
        file.set_len(0).with_context(what)?;
        let head = match contents {
            Contents::Backup => None,
            Contents::Tar => {
                let mut block = [0; HEAD_BYTES];
                block[..MARK.len()].copy_from_slice(MARK);
                (&file).write_all(&block).with_context(what)?;
                Some(Vec::new())
            }
        };
        Ok(Self::File(Unfinished {
            file,
            path,
            dest: dest.to_owned(),
            force,
            head,
            is_done: false,
            is_kept: false,
        }))
    }

    /// From now on a later run can continue from the file: it stays if the backup fails.
    pub(crate) fn keep(&mut self) {
        if let Self::File(it) = self {
            it.is_kept = true;
        }
    }

    /// The file that stays if the backup fails.
    pub(crate) fn kept(&self) -> Option<&Path> {
        match self {
            Self::File(it) if it.is_kept => Some(&it.path),
            _ => None,
        }
    }

    /// Appends `bytes`.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Stdout(stdout) => stdout.write_all(bytes).map_err(whole_output_error),
            Self::File(it) => {
                let bytes = it.hold_head(bytes);
                it.file.write_all(bytes).with_context(|| format!("cannot write {}", it.dest.display()))
            }
        }
    }

    /// The backup is whole: makes it durable, and renames it to its final name.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Stdout(mut stdout) => stdout.flush().map_err(whole_output_error),
            Self::File(mut it) => {
                let what = || format!("cannot finish {}", it.dest.display());
                if let Some(head) = &it.head {
                    it.file.write_all_at(head, 0).with_context(what)?;
                }
                it.file.sync_all().with_context(what)?;
                check_free(&it.dest, it.force)?;
                give_name(&it.path, &it.dest, it.force).with_context(what)?;
                it.is_done = true;
                let folder = it.dest.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new("."));
                File::open(folder)
                    .and_then(|folder| folder.sync_all())
                    .with_context(|| format!("cannot sync the folder of {}", it.dest.display()))
            }
        }
    }
}

impl Unfinished {
    /// Keeps the first bytes of a tar back; returns the others.
    fn hold_head<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(head) = &mut self.head else { return bytes };
        let (held, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - head.len()));
        head.extend_from_slice(held);
        rest
    }
}

/// Returns true if the file is empty, or an interrupted run left its content.
fn is_ours(file: &File) -> io::Result<bool> {
    let length = file.metadata()?.len();
    let mut start = vec![0; length.min(RECOGNISED_BYTES) as usize];
    let mut end = start.clone();
    file.read_exact_at(&mut start, 0)?;
    file.read_exact_at(&mut end, length - start.len() as u64)?;
    Ok(length == 0 || start.starts_with(MARK) || shoal_backup::is_unfinished(&start, &end))
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_done && !self.is_kept {
            // If that fails, the name shows that the file is not whole.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Renames `from` to `dest`. Without `force` a file that another program has created there meanwhile stays, if the file system can
/// rename without replacing; NFS and some FUSE file systems cannot.
fn give_name(from: &Path, dest: &Path, force: bool) -> io::Result<()> {
    if !force {
        match rustix::fs::renameat_with(CWD, from, CWD, dest, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            renamed => return Ok(renamed?),
        }
    }
    fs::rename(from, dest)
}

fn check_free(dest: &Path, force: bool) -> anyhow::Result<()> {
    match fs::symlink_metadata(dest) {
        Ok(found) if !found.is_file() => {
            bail!("{} is no file: name a file, or - for standard output", dest.display())
        }
        Ok(_) if !force => {
            bail!("{} exists: name another file, or replace it with --force", dest.display())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dest: &Path, contents: Contents) -> anyhow::Result<Sink> {
        Sink::open(dest, false, contents)
    }

    #[test]
    fn a_file_that_was_created_after_the_check_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (from, dest) = (folder.path().join("from"), folder.path().join("dest"));
        fs::write(&from, "new").unwrap();
        fs::write(&dest, "theirs").unwrap();
        assert_eq!(give_name(&from, &dest, false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&dest).unwrap(), "theirs");
        give_name(&from, &dest, true).unwrap();
        assert_eq!(fs::read_to_string(&dest).unwrap(), "new");
    }

    /// The file of another program was emptied in silence.
    #[test]
    fn a_foreign_file_of_the_temporary_name_stays() {
        let folder = tempfile::tempdir().unwrap();
        let dest = folder.path().join("it");
        let unfinished = beside(&dest, ".unfinished");
        for bytes in [b"mine".to_vec(), vec![0; 10_000], b"SHBK".repeat(100)] {
            fs::write(&unfinished, &bytes).unwrap();
            for contents in [Contents::Backup, Contents::Tar] {
                let error = format!("{:#}", open(&dest, contents).err().unwrap());
                assert!(error.contains("it.unfinished") && error.contains("Move it elsewhere"), "{error}");
                assert_eq!(fs::read(&unfinished).unwrap(), bytes);
            }
            fs::remove_file(&unfinished).unwrap();
        }
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &unfinished).unwrap();
        assert!(open(&dest, Contents::Tar).is_err() && !folder.path().join("elsewhere").exists());
    }

    #[test]
    fn an_unfinished_tar_is_marked_and_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let dest = folder.path().join("it");
        let unfinished = beside(&dest, ".unfinished");
        let tar: Vec<u8> = (0..5_000).map(|at| (at % 251) as u8).collect();
        let mut sink = open(&dest, Contents::Tar).unwrap();
        tar.chunks(300).for_each(|piece| sink.write(piece).unwrap());
        // As after a kill.
        std::mem::forget(sink);
        assert!(fs::read(&unfinished).unwrap().starts_with(MARK));
        assert_eq!(fs::metadata(&unfinished).unwrap().len(), 5_000);
        let other = folder.path().join("other");
        fs::copy(&unfinished, beside(&other, ".unfinished")).unwrap();
        let mut sink = open(&other, Contents::Tar).unwrap();
        tar.chunks(300).for_each(|piece| sink.write(piece).unwrap());
        sink.finish().unwrap();
        assert_eq!(fs::read(&other).unwrap(), tar);
    }
}
