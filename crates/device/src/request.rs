//! A request, the future that waits for it, and a batch of requests that start together.
//!
//! The state of a request that may outlive its caller is in one shared allocation: the device holds a [`Ticket`] on it until the request
//! completed, the caller an [`IoFuture`]. The memory outlives the I/O in either order of drops. A plain [`Request`] is run by the calling
//! thread itself, on memory that it lends until then.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use shoal_base::BLOCK_BYTES;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, Ordering};
use shoal_base::task::may_block;
use smallvec::SmallVec;

use crate::memory::IoMemory;
use crate::{Device, DeviceError};

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Memory to device, durable when it completes ([`Device::write_durable`]).
    WriteDurable,
    /// All writes that completed before become durable.
    Flush,
    /// The blocks hold nothing of value.
    Discard {
        /// The number of blocks.
        blocks: u64,
    },
}

impl Op {
    /// The name for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::WriteDurable => "durable write",
            Self::Flush => "flush",
            Self::Discard { .. } => "discard",
        }
    }
}

/// The outcome of a request: its result, and the memory.
pub struct Outcome<M> {
    /// The result.
    pub result: Result<(), DeviceError>,
    /// The memory of the request.
    pub memory: M,
}

impl<M> Outcome<M> {
    /// The memory, if the request succeeded.
    ///
    /// # Errors
    /// The request's.
    pub fn ok(self) -> Result<M, DeviceError> {
        self.result.map(|()| self.memory)
    }
}

/// One segment of a request's memory.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Block-aligned address.
    pub start: *mut u8,
    /// Length in bytes, a multiple of the block size.
    pub bytes: usize,
}

enum State {
    Waiting(Option<Waker>),
    Done(Result<(), DeviceError>),
}

trait Cell: Send + Sync {
    fn complete(&self, result: Result<(), DeviceError>);
}

pub(crate) struct Shared<M> {
    /// Touched by the device through the segments until `done`, by the future's owner afterwards.
    memory: UnsafeCell<Option<M>>,
    state: Mutex<State>,
    /// Set once, with release, after the device finished with the memory; pairs with the acquire in `poll`.
    done: AtomicBool,
}

// SAFETY: `memory` is reached by one side at a time: never by the device directly (it has only the segments), and by
// the future only after `done`, which is set after the last access of the device.
unsafe impl<M: Send> Sync for Shared<M> {}

impl<M: Send> Cell for Shared<M> {
    fn complete(&self, result: Result<(), DeviceError>) {
        let waker = {
            let mut state = self.state.lock();
            let State::Waiting(waker) = &mut *state else { return };
            let waker = waker.take();
            *state = State::Done(result);
            self.done.store(true, Ordering::Release);
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// An operation, and the memory for it, which lives for `'a`; inside a [`Ticket`] until that is completed.
pub struct Request<'a> {
    op: Op,
    block: u64,
    segments: SmallVec<[Segment; 4]>,
    /// Invariant, so that no two requests can change places.
    memory: PhantomData<&'a mut &'a ()>,
}

impl<'a> Request<'a> {
    /// # Safety
    /// `memory` outlives the request, and no other code accesses it until then.
    unsafe fn of<M: IoMemory>(op: Op, block: u64, memory: &M) -> Self {
        let mut segments = SmallVec::new();
        memory.segments(&mut |start, bytes| {
            assert!(
                (start as usize).is_multiple_of(BLOCK_BYTES) && bytes.is_multiple_of(BLOCK_BYTES),
                "I/O memory must be whole blocks"
            );
            segments.push(Segment { start, bytes });
        });
        Self { op, block, segments, memory: PhantomData }
    }

    /// A request on lent memory.
    pub(crate) fn lent<M: IoMemory>(op: Op, block: u64, memory: &'a mut M) -> Self {
        // SAFETY: the loan keeps the memory in its place for 'a.
        unsafe { Self::of(op, block, memory) }
    }

    /// The operation.
    #[must_use]
    pub const fn op(&self) -> Op {
        self.op
    }

    /// First block.
    #[must_use]
    pub const fn block(&self) -> u64 {
        self.block
    }

    /// The memory, in order; valid until the request is over.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Bytes of all segments; for a discard the bytes of its blocks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self.op {
            Op::Discard { blocks } => {
                usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(BLOCK_BYTES)
            }
            _ => self.segments.iter().map(|segment| segment.bytes).sum(),
        }
    }

