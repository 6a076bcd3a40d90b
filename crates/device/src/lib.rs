//! The only code that touches disks: one asynchronous interface and its implementations.
//!
//! Reading order: [`memory`] (who owns the bytes of a request), [`request`] (a request, its future, a batch),
//! this file (the interface), then the implementations: [`file`] opens files and raw devices, which are driven by
//! [`uring`] or [`threads`]; [`mem`] keeps blocks in memory. `shoal-device-sim` has a simulated device for tests.
//! [`blank`] says whether a device holds anything.
//!
//! Two ways of running a request, chosen by who runs the future: on a thread that may block
//! ([`shoal_base::task::block_on`]) the request is executed by the calling thread, without a hand-off; elsewhere it is
//! submitted and completes on another thread. Memory that the kernel may still touch belongs to the request, never to
//! the future: dropping a future leaves the request and its memory to the device until it completed.

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

/// Submitted requests of one device that wait for their turn. Their callers hold memory for each, so this many mean that
/// somebody forgot a limit of their own: further ones fail.
pub const WAITING_MAX: usize = 1 << 16;

/// Why a request failed.
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
        /// The system's error code, where there is one.
        code: Option<i32>,
        /// The system's words.
        message: String,
    },
    /// The request lies (partly) behind the end of the device.
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
    /// The device was shut down before the request completed; whether it took effect is not known.
    #[error("the device was shut down while {op} at block {block} was under way; its outcome is not known")]
    Abandoned {
        /// The operation.
        op: &'static str,
        /// First block of the request.
        block: u64,
    },
}

impl DeviceError {
    /// Whether the request was to change what the device holds, or to make changes durable.
    #[must_use]
    pub fn is_write(&self) -> bool {
        let (Self::Io { op, .. } | Self::OutOfRange { op, .. } | Self::Abandoned { op, .. }) = self;
        *op != Op::Read.name()
    }

    /// Whether a write found no room: in the file system, in a quota, or below a limit of file sizes. The blocks that were not
    /// written keep their contents and are not written later; a read shows which ones were.
    #[must_use]
    pub fn is_no_room(&self) -> bool {
        let Self::Io { op, code: Some(code), .. } = self else { return false };
        (*op == Op::Write.name() || *op == Op::WriteDurable.name()) && is_no_room(*code)
    }
}

/// Whether a system error says that there is no room for a write: `ENOSPC`, `EDQUOT` or `EFBIG`.
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

/// One device or file that is ours as a whole. Sizes and addresses are blocks of 4 KiB.
pub trait BlockDevice: Send + Sync {
    /// Starts the requests and returns at once; they complete on another thread or (in memory) before this returns, in
    /// any order. Never fails: a request that cannot be started completes with an error. Writes of a plugged thread may start at
    /// the end of its plug ([`shoal_base::plug`]).
    fn submit(&self, submissions: Vec<Submission>);

    /// Runs the requests on this thread and returns when all of them completed.
    fn execute(&self, submissions: Vec<Submission>);

    /// Runs one request on this thread, without what a hand-off needs; `None` where that is no shorter way here, and
    /// nothing was done.
    fn run(&self, request: IoRequest<'_>) -> Option<Result<(), DeviceError>> {
        let _ = request;
        None
    }

    /// Blocks that may be addressed now.
    fn blocks(&self) -> u64;

    /// Asks the system how large the device is now, and returns that in blocks: a raw device may have become larger since it was opened.
    /// All of it may be addressed then.
    ///
    /// # Errors
    /// The system's error.
    fn measure(&self) -> io::Result<u64> {
        Ok(self.blocks())
    }

    /// Blocks that the file could have with what its file system has free now; none of a raw device, and where that is not known.
    fn room(&self) -> Option<u64> {
        None
    }

    /// Bytes after the last whole block of a file or raw device: no request reaches them.
    ///
    /// # Errors
    /// The system's error.
    fn tail(&self) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    /// The next blocks from `block` on that may hold anything but zeros; empty if there are none. `None` if the device does not know,
    /// as every device but a file.
    fn data_after(&self, block: u64) -> Option<io::Result<Range<u64>>> {
        let _ = block;
        None
    }

