//! The only code that touches disks: one asynchronous interface and its implementations.
//!
//! Reading order: [`memory`] (ownership of the bytes of a request), [`request`] (a request, its future, a batch), this file (the
//! interface), then the implementations: [`file`] opens files and raw devices, which are driven by [`uring`] or [`threads`]; [`mem`] keeps
//! blocks in memory; [`sim`] does so too, and records the states that a crash could leave. [`blank`] checks that a device is empty.
//!
//! A request runs in one of two ways, by the thread that polls the future: on a thread that may block ([`shoal_base::task::block_on`]) the
//! calling thread executes it, without a hand-off; elsewhere it is submitted and completes on another thread. Memory that the kernel may
//! still touch belongs to the request, never to the future: dropping a future leaves the request and its memory to the device until it
//! completed.

pub mod blank;
pub mod file;
pub mod mem;
pub mod memory;
pub mod request;

mod allocation;
mod below;
mod counters;
mod iovecs;
mod local;
mod recycle;
mod ring;
mod signature;
mod storage;
mod sys;
mod threads;
mod transfer;
mod uring;

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

pub use counters::Counters;
pub use file::{FileOptions, IoMode, OpenError, open};
pub use mem::MemDevice;
pub use memory::{IoBuf, IoMemory, ReadMemory};
pub use recycle::keep_at_most;
pub use request::{Completion, IoBatch, IoFuture, IoRequest, Op, Submission};
pub use shoal_base::{BLOCK_BYTES, BLOCK_BYTES_U64};

/// Submitted requests of one device that wait for their turn. Their callers hold memory for each, so this number means that a caller forgot
/// its own limit: further ones fail.
pub const WAITING_MAX: usize = 1 << 16;

/// The reason why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device or the kernel refused it.
    #[error("{op} of {blocks} block(s) at block {block} failed: {message}")]
    Io {
        /// The operation.
        op: &'static str,
        /// First block of the request.
        block: u64,
        /// Blocks of the request.
        blocks: u64,
        /// The system's error code, if there is one.
        code: Option<i32>,
        /// The system's words.
        message: String,
    },
    /// The request reaches past the end of the device.
    #[error("{op} of {blocks} block(s) at block {block}, but the device has {device_blocks} blocks")]
    OutOfRange {
        /// The operation.
        op: &'static str,
        /// First block of the request.
        block: u64,
        /// Blocks of the request.
        blocks: u64,
        /// Size of the device.
        device_blocks: u64,
    },
    /// The device was shut down before the request completed; its effect is unknown.
    #[error("the device was shut down while {op} at block {block} was under way; its outcome is not known")]
    Abandoned {
        /// The operation.
        op: &'static str,
        /// First block of the request.
        block: u64,
    },
}

impl DeviceError {
    /// Returns true if the request changes the contents of the device, or makes changes durable.
    #[must_use]
    pub fn is_write(&self) -> bool {
        let (Self::Io { op, .. } | Self::OutOfRange { op, .. } | Self::Abandoned { op, .. }) = self;
        *op != Op::Read.name()
    }

    /// Returns true if a write found no room: in the file system, in a quota, or below a limit of file sizes. The blocks that were not
    /// written keep their contents and are not written later; a read shows which ones were written.
    #[must_use]
    pub fn is_no_room(&self) -> bool {
        let Self::Io { op, code: Some(code), .. } = self else { return false };
        (*op == Op::Write.name() || *op == Op::WriteDurable.name()) && is_no_room(*code)
    }
}

