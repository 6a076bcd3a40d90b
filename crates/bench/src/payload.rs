//! Objects whose key, length and bytes follow from a seed and their number, so that nothing has to be remembered.
//!
//! Values are slices of one region of random bytes that is prepared beforehand: making one costs nothing during a measurement,
//! and a returned value is recognised by its length and its first and last 8 bytes.

use std::f64::consts::TAU;

use anyhow::{Result, ensure};
use bytes::Bytes;
use shoal_base::{Entropy, SeededEntropy};

/// Bytes of the region that contains all values; more than the longest value.
const POOL_BYTES: usize = 16 << 20;

/// The longest value of a log-normal workload.
const LOG_NORMAL_BYTES_MAX: f64 = (4 << 20) as f64;

/// Compared bytes at the start and at the end of a value.
const END_BYTES: usize = 8;

/// The lengths of the values of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// All the same, in bytes.
    Fixed(u32),
    /// Log-normal with this median in bytes and this sigma; 1 byte to 4 MiB.
    LogNormal {
        /// Half of all values are shorter.
        median: u32,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
}

impl Sizes {
    /// The log-normal sizes of the project's benchmarks: median 16 KiB, sigma 1.5; the mean is about 48 KB.
    pub const LOG_NORMAL: Self = Self::LogNormal { median: 16 << 10, sigma: 1.5 };

    /// Length of value `number` of `seed`.
    fn bytes(self, seed: u64, number: u64) -> usize {
        match self {
            Self::Fixed(bytes) => bytes as usize,
            Self::LogNormal { median, sigma } => {
                let random = SeededEntropy::new(mix(seed ^ 0x51, number));
                // Box and Muller's transformation; the first number must not be 0.
                let uniform = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                let (first, second) = (1.0 - uniform(), uniform());
                let normal = (-2.0 * first.ln()).sqrt() * (TAU * second).cos();
                (f64::from(median) * (sigma * normal).exp()).clamp(1.0, LOG_NORMAL_BYTES_MAX) as usize
            }
        }
    }

    /// The mean length in bytes, of the first 10,000 of seed 0.
    #[must_use]
    pub fn mean(self) -> u64 {
        (0..10_000).map(|number| self.bytes(0, number) as u64).sum::<u64>() / 10_000
    }
}

/// Random bytes that contain all values. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RandomBytes {
    seed: u64,
    bytes: Bytes,
}

impl RandomBytes {
    /// The region of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let random = SeededEntropy::new(seed);
        let bytes = (0..POOL_BYTES / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect::<Vec<_>>();
        Self { seed, bytes: bytes.into() }
    }

    /// The objects under `name`.
    #[must_use]
    pub fn set(&self, name: &str, sizes: Sizes) -> ObjectSet {
        ObjectSet { pool: self.clone(), name: name.to_owned(), seed: salt(self.seed, name), sizes }
    }
}

/// Objects by number: key, length and bytes.
#[derive(Clone, Debug)]
pub struct ObjectSet {
    pool: RandomBytes,
    name: String,
    seed: u64,
    sizes: Sizes,
}

impl ObjectSet {
    /// Key of object `number`: "ab/cd/name-number" with two folders drawn from the number.
    #[must_use]
    pub fn key(&self, number: u64) -> Vec<u8> {
        let folders = mix(self.seed, number);
        format!("{:02x}/{:02x}/{}-{number:08}", folders as u8, (folders >> 8) as u8, self.name).into_bytes()
    }

    /// The lengths of the values.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Value of object `number`.
    #[must_use]
    pub fn value(&self, number: u64) -> Bytes {
        let bytes = self.sizes.bytes(self.seed, number);
        let place = mix(self.seed ^ 0xA7, number) as usize % (self.pool.bytes.len() - bytes);
        self.pool.bytes.slice(place..place + bytes)
    }

    /// Checks the returned bytes of object `number`.
    ///
    /// # Errors
    /// Length, first or last bytes are not those of the object.
    pub fn check(&self, number: u64, got: &Ends) -> Result<()> {
        let is_right = *got == Ends::of(&self.value(number));
        ensure!(is_right, "object {} came back with other bytes", String::from_utf8_lossy(&self.key(number)));
        Ok(())
    }
}

/// The compared parts of a value: its length, its first and its last 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Length of the value.
    pub bytes: u64,
    /// Its first 8 bytes, padded with zeros.
    pub first: [u8; END_BYTES],
    /// Its last 8 bytes, likewise.
    pub last: [u8; END_BYTES],
}

impl Ends {
    /// Those of a value in one piece.
    #[must_use]
    pub fn of(value: &[u8]) -> Self {
        let mut ends = Self { bytes: value.len() as u64, ..Self::default() };
        let count = value.len().min(END_BYTES);
        ends.first[..count].copy_from_slice(&value[..count]);
        ends.last[..count].copy_from_slice(&value[value.len() - count..]);
        ends
    }
}

/// A seed for `name` in a run with the seed `seed`.
#[must_use]
pub fn salt(seed: u64, name: &str) -> u64 {
    name.bytes().fold(seed, |seed, byte| mix(seed, u64::from(byte)))
}

/// A number that looks random and depends on both.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    SeededEntropy::new(a ^ b.wrapping_mul(0xD6E8_FEB8_6659_FD93)).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_depends_only_on_number() {
        let pool = RandomBytes::new(7);
        let set = pool.set("a", Sizes::LOG_NORMAL);
        let again = RandomBytes::new(7).set("a", Sizes::LOG_NORMAL);
        for number in 0..200 {
            assert_eq!(set.key(number), again.key(number));
            assert_eq!(set.value(number), again.value(number));
            set.check(number, &Ends::of(&again.value(number))).unwrap();
            set.check(number, &Ends::of(&set.value(number + 1))).unwrap_err();
        }
        assert_ne!(set.key(1), pool.set("b", Sizes::LOG_NORMAL).key(1));
    }

    #[test]
    fn log_normal_sizes_have_their_median_and_their_cap() {
        let set = RandomBytes::new(1).set("a", Sizes::LOG_NORMAL);
        let mut sizes: Vec<usize> = (0..10_001).map(|number| set.value(number).len()).collect();
        sizes.sort_unstable();
        assert!((15_000..18_000).contains(&sizes[5000]), "{}", sizes[5000]);
        assert!(sizes[0] >= 1 && sizes[10_000] <= 4 << 20);
        assert!((40_000..56_000).contains(&Sizes::LOG_NORMAL.mean()), "{}", Sizes::LOG_NORMAL.mean());
    }

    #[test]
    fn each_name_has_own_sequence() {
        let draws = |name: &str| SeededEntropy::new(salt(1, name)).below(1 << 40);
        assert_eq!(draws("get-cold-4k-c1 embedded"), draws("get-cold-4k-c1 embedded"));
        assert_ne!(draws("get-cold-4k-c1 embedded"), draws("get-cold-4k-c1 server"));
    }

    #[test]
    fn ends_of_short_values() {
        assert_eq!(Ends::of(b"abc"), Ends { bytes: 3, first: *b"abc\0\0\0\0\0", last: *b"abc\0\0\0\0\0" });
        assert_eq!(Ends::of(b""), Ends::default());
    }
}
