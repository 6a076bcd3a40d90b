//! An open file or raw block device: its size, its lock, and requests run by plain system calls.
//!
//! Both drivers of a file ([`crate::uring`], [`crate::threads`]) build on this. Invariants: the descriptor holds an exclusive lock, or a
//! shared one if it only reads, from [`Storage::new`] until the last user of the storage is gone; a file in use never gets shorter.

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use shoal_base::BLOCK_BYTES_U64;

use crate::counters::Counters;
use crate::transfer::{Action, Transfer};
use crate::{DeviceCounters, DeviceError, IoBuf, IoRequest, Op, Submission, sys};

/// The kind of file that the descriptor is open on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A regular file, which may grow.
    Regular,
    /// A raw block device.
    Raw,
}

/// See the module.
pub(crate) struct Storage {
    file: File,
    path: PathBuf,
    kind: Kind,
    /// Device and inode number of the file, if the path led to it when it was opened. `None`: a block device, or a file system whose
    /// answers for path and descriptor differ.
    identity: Option<(u64, u64)>,
    direct: bool,
    /// All requests except reads are refused.
    read_only: bool,
    /// Stored with release after the file is long enough, loaded with acquire by the range check.
    blocks: AtomicU64,
    /// Growers wait for each other; nobody else waits for them.
    growing: Mutex<()>,
    /// True if the file system allocated all blocks that the file grew by.
    allocates: AtomicBool,
    /// True if durable writes use `RWF_DSYNC`. A figure: any order will do.
    dsync: AtomicBool,
    /// A request found the end of the file or device before its blocks: it was made shorter. A figure: any order will do.
    is_cut: AtomicBool,
    /// The files under a block device, locked as it is.
    below: Vec<File>,
    counters: Counters,
}

