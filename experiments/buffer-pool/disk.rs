//! `device`: the same load on a real file or block device, past the kernel's cache.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use shoal_base::task::block_on;
use shoal_base::{BLOCK_BYTES, SystemEntropy};
use shoal_device::blank::look;
use shoal_device::file::{FileOptions, open};
use shoal_device::{Device, IoBuf, IoMode};

use super::naive::Disk;
use super::page::{Page, stamp};
use shoal_bench::data_file::NewFile;

/// Pages that are written at once at the start.
const CHUNK: u64 = 64;

/// A new file, or a blank block device, with pages of version 1. The file is removed at the end.
pub(crate) struct DataFile {
    pub(crate) device: Device,
    _file: Option<NewFile>,
}

fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

impl DataFile {
    /// Refuses a place at which something would be lost: an existing file, a block device that is not blank.
    pub(crate) fn check(path: &Path) -> Result<()> {
        if is_block_device(path) {
            let device = open(path, &FileOptions::default())?;
            let content = block_on(look(&device, &SystemEntropy))?;
            if !content.is_blank() {
                bail!("{}: {content}; nothing was changed", path.display());
            }
        } else if path.exists() {
            bail!("{} exists: it is left alone", path.display());
        }
        Ok(())
    }

    /// To be called after [`Self::check`].
    pub(crate) fn new(path: &Path, pages: u64) -> Result<Self> {
        let file = if is_block_device(path) {
            Self { device: open(path, &FileOptions::default())?, _file: None }
        } else {
            let (device, file) = NewFile::create(Some(path), "pool", IoMode::Auto)?;
            Self { device, _file: Some(file) }
        };
        if file.device.blocks() < pages {
            file.device.inner().grow(pages).with_context(|| format!("growing {}", path.display()))?;
        }
        for first in (0..pages).step_by(CHUNK as usize) {
            let count = CHUNK.min(pages - first);
            let mut chunk = IoBuf::new(count as usize);
            for (number, page) in (first..).zip(chunk.chunks_exact_mut(BLOCK_BYTES)) {
                let mut stamped = [0; BLOCK_BYTES];
                stamp(&mut stamped, number, 1);
                page.copy_from_slice(&stamped);
            }
            block_on(file.device.write(first, chunk)).result?;
        }
        block_on(file.device.flush()).result?;
        Ok(file)
    }
}

impl Disk for Device {
    fn read(&self, number: u64, page: &mut Page) {
        let outcome = block_on(Device::read(self, number, IoBuf::unfilled(1)));
        match outcome.ok() {
            Ok(read) => page.copy_from_slice(&read),
            Err(error) => panic!("reading page {number}: {error}"),
        }
    }

    fn write(&self, number: u64, page: &Page) {
        if let Err(error) = block_on(Device::write(self, number, IoBuf::copied_from(page))).result {
            panic!("writing page {number}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::write(&path, b"precious").unwrap();
        assert!(DataFile::check(&path).is_err() && DataFile::new(&path, 64).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        DataFile::check(&path).unwrap();
        drop(DataFile::new(&path, 64).unwrap());
        assert!(!path.exists());
    }
}
