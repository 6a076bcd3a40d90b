//! The operations of a run: their kinds, keys and values.

use shoal_base::{Entropy, SeededEntropy};

use super::record::Kind;
use crate::payload::{ObjectSet, RandomBytes, Sizes};
use crate::redis::command;

/// The name in the keys.
const NAME: &str = "tail";
/// The seed of objects and operations: the same in each run.
const SEED: u64 = 52;

/// The objects of a store.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    set: ObjectSet,
    pub(super) count: u64,
    pub(super) value_bytes: u64,
}

impl Objects {
    /// `count` objects with values of `value_bytes` bytes; their keys are "ab/cd/tail-NUMBER".
    pub(super) fn new(count: u64, value_bytes: u32) -> Self {
        let set = RandomBytes::new(SEED).set(NAME, Sizes::Fixed(value_bytes));
        Self { set, count, value_bytes: value_bytes.into() }
    }

    pub(super) fn key(&self, number: u64) -> Vec<u8> {
        self.set.key(number)
    }
}

/// The choice of the next operation.
pub(super) enum Work<'a> {
    /// SETs of all objects, one after the other.
    Fill { objects: &'a Objects, next: u64 },
    /// SETs and GETs of random objects.
    Random { objects: &'a Objects, random: SeededEntropy, get_share: f64, sets: u64 },
}

impl<'a> Work<'a> {
    pub(super) fn fill(objects: &'a Objects) -> Self {
        Self::Fill { objects, next: 0 }
    }

    /// Operations of which `get_share` are GETs; another order for each `seed`.
    pub(super) fn random(objects: &'a Objects, get_share: f64, seed: u64) -> Self {
        Self::Random { objects, random: SeededEntropy::new(SEED ^ seed << 32), get_share, sets: 0 }
    }

    /// Appends the command of the next operation.
    pub(super) fn next(&mut self, out: &mut Vec<u8>) -> Kind {
        match self {
            Self::Fill { objects, next } => {
                let number = *next;
                *next += 1;
                command(out, &[b"SET", &objects.key(number), &objects.set.value(number)]);
                Kind::Set
            }
            Self::Random { objects, random, get_share, sets } => {
                let key = objects.key(random.below(objects.count));
                let uniform = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                if uniform < *get_share {
                    command(out, &[b"GET", &key]);
                    return Kind::Get;
                }
                // Another value than before: a store could tell that nothing changes.
                *sets += 1;
                command(out, &[b"SET", &key, &objects.set.value(objects.count + *sets)]);
                Kind::Set
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_sets_each_object_once_and_a_mix_has_its_share_of_gets() {
        let objects = Objects::new(1000, 100);
        let (mut work, mut out) = (Work::fill(&objects), Vec::new());
        for number in [0, 1, 2] {
            out.clear();
            assert_eq!(work.next(&mut out), Kind::Set);
            let key = objects.key(number);
            assert!(out.windows(key.len()).any(|part| part == key), "{number}");
        }
        for (get_share, least, most) in [(0.0, 0, 0), (0.25, 150, 350), (1.0, 1000, 1000)] {
            let mut work = Work::random(&objects, get_share, 1);
            let gets = (0..1000).filter(|_| work.next(&mut Vec::new()) == Kind::Get).count();
            assert!((least..=most).contains(&gets), "{get_share}: {gets}");
        }
    }
}
