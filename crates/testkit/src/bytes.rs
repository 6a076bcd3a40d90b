//! Plain bytes for values and names, and numbers among bytes. (Values that several writers could mix up are [`Value`](crate::Value)s, which
//! verify themselves.)

use shoal_base::{Entropy, SeededEntropy};

/// `bytes` bytes that differ from place to place and from seed to seed, without a period that any size of the store
/// divides.
#[must_use]
pub fn patterned(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 31 + at / 253 + seed * 7) % 251) as u8).collect()
}

/// `bytes` random bytes of `seed`, which nothing compresses.
#[must_use]
pub fn random(bytes: usize, seed: u64) -> Vec<u8> {
    let dice = SeededEntropy::new(seed);
    let mut all = Vec::with_capacity(bytes + 8);
    while all.len() < bytes {
        all.extend_from_slice(&dice.next_u64().to_le_bytes());
    }
    all.truncate(bytes);
    all
}

/// The name of the object with this number, if a test has no special one.
#[must_use]
pub fn name_of(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// The number at an offset and of a length in `bytes`: as in all formats, the lowest byte first.
///
/// # Panics
/// If there is no such place, or it is longer than eight bytes.
#[must_use]
pub fn number(bytes: &[u8], (at, length): (usize, usize)) -> u64 {
    let mut number = [0; 8];
    number[..length].copy_from_slice(&bytes[at..at + length]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_length_give_one_value() {
        for bytes in [0, 1, 7, 8, 9, 5_000] {
            assert_eq!((patterned(bytes, 1).len(), random(bytes, 1).len()), (bytes, bytes));
        }
        assert_eq!((patterned(50, 3), random(50, 3)), (patterned(50, 3), random(50, 3)));
        assert_ne!(patterned(50, 3), patterned(50, 4));
        assert_ne!(random(50, 3), random(50, 4));
        assert_eq!((number(&[9, 1, 2, 9], (1, 2)), number(&[7; 8], (0, 0))), (0x0201, 0));
        assert_ne!(patterned(8_192, 3)[..4_096], patterned(8_192, 3)[4_096..], "two blocks differ");
    }
}
