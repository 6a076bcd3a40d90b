//! Random slots, for searches that look at a sample.

use shoal_base::sync::atomic::{AtomicU64, Ordering};

/// A pseudo-random sequence, good enough to sample slots.
#[derive(Default)]
pub(crate) struct Draw(AtomicU64);

/// The part of the sequence that one search uses.
pub(crate) struct Draws(u64);

impl Draw {
    /// Starts a search with one change of the state that all threads share.
    pub(crate) fn sequence(&self) -> Draws {
        Draws(self.0.fetch_add(1, Ordering::Relaxed) << 32)
    }
}

impl Draws {
    /// A number below `bound`, or 0. The bias is below 2^-32.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((u128::from(z ^ (z >> 31)) * u128::from(bound)) >> 64) as u32
    }
}
