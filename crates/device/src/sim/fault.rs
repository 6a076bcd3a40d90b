//! Faults on demand: the requests that fail, and the way in which they do.

use std::ops::Range;

use crate::Op;

/// The requests that a fault counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    /// Reads.
    Read,
    /// Writes, durable ones included.
    Write,
    /// Flushes, durable writes included.
    Flush,
    /// Growing.
    Grow,
    /// Discards.
    Discard,
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The request fails with this error of the system (such as `libc::EIO`). Of a failed write any part may show up after a crash, unless
    /// there was no room for it ([`crate::is_no_room`]): then none of it was written, or its first blocks ([`Fault::leaving`]), which are
    /// there at once. The writes of a failed flush stay in doubt: a later flush does not make them durable.
    Fail(i32),
    /// A write fails with this error, after its first blocks were written.
    FailAfter(i32, u64),
    /// A durable write fails in its flush. Its error has no number of the system, as that of a device: the bytes have their room.
    FailSync(i32),
    /// A write succeeds and reaches nothing.
    Lose,
    /// A write succeeds and lands at another block; the blocks meant keep their contents.
    Misdirect(u64),
}

/// One fault. Build it with [`Fault::fail`], [`Fault::lose`] or [`Fault::misdirect`].
#[derive(Clone, Debug)]
pub struct Fault {
    op: FaultOp,
    effect: Effect,
    skip: u64,
    repeated: bool,
    blocks: Option<Range<u64>>,
}

impl Fault {
    /// The next request of kind `op` fails with the system's error `code`.
    #[must_use]
    pub const fn fail(op: FaultOp, code: i32) -> Self {
        Self { op, effect: Effect::Fail(code), skip: 0, repeated: false, blocks: None }
    }

    /// The next write is lost.
    #[must_use]
    pub const fn lose() -> Self {
        Self { op: FaultOp::Write, effect: Effect::Lose, skip: 0, repeated: false, blocks: None }
    }

    /// The next write lands at `block` instead; blocks past the end of the device are lost.
    #[must_use]
    pub const fn misdirect(block: u64) -> Self {
        Self { op: FaultOp::Write, effect: Effect::Misdirect(block), skip: 0, repeated: false, blocks: None }
    }

    /// A write that fails has written its first `blocks` blocks.
    #[must_use]
    pub const fn leaving(mut self, blocks: u64) -> Self {
        if let Effect::Fail(code) = self.effect {
            self.effect = Effect::FailAfter(code, blocks);
        }
        self
    }

    /// Lets `count` such requests pass first.
    #[must_use]
    pub const fn after(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Repeats for good instead of once.
    #[must_use]
    pub const fn for_good(mut self) -> Self {
        self.repeated = true;
        self
    }

    /// Counts and hits only requests that touch `blocks`.
    #[must_use]
    pub const fn at(mut self, blocks: Range<u64>) -> Self {
        self.blocks = Some(blocks);
        self
    }

    fn counts(&self, op: FaultOp, range: &Range<u64>) -> bool {
        let touches = |blocks: &Range<u64>| blocks.start < range.end && range.start < blocks.end;
        self.op == op && self.blocks.as_ref().is_none_or(touches)
    }
}

/// The planned faults, and the number that struck.
#[derive(Default)]
pub(super) struct Faults {
    planned: Vec<Fault>,
    injected: u64,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.planned.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.planned.clear();
    }

    pub(super) const fn injected(&self) -> u64 {
        self.injected
    }

    /// The fault that strikes a request on the blocks of `range`.
    pub(super) fn strike(&mut self, op: Op, range: &Range<u64>) -> Option<Effect> {
        match op {
            Op::Read => self.strike_as(FaultOp::Read, range),
            Op::Write => self.strike_as(FaultOp::Write, range),
            Op::WriteDurable => {
                let as_write = self.strike_as(FaultOp::Write, range);
                let as_flush = self.strike_as(FaultOp::Flush, range);
                let as_sync = as_flush.map(|effect| match effect {
                    Effect::Fail(code) => Effect::FailSync(code),
                    effect => effect,
                });
                as_write.or(as_sync)
            }
            Op::Flush => self.strike_as(FaultOp::Flush, range),
            Op::Discard { .. } => self.strike_as(FaultOp::Discard, range),
        }
    }

    /// As [`Faults::strike`], for one kind. Every planned fault counts the request; the first that is due strikes.
    pub(super) fn strike_as(&mut self, op: FaultOp, range: &Range<u64>) -> Option<Effect> {
        let mut effect = None;
        self.planned.retain_mut(|fault| {
            if !fault.counts(op, range) {
                return true;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                return true;
            }
            if effect.is_some() {
                return true;
            }
            effect = Some(fault.effect);
            fault.repeated
        });
        self.injected += u64::from(effect.is_some());
        effect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_skips_and_repeats() {
        let mut faults = Faults::default();
        faults.add(Fault::fail(FaultOp::Write, 5).after(1));
        faults.add(Fault::fail(FaultOp::Read, 6).for_good().at(10..12));
        let hits: Vec<bool> = (0..3).map(|_| faults.strike(Op::Write, &(0..1)).is_some()).collect();
        assert_eq!(hits, [false, true, false]);
        assert_eq!(faults.strike(Op::Read, &(8..10)), None);
        assert_eq!(faults.strike(Op::Read, &(8..11)), Some(Effect::Fail(6)));
        assert_eq!(faults.strike(Op::Read, &(11..12)), Some(Effect::Fail(6)));
        assert_eq!(faults.injected(), 3);
    }

    #[test]
    fn a_durable_write_counts_as_write_and_as_flush() {
        let mut faults = Faults::default();
        faults.add(Fault::fail(FaultOp::Flush, 5).after(1));
        assert_eq!(faults.strike(Op::WriteDurable, &(0..1)), None);
        assert_eq!(faults.strike(Op::WriteDurable, &(0..1)), Some(Effect::FailSync(5)));
    }
}
