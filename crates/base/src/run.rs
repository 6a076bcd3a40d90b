//! A run of blocks.

use std::fmt;

/// A contiguous, non-empty run of device blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The first block.
    pub block: u64,
    /// The number of blocks; at least 1.
    pub blocks: u32,
}

impl Run {
    /// The run of `blocks` blocks from `block` on.
    #[must_use]
    pub const fn new(block: u64, blocks: u32) -> Self {
        Self { block, blocks }
    }

    /// The first block after the run.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.block + self.blocks as u64
    }

    /// Returns true if the two share a block.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.block < other.end() && other.block < self.end()
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.block, self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_share_a_block_overlap() {
        let (run, all) = (Run::new(4, 3), Run::new(0, 20));
        assert!(run.overlaps(Run::new(6, 1)) && run.overlaps(all) && all.overlaps(run));
        assert!(!run.overlaps(Run::new(7, 1)) && !run.overlaps(Run::new(0, 4)));
        assert_eq!((run.end(), run.to_string()), (7, "4+3".to_owned()));
    }
}
