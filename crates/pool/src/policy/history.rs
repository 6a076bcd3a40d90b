//! The accesses of evicted units, so that a unit that comes back is not taken for a new one.
//!
//! Without it LRU-K is little better than FIFO if the pool is much smaller than the working set. The table is bounded
//! and set-associative: of the four entries of a set the one with the oldest access is replaced. Scans leave nothing
//! here.

use shoal_base::sync::{Mutex, stripes};
use smallvec::SmallVec;

use crate::unit::UnitId;

/// Units of time by which an access may be later than the present time of a search or a history: other threads continue
/// meanwhile.
const LATER_MAX: u32 = 1 << 24;

/// The age of an access; the least for one after `now` was read. (Time wraps around after 2^32 units.)
pub(super) fn age(now: u32, stamp: u32) -> u32 {
    now.wrapping_add(LATER_MAX).wrapping_sub(stamp)
}

/// Locks of the table.
const STRIPES: usize = stripes(64);

/// Entries among which a new one chooses.
const WAYS: usize = 4;

/// Most accesses that are remembered of a unit.
pub(crate) const K_MAX: usize = 16;

/// Times of accesses, the oldest first.
pub(crate) type Stamps = SmallVec<[u32; 4]>;

pub(crate) struct History {
    k: usize,
    sets: usize,
    stripes: Box<[Mutex<Stripe>]>,
}

#[derive(Default)]
struct Stripe {
    /// Fingerprints of the units; 0 is an empty entry.
    keys: Box<[u64]>,
    counts: Box<[u8]>,
    /// `k` an entry.
    stamps: Box<[u32]>,
}

impl History {
    /// A table of about `entries` entries; 0 means none.
    pub(crate) fn new(entries: usize, k: usize) -> Self {
        assert!((1..=K_MAX).contains(&k));
        let sets = entries.div_ceil(STRIPES * WAYS);
        let stripe = || {
            let entries = sets * WAYS;
            Mutex::new(Stripe {
                keys: vec![0; entries].into(),
                counts: vec![0; entries].into(),
                stamps: vec![0; entries * k].into(),
            })
        };
        Self { k, sets, stripes: (0..STRIPES).map(|_| stripe()).collect() }
    }

    /// Stripe, first entry of the set, fingerprint. Two units may share a fingerprint: then one inherits the other's
    /// past, which costs a hit at worst.
    fn place(&self, id: UnitId) -> (&Mutex<Stripe>, usize, u64) {
        let mut hash = id.block.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ id.identity;
        hash = (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        hash ^= hash >> 32;
        let set = (hash >> 8) as usize % self.sets;
        (&self.stripes[hash as usize % STRIPES], set * WAYS, hash | 1)
    }

    /// Remembers the accesses of an evicted unit.
    pub(crate) fn save(&self, id: UnitId, stamps: &[u32], now: u32) {
        if self.sets == 0 || stamps.is_empty() {
            return;
        }
        let (stripe, first, key) = self.place(id);
        let mut stripe = stripe.lock();
        let entry_age = |entry: usize| {
            let last = entry * self.k + usize::from(stripe.counts[entry]).saturating_sub(1);
            if stripe.keys[entry] == 0 { u32::MAX } else { age(now, stripe.stamps[last]) }
        };
        let entries = first..first + WAYS;
        let known = entries.clone().find(|&entry| stripe.keys[entry] == key);
        let Some(entry) = known.or_else(|| entries.max_by_key(|&entry| entry_age(entry))) else { return };
        stripe.keys[entry] = key;
        stripe.counts[entry] = stamps.len() as u8;
        stripe.stamps[entry * self.k..][..stamps.len()].copy_from_slice(stamps);
    }

    /// The accesses of a unit that comes back; forgotten here.
    pub(crate) fn take(&self, id: UnitId) -> Stamps {
        if self.sets == 0 {
            return Stamps::new();
        }
        let (stripe, first, key) = self.place(id);
        let mut stripe = stripe.lock();
        let Some(entry) = (first..first + WAYS).find(|&entry| stripe.keys[entry] == key) else {
            return Stamps::new();
        };
        stripe.keys[entry] = 0;
        let count = usize::from(stripe.counts[entry]);
        Stamps::from_slice(&stripe.stamps[entry * self.k..][..count])
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn remembers_until_newer_ones_need_the_place() {
        let history = History::new(256, 3);
        let id = |block| UnitId { block, identity: 1 };
        history.save(id(1), &[1, 2, 3], 3);
        assert!(history.take(UnitId { block: 1, identity: 2 }).is_empty(), "another life of the block");
        assert_eq!(history.take(id(1)).as_slice(), [1, 2, 3]);
        assert!(history.take(id(1)).is_empty(), "taken once");
        for block in 0..10_000 {
            history.save(id(block), &[block as u32], block as u32);
        }
        let kept = (0..10_000).filter(|&block| !history.take(id(block)).is_empty()).count();
        assert!((128..=256).contains(&kept), "{kept} of 256");
        let none = History::new(0, 2);
        none.save(id(1), &[1], 1);
        assert!(none.take(id(1)).is_empty());
    }
}