/// Returns true if a system error means that there is no room for a write: `ENOSPC`, `EDQUOT` or `EFBIG`.
#[must_use]
pub const fn is_no_room(code: i32) -> bool {
    matches!(code, libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
}

/// Counts since the device was opened, for benchmarks, `stat` and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Read requests completed.
    pub reads: u64,
    /// Blocks read.
    pub blocks_read: u64,
    /// Write requests completed.
    pub writes: u64,
    /// Blocks written.
    pub blocks_written: u64,
    /// Flushes completed, writes with [`Op::WriteDurable`] included.
    pub flushes: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// One device or file that belongs to the store as a whole. Sizes and addresses are blocks of 4 KiB.
pub trait BlockDevice: Send + Sync {
    /// Starts the requests and returns at once; they complete on another thread or (in memory) before this returns, in
    /// any order. Never fails: a request that cannot be started completes with an error. Writes of a plugged thread may start at
    /// the end of its plug ([`shoal_base::plug`]).
    fn submit(&self, submissions: Vec<Submission>);

    /// Runs the requests on this thread and returns when all of them completed.
    fn execute(&self, submissions: Vec<Submission>);

    /// Runs one request on this thread, without the cost of a hand-off. Returns `None`, and does nothing, if the device has no such short
    /// cut.
    fn run(&self, request: IoRequest<'_>) -> Option<Result<(), DeviceError>> {
        let _ = request;
        None
    }

    /// Blocks that may be addressed now.
    fn blocks(&self) -> u64;

    /// Asks the system for the present size of the device, and returns it in blocks: a raw device may have grown since it was opened. All
    /// of it may be addressed then.
    ///
    /// # Errors
    /// The system's error.
    fn measure(&self) -> io::Result<u64> {
        Ok(self.blocks())
    }

    /// The size in blocks that the file could reach with the present free space of its file system; `None` for a raw device, and if
    /// unknown.
    fn room(&self) -> Option<u64> {
        None
    }

    /// Blocks of the disk that the file takes; holes take none. A raw device takes all of its blocks.
    fn taken(&self) -> u64 {
        self.blocks()
    }

    /// Bytes after the last whole block of a file or raw device: no request reaches them.
    ///
    /// # Errors
    /// The system's error.
    fn tail(&self) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    /// The next blocks from `block` on that may hold anything but zeros; empty if there are none. `None` if the device does not know, like
    /// every device except a file.
    fn data_after(&self, block: u64) -> Option<io::Result<Range<u64>>> {
        let _ = block;
        None
    }

    /// Makes the file at least `blocks` long; a raw device cannot grow. The new blocks read as zeros or as anything: the caller writes them
    /// before relying on them (R21).
    ///
    /// # Errors
    /// The system's error; an error also for a raw device that is shorter.
    fn grow(&self, blocks: u64) -> io::Result<()>;

    /// Returns true if [`grow`](Self::grow) takes the room of the new blocks at once, which then read as zeros until they are written: they
    /// can be used without writing zeros first.
    fn allocates(&self) -> bool {
        false
    }

    /// As [`grow`](Self::grow), but the file system need not have room for the new blocks before they are written.
    ///
    /// # Errors
    /// As [`grow`](Self::grow).
    fn extend(&self, blocks: u64) -> io::Result<()> {
        self.grow(blocks)
    }

    /// Cuts off the unused blocks from `blocks` on, after a growth that failed halfway. A device that cannot shrink keeps them.
    ///
    /// # Errors
    /// The system's error.
    fn shrink(&self, blocks: u64) -> io::Result<()> {
        let _ = blocks;
        Ok(())
    }

    /// Takes the room of `blocks` for this file alone: fills holes, and copies extents that it shares with other files if the file system
    /// can do that. The contents stay. A device that has its room anyway does nothing. Returns false if the file system cannot allocate: a
    /// hole gets its room when it is written.
    ///
    /// # Errors
    /// The system's error; a part of the room may be taken.
    fn hold_room(&self, blocks: Range<u64>) -> io::Result<bool> {
        let _ = blocks;
        Ok(true)
    }

    /// Returns true if each write needs new room in the file system, even to blocks that were written before.
    fn is_copied_on_write(&self) -> bool {
        false
    }

    /// The fate of the file that was opened, if it is not at its path any more: it was deleted, renamed or replaced. Later writes would be
    /// gone with this process, or be missed by the next one. Asks the file system, so it may block.
    fn displaced(&self) -> Option<String> {
        None
    }

    /// The reason why the file or device is not whole any more, if it has fewer than the `needed` blocks that its store uses or a request
    /// found it shorter than before: the file was cut, or the device became smaller. Asks the file system, so it may block.
    fn shortened(&self, needed: u64) -> Option<String> {
        let _ = needed;
        None
    }

    /// Returns true if reads may be answered by a cache of this machine, which does not have the writes of others.
    fn is_cached(&self) -> bool {
        false
    }

    /// The kind of the device and of its driver, in a few words for the log.
    fn describe(&self) -> String;

    /// The path of the file or block device; `None` if it has none.
    fn path(&self) -> Option<PathBuf> {
        None
    }

    /// Returns true if [`grow`](Self::grow) can succeed (a file), false if it cannot (a raw device, an image in memory).
    fn can_grow(&self) -> bool;

    /// Returns true if it may hold foreign data (a file, a raw device), and has to be [checked](crate::blank::look) before a new layout is
    /// written to it. A device in memory belongs to its maker.
    fn may_hold_foreign(&self) -> bool {
        false
    }

    /// Counts since it was opened.
    fn counters(&self) -> DeviceCounters;
}

/// A shared device with typed requests. Cheap to clone.
#[derive(Clone)]
pub struct Device(Arc<dyn BlockDevice>);

impl Device {
    /// Returns true if both are handles of one device.
    fn is_same(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.0.describe()).finish()
    }
}

