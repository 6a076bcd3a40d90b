//! [`Journal`]: the file. It is appended to, read at the start, and now and then replaced by one that starts with a snapshot.
//!
//! The file is extended by zeros ahead of need, so that a flush writes data only. A batch of records is one write: after a crash some of
//! them may be there, in any order. So each record holds a promise, the number of the last flushed record before it, and opening
//! distinguishes a torn end (no promise covers the gap) from damage (one does).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::record::{ALIGNMENT, Content, HEADER_BYTES, Header, NoHeader, Record, decode, encode};
use crate::state::{Part, SpaceState};

/// The file is extended by this number of bytes at a time.
const GROWTH_BYTES: u64 = 1 << 20;

/// The file is replaced when its records take more than this and more than four times its snapshot.
const RECORDS_BYTES: u64 = 16 << 20;

/// The reason why a file is not opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system returns an error.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// Another process has it open.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// It is not a file of this service, or it is damaged in a way that no crash explains.
    #[error("{path}: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage, in words.
        what: String,
    },
    /// The requested size is impossible.
    #[error("{0}")]
    Size(String),
}

/// The file that holds the state.
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    header: Header,
    /// The offset of the next record, and the end of the written part.
    end: u64,
    grown: u64,
    /// Bytes of the header and the snapshot.
    snapshot_bytes: u64,
    /// The last record that is on the device.
    pub(crate) synced: u64,
    sync: bool,
}

impl Journal {
    /// Makes a file with a snapshot of `state` at `path`, or replaces the one there: after any failure, that name has a whole file.
    pub(crate) fn create(
        path: &Path,
        identity: [u8; 16],
        state: &SpaceState,
        base: u64,
        sync: bool,
    ) -> std::io::Result<Self> {
        let header = Header { identity, blocks: state.blocks(), group_blocks: state.group_blocks(), base };
        let mut bytes = header.encode().to_vec();
        let mut number = base;
        for part in state.parts() {
            number += 1;
            let record = Record { number, synced: base, content: Content::Part(part) };
            encode(header.seed(), &record, &mut bytes);
        }
        let new = beside(path, ".new");
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        let end = bytes.len() as u64;
        let path = path.to_owned();
        Ok(Self { file, path, header, end, grown: end, snapshot_bytes: end, synced: number, sync })
    }

    /// Opens the file at `path`: the state that it holds.
    pub(crate) fn open(path: &Path, sync: bool) -> Result<(Self, SpaceState), JournalError> {
        let io = |error| JournalError::Io { path: path.to_owned(), error };
        let damaged = |what: String| JournalError::Damaged { path: path.to_owned(), what };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
        let mut bytes = vec![0; usize::try_from(file.metadata().map_err(io)?.len()).unwrap_or(0)];
        file.read_exact_at(&mut bytes, 0).map_err(io)?;
        let header = Header::decode(&bytes).map_err(|why| match why {
            NoHeader::Damaged => damaged("this is not the file of a space service, or damaged".into()),
            NoHeader::Version(version) => damaged(format!("version {version} of the format is not known")),
        })?;
        if header.blocks == 0
            || header.blocks > shoal_space::SPACE_BLOCKS_MAX
            || header.group_blocks != shoal_space::group_blocks_for(header.blocks)
        {
            return Err(damaged("it is of a size that there is not".into()));
        }
        let mut state = SpaceState::empty(header.blocks, header.group_blocks);
        let (mut at, mut number) = (HEADER_BYTES, header.base);
        let mut snapshot_bytes = 0;
        while let Some((record, taken)) = decode(header.seed(), bytes.get(at..).unwrap_or_default()) {
            if record.number != number + 1 {
                break;
            }
            let wrong = |what: &str| damaged(format!("record {}: {what}", record.number));
            match record.content {
                Content::Part(part) if snapshot_bytes == 0 => {
                    let is_last = part == Part::Finished;
                    state.put(part).map_err(|why| wrong(why.0))?;
                    snapshot_bytes = if is_last { (at + taken) as u64 } else { 0 };
                }
                Content::Change(change) if snapshot_bytes > 0 => {
                    state.replay(&change).map_err(|why| wrong(why.0))?;
                }
                _ => return Err(wrong("a snapshot is at the wrong place")),
            }
            number = record.number;
            at += taken;
        }
        if snapshot_bytes == 0 {
            return Err(damaged("its snapshot does not end".into()));
        }
        if let Some(promised) = promised_behind(header.seed(), bytes.get(at..).unwrap_or_default())
            && promised > number
        {
            return Err(damaged(format!("record {} is damaged, and was whole once", number + 1)));
        }
        let end = at as u64;
        let path = path.to_owned();
        let mut journal = Self { file, path, header, end, grown: end, snapshot_bytes, synced: number, sync };
        // The rest of a torn batch must not be taken for records later.
        journal.wipe(bytes.len() as u64).map_err(io)?;
        Ok((journal, state))
    }

    /// Clears the file after the last record.
    fn wipe(&mut self, file_bytes: u64) -> std::io::Result<()> {
        if file_bytes > self.end {
            self.file.set_len(self.end)?;
        }
        // From now on the records that were read count as on the device; the process that wrote them may have died before it flushed them.
        self.file.sync_all()
    }

    /// Appends records, of which the last has the number `last`.
    pub(crate) fn append(&mut self, records: &[u8], last: u64) -> std::io::Result<()> {
        let end = self.end + records.len() as u64;
        if self.sync && end > self.grown {
            let grown = end.next_multiple_of(GROWTH_BYTES);
            let from = self.grown.max(self.end);
            self.file.write_all_at(&vec![0; (grown - from) as usize], from)?;
            self.grown = grown;
        }
        self.file.write_all_at(records, self.end)?;
        if self.sync {
            self.file.sync_data()?;
        }
        self.end = end;
        self.synced = last;
        Ok(())
    }

    pub(crate) fn seed(&self) -> u64 {
        self.header.seed()
    }

    /// Returns true if the records are many compared to a snapshot.
    pub(crate) fn is_long(&self) -> bool {
        self.end - self.snapshot_bytes > RECORDS_BYTES.max(4 * self.snapshot_bytes)
    }

    /// Replaces the file by one with a snapshot of `state`, which is as of record `base`.
    pub(crate) fn replace(&mut self, state: &SpaceState, base: u64) -> std::io::Result<()> {
        *self = Self::create(&self.path, self.header.identity, state, base, self.sync)?;
        Ok(())
    }
}

/// The highest number that any record after the end promises as flushed.
fn promised_behind(seed: u64, bytes: &[u8]) -> Option<u64> {
    let places = (0..bytes.len()).step_by(ALIGNMENT);
    places.filter_map(|at| decode(seed, bytes.get(at..)?)).map(|(record, _)| record.synced).max()
}

/// Locks the file at `path`, which need not exist, for this process until the returned file is closed. The lock is on a file beside it that
/// is never replaced or removed, while the file itself is.
pub(crate) fn lock(path: &Path) -> Result<File, JournalError> {
    let name = beside(path, ".lock");
    let io = |error| JournalError::Io { path: name.clone(), error };
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&name).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Returns true if `path` does not exist yet.
pub(crate) fn is_missing(path: &Path) -> Result<bool, JournalError> {
    match std::fs::metadata(path) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(JournalError::Io { path: path.to_owned(), error }),
    }
}
