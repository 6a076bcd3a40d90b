//! [`Span`]: a run within a group, and the effect of a change on runs.

/// A run within a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    /// The first block, counted from the start of the group.
    pub(crate) start: u32,
    /// How many blocks; at least 1.
    pub(crate) blocks: u32,
}

impl Span {
    pub(crate) const fn end(self) -> u32 {
        self.start + self.blocks
    }

    /// The common part of both, if any.
    pub(crate) fn intersection(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        (start < end).then(|| Self { start, blocks: end - start })
    }

    pub(crate) const fn pack(self) -> u32 {
        (self.start << 16) | (self.blocks - 1)
    }

    pub(crate) const fn unpack(packed: u32) -> Self {
        Self { start: packed >> 16, blocks: (packed & 0xFFFF) + 1 }
    }
}

/// The change of the neighbours when a run was put in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// The run as it is now.
    pub(crate) merged: Span,
    /// The run before it, which it swallowed.
    pub(crate) left: Option<Span>,
    /// The run after it, which it swallowed.
    pub(crate) right: Option<Span>,
}

/// A run, and its rests after a part was taken out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Removed {
    /// The run as it was.
    pub(crate) whole: Span,
    /// The rest before the part.
    pub(crate) before: Option<Span>,
    /// The rest after the part.
    pub(crate) after: Option<Span>,
}

impl Removed {
    /// The rest of `whole` without `part`, which is within it.
    #[inline]
    pub(crate) fn new(whole: Span, part: Span) -> Self {
        assert!(whole.start <= part.start && part.end() <= whole.end(), "{part:?} is not within {whole:?}");
        let before =
            (whole.start < part.start).then(|| Span { start: whole.start, blocks: part.start - whole.start });
        let after =
            (part.end() < whole.end()).then(|| Span { start: part.end(), blocks: whole.end() - part.end() });
        Self { whole, before, after }
    }
}
