//! Randomness as an argument: device identities and secret seeds from the system, everything in tests from a seed.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use parking_lot::Mutex;

/// Source of random numbers.
pub trait Entropy: Send + Sync {
    /// The next 64 random bits.
    fn next_u64(&self) -> u64;
}

/// The operating system's randomness, through the standard library's keyed hasher (whose keys come from the
/// system). Good enough for identities and for seeds that must not be guessed from stored data; not for keys.
#[derive(Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn next_u64(&self) -> u64 {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(0x5348_4f41_4c00_0001);
        hasher.finish()
    }
}

/// A reproducible sequence (SplitMix64; Steele, Lea and Flood, OOPSLA 2014).
pub struct SeededEntropy(Mutex<u64>);

impl SeededEntropy {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    /// The next number below `bound`; 0 if `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        // The bias is below bound / 2^64: of no consequence for tests and workloads.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

impl Entropy for SeededEntropy {
    fn next_u64(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
