//! An open file or raw block device: its size, its lock, and requests run by plain system calls.
//!
//! Both ways of driving a file ([`crate::uring`], [`crate::threads`]) stand on this. Invariants: the descriptor holds
//! an exclusive lock from [`Storage::new`] until the last user of the storage is gone; the size only grows.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use shoal_base::BLOCK_BYTES_U64;

use crate::counters::Counters;
use crate::transfer::{Action, Transfer};
use crate::{DeviceCounters, DeviceError, Op, Request, Ticket, sys};

/// What the descriptor is open on.
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
    direct: bool,
    /// Stored with release after the file is long enough, loaded with acquire by the range check.
    blocks: AtomicU64,
    /// Growers wait for each other, nobody else for them.
    growing: Mutex<()>,
    /// Whether `RWF_DSYNC` works here, as far as is known. A figure: any order will do.
    dsync: AtomicBool,
    counters: Counters,
}

impl Storage {
    /// Takes over `file`, which is locked, `bytes` bytes long, and open with direct I/O or without.
    pub(crate) fn new(file: File, path: PathBuf, kind: Kind, direct: bool, bytes: u64) -> Self {
        Self {
            file,
            path,
            kind,
            direct,
            blocks: AtomicU64::new(bytes / BLOCK_BYTES_U64),
            growing: Mutex::new(()),
            dsync: AtomicBool::new(true),
            counters: Counters::default(),
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn dsync(&self) -> &AtomicBool {
        &self.dsync
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    pub(crate) fn can_grow(&self) -> bool {
        self.kind == Kind::Regular
    }

    pub(crate) fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }

    /// The path and how it is open; `driver` is how requests are run.
    pub(crate) fn describe(&self, driver: &str) -> String {
        let kind = if self.kind == Kind::Regular { "file" } else { "block device" };
        let cache = if self.direct { "O_DIRECT" } else { "page cache" };
        format!("{kind} {} ({driver}, {cache})", self.path.display())
    }

    /// Lets `ticket` through if it is in range, else completes it with the error.
    pub(crate) fn admit(&self, ticket: Ticket) -> Option<Ticket> {
        match ticket.check_range(self.blocks()) {
            Ok(()) => Some(ticket),
            Err(error) => {
                self.counters.count(ticket.op(), ticket.blocks(), false);
                ticket.complete(Err(error));
                None
            }
        }
    }

    /// Counts and completes a request.
    pub(crate) fn finish(&self, ticket: Ticket, result: io::Result<()>) {
        self.counters.count(ticket.op(), ticket.blocks(), result.is_ok());
        match result {
            Ok(()) => ticket.complete(Ok(())),
            Err(error) => ticket.fail(&error),
        }
    }

    /// Runs an admitted request on this thread and completes it.
    pub(crate) fn run(&self, ticket: Ticket) {
        if let Op::Discard { blocks } = ticket.op() {
            let result = self.discard(ticket.block(), blocks);
            return self.finish(ticket, result);
        }
        let mut transfer = Transfer::new(ticket);
        let result = self.run_transfer(&mut transfer);
        self.finish(transfer.into_request(), result);
    }

    /// Runs a request on lent memory on this thread.
    pub(crate) fn run_lent(&self, request: Request<'_>) -> Result<(), DeviceError> {
        if let Err(error) = request.check_range(self.blocks()) {
            self.counters.count(request.op(), request.blocks(), false);
            return Err(error);
        }
        let (request, result) = match request.op() {
            Op::Discard { blocks } => {
                let result = self.discard(request.block(), blocks);
                (request, result)
            }
            _ => {
                let mut transfer = Transfer::lent(request);
                let result = self.run_transfer(&mut transfer);
                (transfer.into_request(), result)
            }
        };
        self.counters.count(request.op(), request.blocks(), result.is_ok());
        result.map_err(|error| request.error(&error))
    }

    fn run_transfer<R>(&self, transfer: &mut Transfer<R>) -> io::Result<()> {
        while let Some(action) = transfer.action(self.dsync.load(Ordering::Relaxed)) {
            let result = match action {
                Action::Read => sys::read(&self.file, transfer),
                Action::Write { durable } => sys::write(&self.file, transfer, durable),
                Action::Sync => self.file.sync_data().map(|()| 0),
            };
            transfer.took(action, result, &self.dsync)?;
        }
        Ok(())
    }

    /// Where the file system or the device has no such thing, nothing happens: a discard promises nothing.
    fn discard(&self, block: u64, blocks: u64) -> io::Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        let (offset, bytes) = (block * BLOCK_BYTES_U64, blocks * BLOCK_BYTES_U64);
        let result = match self.kind {
            Kind::Regular => sys::punch_hole(&self.file, offset, bytes),
            Kind::Raw => sys::raw_discard(&self.file, offset, bytes),
        };
        match result {
            Err(error) if is_unsupported(&error) => Ok(()),
            result => result,
        }
    }

    /// See [`crate::BlockDevice::grow`]. New parts of a file are allocated, so that a full file system is noticed here.
    pub(crate) fn grow(&self, blocks: u64) -> io::Result<()> {
        let _one_grower = self.growing.lock();
        let old = self.blocks();
        if blocks <= old {
            return Ok(());
        }
        if self.kind == Kind::Raw {
            let message = format!("a block device of {old} blocks cannot grow to {blocks}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
        let bytes = blocks.checked_mul(BLOCK_BYTES_U64).ok_or_else(too_large)?;
        let old_bytes = old * BLOCK_BYTES_U64;
        match sys::allocate(&self.file, old_bytes, bytes - old_bytes) {
            Err(error) if is_unsupported(&error) => self.file.set_len(bytes)?,
            result => result?,
        }
        self.blocks.store(blocks, Ordering::Release);
        Ok(())
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY))
}

impl Drop for Storage {
    fn drop(&mut self) {
        // Closing alone would not do: a ring that is being torn down by the kernel may hold the open file a little
        // longer, and with it the lock.
        if let Err(error) = self.file.unlock() {
            tracing::warn!(path = %self.path.display(), %error, "cannot unlock the data file");
        }
    }
}