impl Storage {
    /// Takes over `file`, which is locked, `bytes` bytes long, and open with direct I/O or without.
    pub(crate) fn new(
        file: File,
        path: PathBuf,
        kind: Kind,
        direct: bool,
        read_only: bool,
        bytes: u64,
    ) -> Self {
        let of_file =
            (kind == Kind::Regular).then(|| file.metadata().ok().as_ref().map(identity_of)).flatten();
        let of_path = std::fs::metadata(&path).ok().as_ref().map(identity_of);
        Self {
            file,
            path,
            kind,
            identity: of_file.filter(|identity| of_path == Some(*identity)),
            direct,
            read_only,
            blocks: AtomicU64::new(bytes / BLOCK_BYTES_U64),
            growing: Mutex::new(()),
            // In the page cache, the error of a durable write could be that of an earlier write's delayed allocation: the flush is a
            // separate call, whose errors are known as such.
            dsync: AtomicBool::new(direct || kind == Kind::Raw),
            allocates: AtomicBool::new(true),
            is_cut: AtomicBool::new(false),
            below: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Keeps `below`, the locked files under a block device, while the device is open.
    pub(crate) fn with_below(mut self, below: Vec<File>) -> Self {
        self.below = below;
        self
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn dsync(&self) -> &AtomicBool {
        &self.dsync
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// See [`crate::BlockDevice::measure`]. A file keeps the size that was set here.
    pub(crate) fn measure(&self) -> io::Result<u64> {
        if self.kind == Kind::Raw {
            let _one_grower = self.growing.lock();
            // Requests carry their own position: the descriptor's is unused.
            let blocks = (&self.file).seek(SeekFrom::End(0))? / BLOCK_BYTES_U64;
            self.blocks.fetch_max(blocks, Ordering::AcqRel);
        }
        Ok(self.blocks())
    }

    /// The bytes of the file or device now.
    fn bytes(&self) -> io::Result<u64> {
        if self.kind == Kind::Regular {
            return Ok(self.file.metadata()?.len());
        }
        let _one_at_a_time = self.growing.lock();
        (&self.file).seek(SeekFrom::End(0))
    }

    /// See [`crate::BlockDevice::tail`].
    pub(crate) fn tail(&self) -> io::Result<Vec<u8>> {
        let bytes = self.bytes()?;
        let first = bytes / BLOCK_BYTES_U64 * BLOCK_BYTES_U64;
        if first == bytes {
            return Ok(Vec::new());
        }
        assert!(bytes - first < BLOCK_BYTES_U64, "the tail is less than a block");
        // A whole block: direct I/O takes nothing less, and reads up to the end.
        let mut block = IoBuf::new(1);
        let read = self.file.read_at(&mut block, first)?;
        if (read as u64) < bytes - first {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(block[..read].to_vec())
    }

    /// See [`crate::BlockDevice::data_after`].
    pub(crate) fn data_after(&self, block: u64) -> Option<io::Result<Range<u64>>> {
        (self.kind == Kind::Regular).then(|| self.next_data(block))
    }

    fn next_data(&self, block: u64) -> io::Result<Range<u64>> {
        let blocks = self.blocks();
        let _one_at_a_time = self.growing.lock();
        let start = match sys::seek(&self.file, block * BLOCK_BYTES_U64, libc::SEEK_DATA) {
            Ok(start) => start,
            // There is only a hole up to the end, or the end is before `block`.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(blocks..blocks),
            // The file system knows no holes.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(block..blocks),
            Err(error) => return Err(error),
        };
        let end = sys::seek(&self.file, start, libc::SEEK_HOLE)?;
        let first = (start / BLOCK_BYTES_U64).min(blocks);
        Ok(first..end.div_ceil(BLOCK_BYTES_U64).clamp(first, blocks))
    }

    /// See [`crate::BlockDevice::room`].
    pub(crate) fn room(&self) -> Option<u64> {
        if self.kind == Kind::Raw {
            return None;
        }
        let has = self.file.metadata().ok()?.blocks().saturating_mul(512);
        Some(sys::free_bytes(&self.file).ok()?.saturating_add(has) / BLOCK_BYTES_U64)
    }

    /// See [`crate::BlockDevice::taken`].
    pub(crate) fn taken(&self) -> u64 {
        match self.file.metadata() {
            Ok(metadata) if self.kind == Kind::Regular => {
                metadata.blocks().saturating_mul(512) / BLOCK_BYTES_U64
            }
            _ => self.blocks(),
        }
    }

    /// See [`crate::BlockDevice::is_cached`].
    pub(crate) fn is_cached(&self) -> bool {
        !self.direct
    }

    pub(crate) fn can_grow(&self) -> bool {
        self.kind == Kind::Regular && !self.read_only
    }

    pub(crate) fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }

    /// The path and the way in which it is open; `driver` names the driver of requests.
    pub(crate) fn describe(&self, driver: &str) -> String {
        let kind = if self.kind == Kind::Regular { "file" } else { "block device" };
        let cache = if self.direct { "O_DIRECT" } else { "page cache" };
        let access = if self.read_only { ", read-only" } else { "" };
        format!("{kind} {} ({driver}, {cache}{access})", self.path.display())
    }

    /// Refuses a request that would change a read-only device.
    fn check_access(&self, op: Op) -> io::Result<()> {
        if self.read_only && op != Op::Read { Err(io::Error::from_raw_os_error(libc::EROFS)) } else { Ok(()) }
    }

    /// Refuses a request that is out of range or not allowed.
    fn check(&self, request: &IoRequest<'_>) -> Result<(), DeviceError> {
        self.check_access(request.op()).map_err(|error| request.error(&error))?;
        request.check_range(self.blocks())
    }

    /// Lets `submission` through if it is in range and allowed, else completes it with the error.
    pub(crate) fn admit(&self, submission: Submission) -> Option<Submission> {
        let Err(error) = self.check(&submission) else { return Some(submission) };
        self.counters.count(submission.op(), submission.blocks(), false);
        submission.complete(Err(error));
        None
    }

    /// Counts and completes a request.
    pub(crate) fn finish(&self, submission: Submission, result: io::Result<()>) {
        self.counters.count(submission.op(), submission.blocks(), result.is_ok());
        self.note_cut(&result);
        match result {
            Ok(()) => submission.complete(Ok(())),
            Err(error) => submission.fail(&error),
        }
    }

    fn note_cut(&self, result: &io::Result<()>) {
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
            self.is_cut.store(true, Ordering::Relaxed);
        }
    }

    /// Runs a request on this thread and completes it.
    pub(crate) fn run(&self, submission: Submission) {
        submission.run(|request| self.serve(request));
    }

    /// Runs a request on this thread, and counts it.
    pub(crate) fn serve(&self, request: &IoRequest<'_>) -> Result<(), DeviceError> {
        let served = self.check(request).and_then(|()| {
            let result = match request.op() {
                Op::Discard { blocks } => self.discard(request.block(), blocks),
                _ => self.transfer(request),
            };
            self.note_cut(&result);
            result.map_err(|error| request.error(&error))
        });
        self.counters.count(request.op(), request.blocks(), served.is_ok());
        served
    }

    fn transfer(&self, request: &IoRequest<'_>) -> io::Result<()> {
        assert!(
            !self.read_only || request.op() == Op::Read,
            "a write to a read-only file was refused before"
        );
        let mut transfer = Transfer::new(request);
        while let Some(action) = transfer.action(self.dsync.load(Ordering::Relaxed)) {
            let result = match action {
                Action::Read => sys::read(&self.file, &transfer),
                Action::Write { durable } => sys::write(&self.file, &transfer, durable),
                Action::Sync => self.file.sync_data().map(|()| 0),
            };
            transfer.took(action, result, &self.dsync)?;
        }
        Ok(())
    }

    /// A device that does not know discards does nothing: a discard promises nothing. For a file system that cannot punch holes this is an
    /// error, because holes are counted.
    fn discard(&self, block: u64, blocks: u64) -> io::Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        assert!(!self.read_only, "a discard of a read-only file was refused before");
        let (offset, bytes) = (block * BLOCK_BYTES_U64, blocks * BLOCK_BYTES_U64);
        let result = match self.kind {
            Kind::Regular => sys::punch_hole(&self.file, offset, bytes),
            Kind::Raw => sys::raw_discard(&self.file, offset, bytes),
        };
        match result {
            Err(error) if is_unsupported(&error) && self.kind == Kind::Raw => Ok(()),
            result => result,
        }
    }

    /// See [`crate::BlockDevice::grow`] (with `allocates`) and [`crate::BlockDevice::extend`] (without). Allocating parts of a file reveals
    /// a full file system at once.
    pub(crate) fn lengthen(&self, blocks: u64, allocates: bool) -> io::Result<()> {
        let _one_grower = self.growing.lock();
        let old = self.blocks();
        if blocks <= old {
            return Ok(());
        }
        self.check_access(Op::Write)?;
        if self.kind == Kind::Raw {
            let message = format!("a block device of {old} blocks cannot grow to {blocks}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
        let bytes = blocks.checked_mul(BLOCK_BYTES_U64).ok_or_else(too_large)?;
        let old_bytes = old * BLOCK_BYTES_U64;
        let length = self.file.metadata()?.len();
        if length < old_bytes {
            // Growing it again would hide the cut.
            self.is_cut.store(true, Ordering::Relaxed);
            let message = format!("the file was cut to {length} bytes while it is open; it had {old_bytes}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        let allocated = || sys::allocate(&self.file, old_bytes, bytes - old_bytes);
        match if allocates { allocated() } else { self.file.set_len(bytes) } {
            Err(error) if is_unsupported(&error) => {
                self.allocates.store(false, Ordering::Release);
                self.file.set_len(bytes)?;
            }
            Err(error) => {
                // A full file system may have allocated a part, which is released for other programs that write there.
                if let Err(kept) = self.file.set_len(length) {
                    tracing::warn!(path = %self.path.display(), error = %kept, "cannot give back the space of a growth");
                }
                return Err(error);
            }
            Ok(()) => {}
        }
        assert!(self.blocks() < blocks, "a file in use never gets shorter");
        self.blocks.store(blocks, Ordering::Release);
        Ok(())
    }

    /// See [`crate::BlockDevice::allocates`]. A file system that failed once is not relied on any more.
    pub(crate) fn allocates(&self) -> bool {
        self.kind != Kind::Raw && self.allocates.load(Ordering::Acquire)
    }

    /// See [`crate::BlockDevice::hold_room`].
    pub(crate) fn hold_room(&self, blocks: Range<u64>) -> io::Result<bool> {
        let end = blocks.end.min(self.blocks());
        if self.kind == Kind::Raw || self.read_only || blocks.start >= end {
            return Ok(true);
        }
        let bytes = (end - blocks.start) * BLOCK_BYTES_U64;
        match sys::allocate_unshared(&self.file, blocks.start * BLOCK_BYTES_U64, bytes) {
            Err(error) if is_unsupported(&error) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// See [`crate::BlockDevice::is_copied_on_write`].
    pub(crate) fn is_copied_on_write(&self) -> bool {
        self.kind == Kind::Regular && sys::is_copied_on_write(&self.file).unwrap_or(false)
    }

    /// See [`crate::BlockDevice::shrink`].
    pub(crate) fn shrink(&self, blocks: u64) -> io::Result<()> {
        let _one_grower = self.growing.lock();
        if self.kind == Kind::Raw || blocks >= self.blocks() {
            return Ok(());
        }
        // First: no request is admitted past the new end.
        self.blocks.store(blocks, Ordering::Release);
        self.file.set_len(blocks * BLOCK_BYTES_U64)
    }

    /// See [`crate::BlockDevice::displaced`].
    pub(crate) fn displaced(&self) -> Option<String> {
        let identity = self.identity?;
        let path = self.path.display();
        let what = match std::fs::metadata(&self.path) {
            Ok(metadata) if identity_of(&metadata) == identity => return None,
            Ok(_) => "was replaced by another one",
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                let links = self.file.metadata().map_or(0, |metadata| metadata.nlink());
                if links == 0 { "was deleted" } else { "was renamed" }
            }
            // A process that cannot look there learns nothing about the file.
            Err(_) => return None,
        };
        let (process, descriptor) = (std::process::id(), self.file.as_raw_fd());
        Some(format!(
            "the data file {path} {what} while it is open: its content can be exported, or copied from \
             /proc/{process}/fd/{descriptor}, until this process ends"
        ))
    }

    /// See [`crate::BlockDevice::shortened`].
    pub(crate) fn shortened(&self, needed: u64) -> Option<String> {
        let (bytes, needed) = (self.bytes().ok()?, needed * BLOCK_BYTES_U64);
        if bytes >= needed && !self.is_cut.load(Ordering::Relaxed) {
            return None;
        }
        let path = self.path.display();
        let what = match self.kind {
            Kind::Regular => format!("the data file {path} was cut while it is open"),
            Kind::Raw => format!("the block device {path} became smaller while it is open"),
        };
        Some(format!(
            "{what}: it has {bytes} bytes now, its store uses {needed}, and objects are lost. Export the readable objects before this process ends, and restore the rest from a backup"
        ))
    }
}

fn identity_of(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY))
}

impl Drop for Storage {
    fn drop(&mut self) {
        // Closing alone is not enough: a ring that the kernel is tearing down may hold the open file a little longer, and with it the lock.
        for file in self.below.iter().chain([&self.file]) {
            if let Err(error) = file.unlock() {
                tracing::warn!(path = %self.path.display(), %error, "cannot unlock the data file");
            }
        }
    }
}
