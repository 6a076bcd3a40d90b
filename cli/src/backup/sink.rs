//! The place of a new backup or tar: standard output, or a file that has its name only when it is whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::failure::whole_output_error;

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

/// A file under a temporary name, which goes away with this unless it is to be kept.
pub(crate) struct Unfinished {
    file: File,
    path: PathBuf,
    dest: PathBuf,
    force: bool,
    is_done: bool,
    /// It stays under its temporary name where it is not finished.
    is_kept: bool,
}

impl Sink {
    /// A sink for `dest`, `-` for standard output. A file that exists is refused unless `force` says so.
    pub(crate) fn open(dest: &Path, force: bool) -> anyhow::Result<Self> {
        if dest == Path::new("-") {
            return Ok(Self::Stdout(io::stdout()));
        }
        check_free(dest, force)?;
        let path = beside(dest, ".unfinished");
        let what = || format!("cannot write {}", path.display());
        // It holds all objects in clear text: it is for its owner alone, as the data file is.
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let file = options.open(&path).with_context(what)?;
        if file.try_lock().is_err() {
            bail!("{}: another shoal writes to it", what());
        }
        file.set_len(0).with_context(what)?;
        Ok(Self::File(Unfinished {
            file,
            path,
            dest: dest.to_owned(),
            force,
            is_done: false,
            is_kept: false,
        }))
    }

    /// From now on a later run can go on with what there is: it stays where the backup fails.
    pub(crate) fn keep(&mut self) {
        if let Self::File(it) = self {
            it.is_kept = true;
        }
    }

    /// The file that stays where the backup fails.
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
                it.file.write_all(bytes).with_context(|| format!("cannot write {}", it.dest.display()))
            }
        }
    }

    /// The backup is whole: makes it durable, and gives it its name.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Stdout(mut stdout) => stdout.flush().map_err(whole_output_error),
            Self::File(mut it) => {
                let what = || format!("cannot finish {}", it.dest.display());
                it.file.sync_all().with_context(what)?;
                check_free(&it.dest, it.force)?;
                fs::rename(&it.path, &it.dest).with_context(what)?;
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

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_done && !self.is_kept {
            // Where that fails the name says that it is not whole.
            let _ = fs::remove_file(&self.path);
        }
    }
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