    /// Blocks of all segments, or of the discard.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        (self.bytes() / BLOCK_BYTES) as u64
    }

    /// Calls `fill` with the number and the memory of every block of a read request, in order.
    ///
    /// # Panics
    /// If the request is not a read: other memory may be shared.
    pub fn fill_blocks(&mut self, mut fill: impl FnMut(u64, &mut [u8])) {
        assert_eq!(self.op, Op::Read, "only the memory of a read may be written to");
        let mut block = self.block;
        for segment in &self.segments {
            for offset in (0..segment.bytes).step_by(BLOCK_BYTES) {
                // SAFETY: a read's memory is valid, initialised and reached by nobody else until the request is over, which `'a` or the
                // ticket guarantees; `&mut self` keeps two such slices from existing at once.
                fill(block, unsafe {
                    std::slice::from_raw_parts_mut(segment.start.add(offset), BLOCK_BYTES)
                });
                block += 1;
            }
        }
    }

    /// Calls `see` with the number and the memory of every block of a write request, in order.
    ///
    /// # Panics
    /// If the request is not a write.
    pub fn view_blocks(&self, mut see: impl FnMut(u64, &[u8])) {
        assert!(
            matches!(self.op, Op::Write | Op::WriteDurable),
            "only the memory of a write may be looked at"
        );
        let mut block = self.block;
        for segment in &self.segments {
            for offset in (0..segment.bytes).step_by(BLOCK_BYTES) {
                // SAFETY: a write's memory is valid and written to by nobody until the request is over.
                see(block, unsafe { std::slice::from_raw_parts(segment.start.add(offset), BLOCK_BYTES) });
                block += 1;
            }
        }
    }

    /// Checks the request against a device of `device_blocks` blocks.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn check_range(&self, device_blocks: u64) -> Result<(), DeviceError> {
        let blocks = self.blocks();
        match self.block.checked_add(blocks) {
            Some(end) if end <= device_blocks => Ok(()),
            _ => {
                Err(DeviceError::OutOfRange { op: self.op.name(), block: self.block, blocks, device_blocks })
            }
        }
    }

    /// The system's error as this request's.
    #[must_use]
    pub fn error(&self, error: &std::io::Error) -> DeviceError {
        DeviceError::Io {
            op: self.op.name(),
            block: self.block,
            blocks: self.blocks(),
            code: error.raw_os_error(),
            message: error.to_string(),
        }
    }
}

/// The device's side of a request. Must be [completed](Self::complete) exactly once; dropping it completes the
/// request as abandoned.
pub struct Ticket {
    request: Request<'static>,
    /// Keeps the memory alive until the device finished with it.
    cell: Option<Arc<dyn Cell>>,
    /// The requests that were [joined](Self::join) to this one: they keep the memory.
    parts: Vec<Ticket>,
}

// SAFETY: the segments point into memory that the cell, or those of the parts, own and that is `Send`.
unsafe impl Send for Ticket {}

impl Deref for Ticket {
    type Target = Request<'static>;

    fn deref(&self) -> &Request<'static> {
        &self.request
    }
}

impl Ticket {
    /// As [`Request::fill_blocks`]. (The request itself is never lent mutably: it could be exchanged.)
    ///
    /// # Panics
    /// If the request is not a read: other memory may be shared.
    pub fn fill_blocks(&mut self, fill: impl FnMut(u64, &mut [u8])) {
        self.request.fill_blocks(fill);
    }

