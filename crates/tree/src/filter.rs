//! The filter of a leaf: it excludes keys that the leaf certainly does not hold. Bytes: `docs/format/page.md`.
//!
//! An inner page of level 1 holds, after each child, a Bloom filter of the leaf's keys: 16 bits a key, six probes, so about one absent key
//! in a thousand passes. A lookup searches some ten layers, and each key that passes costs a read. The filter is in the item that also has
//! the leaf's checksum, and an apply renews both whenever it writes the leaf; so a filter never denies a key that its leaf holds (INV-29).
//! A leaf without a filter may hold any key.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::Tree;

const BITS_A_KEY: usize = 16;
const PROBES: u32 = 6;

/// Longest filter: a leaf of more keys has fewer bits for each.
pub(crate) const FILTER_BYTES_MAX: usize = 160;

/// A sought key.
pub struct Probe<'a> {
    /// Its bytes.
    pub key: &'a [u8],
    seed: u64,
    hash: Option<u64>,
    /// True if filters are asked before pages in memory: the key is probably absent.
    pub expects_absence: bool,
}

impl<'a> Probe<'a> {
    /// A key that the tree probably holds: its filter is asked only before a leaf is read from the device.
    #[inline]
    pub fn expected(tree: Tree, key: &'a [u8]) -> Self {
        Self { key, seed: tree.device, hash: None, expects_absence: false }
    }

    /// The same key in a tree that probably does not hold it.
    #[inline]
    pub fn unexpected(tree: Tree, key: &'a [u8]) -> Self {
        Self { hash: Some(hash_of(tree.device, key)), expects_absence: true, ..Self::expected(tree, key) }
    }

    /// Returns true if the leaf with this filter may hold the key.
    #[inline]
    pub fn may_be_in(&self, filter: &[u8]) -> bool {
        if filter.is_empty() {
            return true;
        }
        may_contain(filter, self.hash.unwrap_or_else(|| hash_of(self.seed, self.key)))
    }
}

/// The hash of a key in the filters of the store whose pages carry the identity `seed`.
#[inline]
pub(crate) fn hash_of(seed: u64, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, seed)
}

/// Builds the filter of keys with these hashes.
pub(crate) fn filter_of(hashes: impl ExactSizeIterator<Item = u64>) -> Vec<u8> {
    let bytes = (hashes.len() * BITS_A_KEY).div_ceil(8).min(FILTER_BYTES_MAX);
    filter_with(bytes, hashes)
}

fn filter_with(bytes: usize, hashes: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut filter = vec![0; bytes];
    for hash in hashes {
        for bit in places(bytes, hash) {
            filter[bit / 8] |= 1 << (bit % 8);
        }
    }
    filter
}

#[inline]
pub(crate) fn may_contain(filter: &[u8], hash: u64) -> bool {
    places(filter.len(), hash).all(|bit| filter[bit / 8] & 1 << (bit % 8) != 0)
}

/// The bits of a hash in a filter of `bytes` bytes: one half of the hash is the start, the other the step.
#[inline]
fn places(bytes: usize, hash: u64) -> impl Iterator<Item = usize> {
    let (start, step) = (hash as u32, (hash >> 32) as u32 | 1);
    let bits = bytes as u64 * 8;
    (0..PROBES).map(move |probe| {
        let place = start.wrapping_add(probe.wrapping_mul(step));
        ((u64::from(place) * bits) >> 32) as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_never_denies_and_passes_one_absent_key_in_a_thousand() {
        let hashes = |from: u64, count: u64| {
            (from..from + count).map(|key| hash_of(7, &key.to_be_bytes())).collect::<Vec<_>>()
        };
        for count in [1, 3, 30, 100, 128, 200] {
            let inside = hashes(0, count);
            let filter = filter_of(inside.iter().copied());
            assert!(inside.iter().all(|&hash| may_contain(&filter, hash)), "{count} keys");
            let passed =
                hashes(1 << 32, 20_000).into_iter().filter(|&hash| may_contain(&filter, hash)).count();
            // The bits of a few keys are spread less evenly; with many keys each has fewer bits.
            let most = match count {
                ..30 => 200,
                30..=100 => 100,
                101..=128 => 300,
                _ => 2_000,
            };
            assert!(passed < most, "{passed} of 20,000 absent keys pass a filter of {count}");
        }
    }

    /// Filters are stored: the hash and the places of its bits never change.
    #[test]
    fn the_bits_of_a_key_never_change() {
        let hash = hash_of(0x1122_3344_5566_7788, b"photos/1");
        assert_eq!(hash, GOLDEN_HASH);
        let hashes = [hash, hash_of(1, b"x"), hash_of(2, b"")];
        assert_eq!(filter_of(hashes.into_iter()), GOLDEN_FILTER);
        assert_eq!(filter_with(4, hashes.into_iter()), GOLDEN_FILTER_OF_TEN_BITS);
    }

    const GOLDEN_HASH: u64 = 13_559_805_472_868_662_033;
    const GOLDEN_FILTER: [u8; 6] = [25, 32, 24, 42, 253, 0];
    /// As in pages of earlier programs.
    const GOLDEN_FILTER_OF_TEN_BITS: [u8; 4] = [5, 33, 174, 7];
}
