//! Values whose bytes verify themselves: half values, mixed values and values of another key are recognised.
//!
//! A value is a sequence of cells of 16 bytes, the last one perhaps cut: the writer's number in clear and a check word over key, number,
//! length and the cell's place. Nothing is stored: the bytes are computed again for each check.

use std::fmt;

const CELL_BYTES: usize = 16;

/// The identity of a value: the bytes follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    /// Number of the key that it is written to.
    pub key: u64,
    /// Number of the write; no two writes share one.
    pub seed: u64,
    /// Length in bytes.
    pub bytes: usize,
}

/// Bytes that are not the expected value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    expected: Value,
    got_bytes: usize,
    /// The first byte that differs; `None` if only the length does.
    first: Option<usize>,
    /// The number of the writer in the cell there.
    found_seed: Option<u64>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, got_bytes, first, found_seed } = self;
        write!(f, "expected {} bytes of write {:#x}, got {got_bytes} bytes", expected.bytes, expected.seed)?;
        match (first, found_seed) {
            (Some(first), Some(seed)) => {
                write!(f, ", different from byte {first} on, which has {seed:#x}")
            }
            (Some(first), None) => write!(f, ", different from byte {first} on"),
            (None, _) => Ok(()),
        }
    }
}

impl Value {
    fn cell(self, index: usize) -> [u8; CELL_BYTES] {
        let place =
            mix(self.key) ^ mix(self.bytes as u64).rotate_left(21) ^ mix(index as u64).rotate_left(42);
        let check = mix(self.seed ^ mix(place));
        let mut cell = [0; CELL_BYTES];
        cell[..8].copy_from_slice(&self.seed.to_le_bytes());
        cell[8..].copy_from_slice(&check.to_le_bytes());
        cell
    }

    /// The value that write `number` stores under `key`, with a length that follows from the number: one of `sizes`.
    #[must_use]
    pub fn of_write(key: u64, number: u64, sizes: &[usize]) -> Self {
        Self { key, seed: number, bytes: sizes[(number % sizes.len() as u64) as usize] }
    }

    /// The number of the write that stored `bytes` under `key`: the reverse of [`of_write`](Self::of_write), for sizes of 8 bytes
    /// at least.
    ///
    /// # Panics
    /// If no write stored these bytes.
    #[must_use]
    pub fn write_of(key: u64, bytes: &[u8], sizes: &[usize]) -> u64 {
        let number = bytes.first_chunk().map(|number| u64::from_le_bytes(*number));
        let number = number.unwrap_or_else(|| panic!("key {key}: {} bytes are no value", bytes.len()));
        let value = Self::of_write(key, number, sizes);
        value.check(bytes).unwrap_or_else(|wrong| panic!("key {key}: {wrong}"));
        number
    }

    /// The bytes.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let cells = self.bytes.div_ceil(CELL_BYTES);
        let mut bytes = Vec::with_capacity(cells * CELL_BYTES);
        for index in 0..cells {
            bytes.extend_from_slice(&self.cell(index));
        }
        bytes.truncate(self.bytes);
        bytes
    }

    /// Checks that `got` is exactly this value.
    ///
    /// # Errors
    /// The place of the first difference, and the writer of the bytes there.
    pub fn check(self, got: &[u8]) -> Result<(), Mismatch> {
        let mut mismatch = Mismatch { expected: self, got_bytes: got.len(), first: None, found_seed: None };
        for (index, piece) in got.chunks(CELL_BYTES).enumerate() {
            let expected = self.cell(index);
            // By byte only if it differs: long values are checked by the thousand.
            if *piece == expected[..piece.len()] {
                continue;
            }
            let differing = piece.iter().zip(expected).position(|(&got, expected)| got != expected);
            if let Some(at) = differing.filter(|at| index * CELL_BYTES + at < self.bytes) {
                mismatch.first = Some(index * CELL_BYTES + at);
                mismatch.found_seed = piece.first_chunk().map(|seed| u64::from_le_bytes(*seed));
                return Err(mismatch);
            }
        }
        if got.len() == self.bytes { Ok(()) } else { Err(mismatch) }
    }
}

/// Spreads a number over 64 bits (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_value_passes() {
        for bytes in [0, 1, 15, 16, 17, 100, 5000] {
            let value = Value { key: 1, seed: 2, bytes };
            let good = value.to_vec();
            assert_eq!(value.check(&good), Ok(()));
            assert!(value.check(&[&good[..], &[0]].concat()).is_err(), "one byte too many");
            for index in (0..bytes).step_by(7) {
                let mut bad = good.clone();
                bad[index] ^= 1;
                assert!(
                    value.check(&bad).unwrap_err().to_string().contains(&format!("from byte {index} on"))
                );
                assert!(value.check(&good[..index]).is_err(), "cut after {index}");
            }
        }
    }

    #[test]
    fn value_bytes_identify_their_write() {
        const SIZES: [usize; 3] = [16, 100, 5000];
        for number in 0..7 {
            let bytes = Value::of_write(5, number, &SIZES).to_vec();
            assert_eq!(Value::write_of(5, &bytes, &SIZES), number);
            assert!(std::panic::catch_unwind(|| Value::write_of(6, &bytes, &SIZES)).is_err(), "another key");
        }
    }

    #[test]
    fn values_of_other_keys_writes_lengths_and_places_do_not_pass() {
        let value = Value { key: 1, seed: 2, bytes: 4096 };
        let mut mixed = value.to_vec();
        mixed[512..1024].copy_from_slice(&Value { seed: 3, ..value }.to_vec()[512..1024]);
        assert!(value.check(&mixed).unwrap_err().to_string().ends_with("from byte 512 on, which has 0x3"));
        let mut moved = value.to_vec();
        moved.copy_within(0..512, 512);
        assert!(value.check(&moved).is_err());
        assert!(value.check(&Value { key: 2, ..value }.to_vec()).is_err());
        assert!(
            value.check(&Value { bytes: 8192, ..value }.to_vec()[..4096]).is_err(),
            "the head of a longer value"
        );
    }
}