impl Device {
    /// Wraps an implementation.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self(device)
    }

    /// The implementation.
    #[must_use]
    pub fn inner(&self) -> &Arc<dyn BlockDevice> {
        &self.0
    }

    /// Blocks that may be addressed now.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    /// Counts since it was opened.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }

    /// Reads blocks from `block` on until `memory` is full. The request starts when the future is first polled.
    pub fn read<M: ReadMemory>(&self, block: u64, memory: M) -> IoFuture<M> {
        IoFuture::new(self.clone(), Op::Read, block, memory)
    }

    /// Writes `memory` from `block` on. Durable only after a later [`flush`](Self::flush).
    pub fn write<M: IoMemory>(&self, block: u64, memory: M) -> IoFuture<M> {
        IoFuture::new(self.clone(), Op::Write, block, memory)
    }

    /// As [`read`](Self::read), at once and on this thread, which may block.
    pub fn read_now<M: ReadMemory>(&self, block: u64, memory: M) -> Completion<M> {
        self.run_now(Op::Read, block, memory)
    }

    /// As [`write`](Self::write), at once and on this thread, which may block.
    pub fn write_now<M: IoMemory>(&self, block: u64, memory: M) -> Completion<M> {
        self.run_now(Op::Write, block, memory)
    }

    fn run_now<M: IoMemory>(&self, op: Op, block: u64, mut memory: M) -> Completion<M> {
        match self.0.run(IoRequest::lent(op, block, &mut memory)) {
            Some(result) => Completion { result, memory },
            None => IoFuture::new(self.clone(), op, block, memory).wait_here(),
        }
    }

    /// Writes `memory` from `block` on and makes it durable: this memory, and no other write.
    ///
    /// On a file this is a write with `RWF_DSYNC`: the kernel follows the write with a flush of the device, or marks it "force unit
    /// access". The latter has no effect on earlier writes, so callers use it only if this request alone must become durable.
    pub fn write_durable<M: IoMemory>(&self, block: u64, memory: M) -> IoFuture<M> {
        IoFuture::new(self.clone(), Op::WriteDurable, block, memory)
    }

    /// Makes every write that completed before durable.
    pub fn flush(&self) -> IoFuture<()> {
        IoFuture::new(self.clone(), Op::Flush, 0, ())
    }

    /// Discards `blocks` blocks from `block` on, whose contents have no value. They read as anything afterwards.
    pub fn discard(&self, block: u64, blocks: u64) -> IoFuture<()> {
        IoFuture::new(self.clone(), Op::Discard { blocks }, block, ())
    }

    /// An empty batch: requests that start together, with one submission.
    #[must_use]
    pub fn batch(&self) -> IoBatch {
        IoBatch::new(self.clone())
    }
}
