//! A 64-bit hash for tables and filters in memory. Never stored: it may change with the program.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

const A: u64 = 0x9E37_79B9_7F4A_7C15;
const B: u64 = 0xD6E8_FEB8_6659_FD93;

/// Hash of `bytes`: two rounds of a folded 128-bit multiplication for every 16 bytes (the construction of wyhash).
#[must_use]
pub fn hash64(bytes: &[u8]) -> u64 {
    hash(bytes, A, B)
}

/// The same with numbers that this process chose at random: for tables that would become slow if an attacker chose keys with equal hashes.
#[must_use]
pub fn hash64_secret(bytes: &[u8]) -> u64 {
    if cfg!(shoal_shuttle) {
        // A schedule is repeated by its seed alone.
        return hash64(bytes);
    }
    static SECRET: LazyLock<[u64; 2]> =
        LazyLock::new(|| [0_u8, 1].map(|which| RandomState::new().hash_one(which)));
    let [a, b] = *SECRET;
    hash(bytes, a, b)
}

#[inline]
fn hash(bytes: &[u8], a: u64, b: u64) -> u64 {
    let mut state = a ^ (bytes.len() as u64).wrapping_mul(B);
    let mut chunks = bytes.chunks_exact(16);
    for chunk in &mut chunks {
        let (low, high) = chunk.split_at(8);
        state = fold(word(low) ^ state, word(high) ^ b);
    }
    let rest = chunks.remainder();
    let (low, high) = rest.split_at(rest.len().min(8));
    fold(fold(word(low) ^ state, word(high) ^ b), A)
}

fn word(bytes: &[u8]) -> u64 {
    let mut out = [0; 8];
    out[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(out)
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_similar_keys() {
        let mut buckets = [0_u32; 64];
        for index in 0..64_000_u32 {
            buckets[(hash64(format!("default\0d/ab/{index:08}").as_bytes()) % 64) as usize] += 1;
        }
        assert!(buckets.iter().all(|&count| (800..1200).contains(&count)), "{buckets:?}");
        assert_ne!(hash64(b"one"), hash64_secret(b"one"));
        assert_eq!(hash64_secret(b"one"), hash64_secret(b"one"));
        assert_ne!(hash64(b""), hash64(b"\0"));
        assert_ne!(hash64(b"\0"), hash64(b"\0\0"));
    }
}
