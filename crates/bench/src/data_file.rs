//! The data file of a benchmark: new, and removed when it is no longer needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use shoal_base::{Entropy, SystemEntropy};
use shoal_device::{Device, FileOptions, IoMode};

/// The file; it is removed with this, unless it is kept.
pub struct NewFile {
    path: PathBuf,
    is_kept: bool,
}

/// The name of a temporary data file of `bench` in the current folder, the same in the whole process. It contains a random
/// number: in a container each command is process 1, and the file of a killed one may still exist.
#[must_use]
pub fn temporary(bench: &str) -> PathBuf {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    let number = NUMBER.get_or_init(|| SystemEntropy.next_u64());
    PathBuf::from(format!("shoal-{bench}-{number:016x}.data"))
}

impl NewFile {
    /// Creates the file at `path`, or a temporary one of `bench` in the current folder, and opens it as a device.
    ///
    /// # Errors
    /// If the file exists: it is left alone. Those of the device.
    pub fn create(path: Option<&Path>, bench: &str, io: IoMode) -> Result<(Device, Self)> {
        let path = path.map_or_else(|| temporary(bench), Path::to_path_buf);
        if path.exists() {
            bail!("{} exists: it is left alone", path.display());
        }
        let options = FileOptions { create: true, io, ..FileOptions::default() };
        let device = shoal_device::open(&path, &options);
        let device = device.with_context(|| format!("cannot make the data file {}", path.display()))?;
        Ok((device, Self { path, is_kept: false }))
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file stays.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // There is no way to report that it stays.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_file_stays_and_a_new_one_goes() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::write(&old, b"precious").unwrap();
        assert!(NewFile::create(Some(&old), "test", IoMode::Auto).is_err());
        assert_eq!(fs::read(&old).unwrap(), b"precious");
        let (device, file) = NewFile::create(Some(&new), "test", IoMode::Auto).unwrap();
        assert!(new.exists());
        drop((device, file));
        assert!(!new.exists());
        let (device, mut file) = NewFile::create(Some(&new), "test", IoMode::Auto).unwrap();
        file.keep();
        drop((device, file));
        assert!(new.exists());
    }
}
