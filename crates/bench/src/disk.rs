//! The disk of a folder: its free space, and the kernel's counters for it. The counters are of the whole disk and include the
//! work of other programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const SECTOR_BYTES: u64 = 512;

/// Counts since the machine started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk {
    /// Bytes written.
    pub bytes_written: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Disk {
    /// The counts of the disk that holds `folder`; `None` if the kernel has none, as for memory and networks.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn of(folder: &Path) -> Result<Option<Self>> {
        let device = rustix::fs::stat(folder).context("the folder is gone")?.st_dev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let Ok(text) = fs::read_to_string(device.join("stat")) else { return Ok(None) };
        let mut disk = Self::parse(&text);
        // The flushes of a partition are counted at its disk.
        if device.join("partition").exists()
            && let Ok(text) = fs::read_to_string(device.join("../stat"))
        {
            disk.flushes = Self::parse(&text).flushes;
        }
        Ok(Some(disk))
    }

    fn parse(text: &str) -> Self {
        let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        let field = |place: usize| fields.get(place).copied().unwrap_or_default();
        Self { bytes_written: field(6) * SECTOR_BYTES, flushes: field(15) }
    }
}

/// Bytes that may still be written below `folder`.
///
/// # Errors
/// The kernel does not report it.
pub fn free_bytes(folder: &Path) -> Result<u64> {
    let system = rustix::fs::statvfs(folder);
    let system = system.with_context(|| format!("cannot ask for the free space of {}", folder.display()))?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_at_their_places() {
        let disk = Disk::parse("1 2 3 4 5 6 70 8 9 10 11 12 13 14 15 16 17\n");
        assert_eq!((disk.bytes_written, disk.flushes), (70 * 512, 16));
        // An old kernel does not count flushes.
        assert_eq!(Disk::parse("1 2 3 4 5 6 70 8 9 10 11").flushes, 0);
    }

    #[test]
    fn a_folder_has_free_space_and_a_missing_one_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(folder.path()).unwrap() > 0);
        Disk::of(folder.path()).unwrap();
        let missing = folder.path().join("missing");
        assert!(free_bytes(&missing).is_err() && Disk::of(&missing).is_err());
    }
}
