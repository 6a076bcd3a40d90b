//! The memory of the figures, and their bounds within it. The server's division of its memory has a part for it.

use shoal_engine::CENSUS_BUCKETS_MAX;

use super::space::PARTS_MAX;

/// The least memory of the figures, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 5 << 18;
/// The most: all figures are as fine as they can be.
pub const MEMORY_BYTES_MAX: u64 = 20 << 20;

/// Bytes of a part of the map: its survey (12, and 136 for the sizes of its free runs), its kinds in two censuses (48), and its text.
const PART_BYTES: u64 = 256;
/// Bytes of a bucket in two censuses: a name, two numbers, and its share of the tree of names.
const BUCKET_BYTES: u64 = 400;
/// Parts of the coarsest map.
const PARTS_MIN: u64 = 1_024;

/// The bounds of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FigureLimits {
    /// Bytes of all samples of the history.
    pub(crate) history_bytes: usize,
    /// Parts of the finest map, a power of two.
    pub(crate) parts_max: u64,
    /// Buckets of a census.
    pub(crate) buckets_max: usize,
}

impl FigureLimits {
    /// The bounds of figures that take `memory_bytes`. A fifth is for the lists of a walk over free runs.
    pub(crate) fn within(memory_bytes: u64) -> Self {
        let fifth = memory_bytes.clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX) / 5;
        let parts = (fifth / PART_BYTES).clamp(PARTS_MIN, PARTS_MAX);
        Self {
            history_bytes: (2 * fifth) as usize,
            parts_max: 1 << parts.ilog2(),
            buckets_max: ((fifth / BUCKET_BYTES) as usize).min(CENSUS_BUCKETS_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_into_their_memory() {
        for memory in [0, MEMORY_BYTES_MIN, 2 << 20, 7 << 20, MEMORY_BYTES_MAX, u64::MAX] {
            let limits = FigureLimits::within(memory);
            let taken = limits.history_bytes as u64
                + limits.parts_max * PART_BYTES
                + limits.buckets_max as u64 * BUCKET_BYTES;
            let memory = memory.clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX);
            assert!(taken <= memory * 4 / 5 && taken > memory / 2, "{memory}: {limits:?}");
        }
        let of =
            |history_bytes, parts_max, buckets_max| FigureLimits { history_bytes, parts_max, buckets_max };
        assert_eq!(FigureLimits::within(0), of(512 << 10, PARTS_MIN, 655));
        assert_eq!(FigureLimits::within(u64::MAX), of(8 << 20, PARTS_MAX, CENSUS_BUCKETS_MAX));
    }
}