    /// Makes the file at least `blocks` long; a raw device cannot grow. The new blocks read as zeros or as anything: the caller
    /// writes them before relying on them (R21).
    ///
    /// # Errors
    /// The system's error; a raw device that is shorter gives one too.
    fn grow(&self, blocks: u64) -> io::Result<()>;

    /// Whether [`grow`](Self::grow) takes the room of what is new at once, which then reads as zeros until it is written: nothing
    /// needs to be written there before it is used.
    fn allocates(&self) -> bool {
        false
    }

    /// As [`grow`](Self::grow), but the file system need not have room for what is new before it is written.
    ///
    /// # Errors
    /// As [`grow`](Self::grow).
    fn extend(&self, blocks: u64) -> io::Result<()> {
        self.grow(blocks)
    }

    /// Gives back what lies behind block `blocks`, which nobody uses: a growth that was begun and failed. A device that cannot
    /// get shorter keeps it.
    ///
    /// # Errors
    /// The system's error.
    fn shrink(&self, blocks: u64) -> io::Result<()> {
        let _ = blocks;
        Ok(())
    }

    /// Takes the room of `blocks` for this file alone: fills holes, and copies what it shares with other files where the file system
    /// can do that. The contents stay. A device that has its room anyway does nothing. Returns false if the file system cannot
    /// allocate: a hole gets its room when it is written.
    ///
    /// # Errors
    /// The system's error; the file may have the room of a part.
    fn hold_room(&self, blocks: Range<u64>) -> io::Result<bool> {
        let _ = blocks;
        Ok(true)
    }

    /// Whether each write needs new room in the file system, also one to blocks that were written before.
    fn is_copied_on_write(&self) -> bool {
        false
    }

    /// The fate of the file that it was opened by, where that is not at its place any more: it was deleted, renamed or
    /// replaced. Later writes would be gone with this process, or be missed by the next one. Asks the file system, so it
    /// may block.
    fn displaced(&self) -> Option<String> {
        None
    }

    /// Why the file or device is not whole any more, if it has fewer than the `needed` blocks that its store uses or a request found
    /// it shorter than it was: somebody cut the file, or made the device smaller. Asks the file system, so it may block.
    fn shortened(&self, needed: u64) -> Option<String> {
        let _ = needed;
        None
    }

    /// The kind of the device and of its driver, in a few words for the log.
    fn describe(&self) -> String;

    /// The file or block device that it was opened by; none where there is no such thing.
    fn path(&self) -> Option<PathBuf> {
        None
    }

    /// Whether [`grow`](Self::grow) can succeed (a file) or not (a raw device, an image in memory).
    fn can_grow(&self) -> bool;

    /// Whether it may hold what others wrote (a file, a raw device), and is to be [looked at](crate::blank::look) before
    /// anything new is laid out on it. A device in memory is its maker's.
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

    /// Writes `memory` from `block` on and makes it durable: it, and nothing else.
    ///
    /// On a file this is a write with `RWF_DSYNC`: the kernel follows the write with a flush of the device, or marks it
    /// "force unit access". The latter says nothing of earlier writes, so callers use it only when this request is
    /// all that must become durable.
    pub fn write_durable<M: IoMemory>(&self, block: u64, memory: M) -> IoFuture<M> {
        IoFuture::new(self.clone(), Op::WriteDurable, block, memory)
    }

    /// Makes every write that completed before durable.
    pub fn flush(&self) -> IoFuture<()> {
        IoFuture::new(self.clone(), Op::Flush, 0, ())
    }

    /// Tells the device that `blocks` blocks from `block` on hold nothing of value. They read as anything afterwards.
    pub fn discard(&self, block: u64, blocks: u64) -> IoFuture<()> {
        IoFuture::new(self.clone(), Op::Discard { blocks }, block, ())
    }

    /// An empty batch: requests that start together, with one submission.
    #[must_use]
    pub fn batch(&self) -> IoBatch {
        IoBatch::new(self.clone())
    }
}