    /// Runs the request with `step` and completes it with the result.
    pub fn run(mut self, step: impl FnOnce(&mut Request<'_>) -> Result<(), DeviceError>) {
        let result = step(&mut self.request);
        self.complete(result);
    }

    /// Completes the request: the device does not touch its memory any more.
    pub fn complete(mut self, result: Result<(), DeviceError>) {
        if let Some(cell) = self.cell.take() {
            cell.complete(result);
        } else {
            self.parts.drain(..).for_each(|part| part.complete(result.clone()));
        }
    }

    /// Joins `parts`, of one operation, each of which starts at the end of the one before, to one request.
    ///
    /// # Panics
    /// If they are not neighbours of one operation, or there are none.
    pub(crate) fn join(parts: Vec<Self>) -> Self {
        let follows = |one: &Self, next: &Self| one.block + one.blocks() == next.block && one.op == next.op;
        assert!(parts.is_sorted_by(follows) && !parts.is_empty(), "only neighbours are joined");
        let (op, block) = (parts[0].op, parts[0].block);
        let segments = parts.iter().flat_map(|part| part.segments.iter().copied()).collect();
        Self { request: Request { op, block, segments, memory: PhantomData }, cell: None, parts }
    }

    /// Takes the joined requests out, which leaves nothing of this one. None if it is not joined.
    pub(crate) fn take_parts(&mut self) -> Vec<Self> {
        std::mem::take(&mut self.parts)
    }

    /// Completes the request with an error of the system.
    pub fn fail(self, error: &std::io::Error) {
        let error = self.error(error);
        self.complete(Err(error));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            cell.complete(Err(DeviceError::Abandoned {
                op: self.request.op.name(),
                block: self.request.block,
            }));
        }
    }
}

/// Waits for one request. Starts it when first polled, unless a [`Batch`] did. Dropping it before the start forgets the request; after the
/// start the request continues and keeps its memory.
pub struct IoFuture<M> {
    shared: Arc<Shared<M>>,
    unstarted: Option<(Device, Ticket)>,
}

impl<M: IoMemory> IoFuture<M> {
    pub(crate) fn new(device: Device, op: Op, block: u64, memory: M) -> Self {
        let (shared, ticket) = request(op, block, memory);
        Self { shared, unstarted: Some((device, ticket)) }
    }

    /// Starts the request now: on this thread if it may block (the request has completed on return), else in the background.
    pub fn start(&mut self) {
        if let Some((device, ticket)) = self.unstarted.take() {
            if may_block() {
                device.inner().execute(vec![ticket]);
            } else {
                device.inner().submit(vec![ticket]);
            }
        }
    }

    /// Starts the request in the background, even on a thread that may block.
    #[must_use]
    pub fn in_background(mut self) -> Self {
        if let Some((device, ticket)) = self.unstarted.take() {
            device.inner().submit(vec![ticket]);
        }
        self
    }

    /// Runs the request on this thread, which may block.
    pub(crate) fn wait_here(mut self) -> Outcome<M> {
        if let Some((device, ticket)) = self.unstarted.take() {
            device.inner().execute(vec![ticket]);
        }
        match Pin::new(&mut self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => unreachable!("`execute` returns when the request has completed"),
        }
    }

    /// Returns true if the request has completed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.shared.done.load(Ordering::Acquire)
    }
}

fn request<M: IoMemory>(op: Op, block: u64, memory: M) -> (Arc<Shared<M>>, Ticket) {
    // SAFETY: the cell, which the ticket holds, owns the memory, and moving it there does not move the segments.
    let request = unsafe { Request::of(op, block, &memory) };
    let shared = Arc::new(Shared {
        memory: UnsafeCell::new(Some(memory)),
        state: Mutex::new(State::Waiting(None)),
        done: AtomicBool::new(false),
    });
    let ticket = Ticket { request, cell: Some(shared.clone()), parts: Vec::new() };
    (shared, ticket)
}

