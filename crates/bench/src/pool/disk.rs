//! `device`: the same load on a real file or block device, past the kernel's cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use shoal_base::BLOCK_BYTES;
use shoal_base::task::block_on;
use shoal_device::file::{FileOptions, open};
use shoal_device::{Device, IoBuf};

use super::naive::Disk;
use super::page::{Page, stamp};

/// Pages that are written at once to begin with.
const CHUNK: u64 = 64;

/// A file with pages of version 1. Removed at the end where it was not there before.
pub(crate) struct DataFile {
    pub(crate) device: Device,
    temporary: Option<PathBuf>,
}

impl DataFile {
    pub(crate) fn new(path: &Path, pages: u64) -> Result<Self> {
        let temporary = (!path.exists()).then(|| path.to_owned());
        let options = FileOptions { create: true, ..FileOptions::default() };
        let device = open(path, &options)?;
        let file = Self { device, temporary };
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

impl Drop for DataFile {
    fn drop(&mut self) {
        if let Some(path) = &self.temporary
            && let Err(error) = fs::remove_file(path)
        {
            eprintln!("{} stays: {error}", path.display());
        }
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
