//! The events of a simulated device, in order: crash states are made from them.
//!
//! An event's index is its time. Reads are not recorded: they change nothing.

use std::sync::Arc;

use super::image::{Block, Image};

/// The way in which a recorded write reached the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// Durable after a flush that starts later.
    Plain,
    /// Durable itself when it completes, without an effect on other writes.
    Durable,
    /// A discard: the blocks may hold their old contents or rubbish, and no flush settles it.
    Discard,
}

/// A write at its start.
#[derive(Clone, Debug)]
pub struct RecordedWrite {
    /// The way in which it becomes durable.
    pub kind: WriteKind,
    /// The written block.
    pub block: u64,
    pub(crate) data: Vec<Arc<Block>>,
}

impl RecordedWrite {
    /// The blocks written, in order.
    pub fn data(&self) -> impl Iterator<Item = &Block> {
        self.data.iter().map(AsRef::as_ref)
    }
}

/// One event. Writes and flushes are named by their number, counted from 0 in the order in which they started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A write started.
    WriteBegan(usize),
    /// A write was reported as complete.
    WriteEnded(usize),
    /// A write was reported as failed; any part of it may be there.
    WriteFailed(usize),
    /// A flush started.
    FlushBegan(usize),
    /// A flush was reported as complete: writes that had ended before its start are durable.
    FlushEnded(usize),
    /// A flush was reported as failed: writes that had ended and were not durable never will be for sure.
    FlushFailed(usize),
    /// The device grew to this many blocks, durable with the next flush.
    Grew(u64),
    /// The test made a note.
    Mark(u64),
}

/// All events since a simulated device was made.
#[derive(Clone)]
pub struct DeviceHistory {
    base: Image,
    events: Vec<DeviceEvent>,
    writes: Vec<RecordedWrite>,
    flushes: usize,
    marks: Vec<u64>,
}

impl DeviceHistory {
    /// No events yet on a device that holds `base`, all of it durable.
    pub(crate) fn new(mut base: Image) -> Self {
        base.settle();
        Self { base, events: Vec::new(), writes: Vec::new(), flushes: 0, marks: Vec::new() }
    }

    /// The content of the device at first.
    #[must_use]
    pub const fn base(&self) -> &Image {
        &self.base
    }

    /// The events, in order.
    #[must_use]
    pub fn events(&self) -> &[DeviceEvent] {
        &self.events
    }

    /// The writes, in the order in which they started.
    #[must_use]
    pub fn writes(&self) -> &[RecordedWrite] {
        &self.writes
    }

    /// The number of started flushes, durable writes not included.
    #[must_use]
    pub const fn flushes(&self) -> usize {
        self.flushes
    }

    /// The marks, in order.
    #[must_use]
    pub fn marks(&self) -> &[u64] {
        &self.marks
    }

    pub(crate) fn begin_write(&mut self, kind: WriteKind, block: u64, data: Vec<Arc<Block>>) -> usize {
        let number = self.writes.len();
        self.writes.push(RecordedWrite { kind, block, data });
        self.events.push(DeviceEvent::WriteBegan(number));
        number
    }

    pub(crate) fn end_write(&mut self, number: usize, succeeded: bool) {
        self.events.push(if succeeded {
            DeviceEvent::WriteEnded(number)
        } else {
            DeviceEvent::WriteFailed(number)
        });
    }

    pub(crate) fn begin_flush(&mut self) -> usize {
        let number = self.flushes;
        self.flushes += 1;
        self.events.push(DeviceEvent::FlushBegan(number));
        number
    }

    pub(crate) fn end_flush(&mut self, number: usize, succeeded: bool) {
        self.events.push(if succeeded {
            DeviceEvent::FlushEnded(number)
        } else {
            DeviceEvent::FlushFailed(number)
        });
    }

    pub(crate) fn grew(&mut self, blocks: u64) {
        self.events.push(DeviceEvent::Grew(blocks));
    }

    pub(crate) fn mark(&mut self, mark: u64) {
        self.marks.push(mark);
        self.events.push(DeviceEvent::Mark(mark));
    }
}