/// A request that no device knows, for tests of code that handles tickets.
#[cfg(test)]
pub(crate) fn request_for_test<M: IoMemory>(op: Op, block: u64, memory: M) -> (IoFuture<M>, Ticket) {
    let (shared, ticket) = request(op, block, memory);
    (IoFuture { shared, unstarted: None }, ticket)
}

impl<M: IoMemory> Future for IoFuture<M> {
    type Output = Outcome<M>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.start();
        if !self.shared.done.load(Ordering::Acquire) {
            let mut state = self.shared.state.lock();
            if let State::Waiting(waker) = &mut *state {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
        }
        let mut state = self.shared.state.lock();
        let State::Done(result) = std::mem::replace(&mut *state, State::Done(Ok(()))) else {
            unreachable!("`done` is set with the state")
        };
        // SAFETY: the request is done, so the device holds no access; `&mut self` is the only future on it.
        let memory = unsafe { (*self.shared.memory.get()).take() };
        let Some(memory) = memory else { panic!("an I/O future was polled again after it was ready") };
        Poll::Ready(Outcome { result, memory })
    }
}

/// Requests that start together.
pub struct Batch {
    device: Device,
    tickets: Vec<Ticket>,
}

impl Batch {
    pub(crate) fn new(device: Device) -> Self {
        Self { device, tickets: Vec::new() }
    }

    /// Adds the request of `future` (which must be of the same device and not started).
    pub fn add<M: IoMemory>(&mut self, mut future: IoFuture<M>) -> IoFuture<M> {
        if let Some((_, ticket)) = future.unstarted.take() {
            self.tickets.push(ticket);
        }
        future
    }

    /// Returns true if the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Starts all of them: on this thread if it may block (all have completed on return), else in the background.
    pub fn start(self) {
        if self.tickets.is_empty() {
            return;
        }
        if may_block() {
            self.device.inner().execute(self.tickets);
        } else {
            self.device.inner().submit(self.tickets);
        }
    }

    /// Starts all of them in the background, even on a thread that may block.
    pub fn start_in_background(self) {
        if !self.tickets.is_empty() {
            self.device.inner().submit(self.tickets);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{FileOptions, IoBuf, IoMode, MemDevice};

    /// A file and a device in memory run requests on lent memory, the simulated one on memory that it owns meanwhile.
    #[test]
    fn requests_run_in_place_do_the_same_with_and_without_a_shorter_way() {
        let folder = tempfile::tempdir().unwrap();
        let mut devices =
            vec![Device::new(Arc::new(MemDevice::new(4))), Device::new(crate::sim::SimDevice::new(4))];
        for io in [IoMode::Uring, IoMode::Threads] {
            let options = FileOptions { create: true, io, ..FileOptions::default() };
            let device = crate::open(&folder.path().join(format!("{io:?}")), &options).unwrap();
            device.inner().grow(4).unwrap();
            devices.push(device);
        }
        for device in devices {
            let name = format!("{device:?}");
            let bytes: Vec<u8> = (0..2 * BLOCK_BYTES).map(|at| (at % 251) as u8).collect();
            assert!(device.write_now(1, IoBuf::copied_from(&bytes)).result.is_ok(), "{name}");
            let read = device.read_now(1, IoBuf::unfilled(2)).ok().unwrap();
            assert_eq!(&read[..], &bytes[..], "{name}");
            let outside = device.read_now(3, IoBuf::unfilled(2));
            assert!(matches!(outside.result, Err(DeviceError::OutOfRange { .. })), "{name}");
            assert_eq!(outside.memory.len(), 2 * BLOCK_BYTES, "the memory comes back");
            let counters = device.counters();
            assert_eq!((counters.reads, counters.writes, counters.errors), (1, 1, 1), "{name}");
        }
    }
}
