//! The file of servers that only write and flush their received bytes: the yardsticks of a durable put.
//!
//! Bytes bypass the page cache, whole blocks with one `pwritev2(RWF_DSYNC)`, into a file that was written before, so that
//! no growth of a file is in a figure. The file has no name: it is gone when the program exits for any reason.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;
use rustix::io::{ReadWriteFlags, pwritev2};
use shoal_base::BLOCK_BYTES;

/// Bytes of the file, through which the writes go round and round.
const FILE_BYTES: usize = 256 << 20;

/// The most bytes of one write.
pub(crate) const WRITE_BYTES_MAX: usize = 4 << 20;

/// The file, and the memory that is written to it.
pub(crate) struct LogFile {
    file: File,
    /// The offset of the next write in the file, in bytes.
    position: usize,
    memory: Vec<u8>,
    /// The start of the first whole block in `memory`.
    first: usize,
}

impl LogFile {
    /// Makes and writes a file in `folder`.
    ///
    /// # Errors
    /// As the file.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let path = folder.join(format!("shoal-log-{}", std::process::id()));
        let direct = OFlags::DIRECT.bits().cast_signed();
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).custom_flags(direct).open(&path);
        let file = file.with_context(|| format!("cannot make {}", path.display()))?;
        std::fs::remove_file(&path)?;
        let memory = vec![0; WRITE_BYTES_MAX + BLOCK_BYTES];
        let first = memory.as_ptr().align_offset(BLOCK_BYTES);
        let mut log = Self { file, position: 0, memory, first };
        for _ in 0..FILE_BYTES / WRITE_BYTES_MAX {
            log.write(WRITE_BYTES_MAX)?;
        }
        Ok(log)
    }

    /// The memory for the next write, [`WRITE_BYTES_MAX`] bytes.
    pub(crate) fn memory(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.first..self.first + WRITE_BYTES_MAX).unwrap_or_default()
    }

    /// Writes the first `bytes` bytes of the memory, padded to whole blocks, and flushes them.
    ///
    /// # Errors
    /// As the file; `bytes` are too many.
    pub(crate) fn write(&mut self, bytes: usize) -> Result<()> {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        if self.position + bytes > FILE_BYTES {
            self.position = 0;
        }
        ensure!(bytes <= WRITE_BYTES_MAX, "{bytes} bytes are more than one write takes");
        let written = self.memory.get(self.first..self.first + bytes).unwrap_or_default();
        let at = self.position as u64;
        let written = pwritev2(&self.file, &[IoSlice::new(written)], at, ReadWriteFlags::DSYNC)?;
        ensure!(written == bytes, "a short write");
        self.position += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn writes_follow_each_other_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = LogFile::new(folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        for (byte, bytes) in [(b'a', 5000), (b'b', 10)] {
            log.memory().fill(byte);
            log.write(bytes).unwrap();
        }
        let third = log.first + 2 * BLOCK_BYTES..log.first + 3 * BLOCK_BYTES;
        log.memory().fill(0);
        // A read past the page cache needs whole blocks, too.
        log.file.read_exact_at(&mut log.memory[third.clone()], 2 * BLOCK_BYTES as u64).unwrap();
        assert!(log.memory[third].iter().all(|&byte| byte == b'b'));
        assert!(log.write(WRITE_BYTES_MAX + BLOCK_BYTES).is_err());
    }
}
