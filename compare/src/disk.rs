//! The counters of the kernel for the whole disk under a folder: the work of other programs is in them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const SECTOR_BYTES: u64 = 512;

/// Counts since the machine started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk {
    pub bytes_written: u64,
    pub flushes: u64,
}

impl Disk {
    /// The counts of the disk that holds `folder`; none where the kernel does not tell.
    pub fn of(folder: &Path) -> Result<Option<Self>> {
        let device = rustix::fs::stat(folder).context("the folder is gone")?.st_dev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let Ok(text) = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")) else {
            return Ok(None);
        };
        let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        let field = |place: usize| fields.get(place).copied().unwrap_or_default();
        Ok(Some(Self { bytes_written: field(6) * SECTOR_BYTES, flushes: field(15) }))
    }
}
