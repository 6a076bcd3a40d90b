//! A set of groups as three levels of 64-bit words: a bit of a level is set if the word below it is not empty.
//!
//! Invariant: upper bits are exact, in both directions. Only one thread works on a set at a time, so a summary bit
//! never stays set over an empty word; searches assert it, and the audit checks every bit.

/// Most groups in a set: three levels of 64.
pub(crate) const GROUPS_MAX: usize = 64 * 64 * 64;

/// A set of groups, or of anything numbered from 0 up to [`GROUPS_MAX`].
#[derive(Clone, Debug)]
pub(crate) struct GroupSet {
    words: Vec<u64>,
    middles: Vec<u64>,
    top: u64,
}

impl GroupSet {
    /// The empty set of the groups below `groups`.
    pub(crate) fn new(groups: usize) -> Self {
        assert!(groups <= GROUPS_MAX, "{groups} groups in one set");
        let words = groups.div_ceil(64);
        Self { words: vec![0; words], middles: vec![0; words.div_ceil(64)], top: 0 }
    }

    pub(crate) fn contains(&self, group: usize) -> bool {
        self.words[group / 64] & (1 << (group % 64)) != 0
    }

    pub(crate) fn insert(&mut self, group: usize) {
        let word = group / 64;
        self.words[word] |= 1 << (group % 64);
        self.middles[word / 64] |= 1 << (word % 64);
        self.top |= 1 << (word / 64);
    }

    pub(crate) fn remove(&mut self, group: usize) {
        let word = group / 64;
        self.words[word] &= !(1 << (group % 64));
        if self.words[word] == 0 {
            self.middles[word / 64] &= !(1 << (word % 64));
            if self.middles[word / 64] == 0 {
                self.top &= !(1 << (word / 64));
            }
        }
    }

    /// The lowest group in the set.
    pub(crate) fn first(&self) -> Option<usize> {
        let middle = lowest(self.top)?;
        Some(self.first_below(middle))
    }

    /// The lowest group in the set that is `from` or above.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        let bits = self.words.get(word)? & (!0 << (from % 64));
        if bits != 0 {
            return lowest(bits).map(|bit| word * 64 + bit);
        }
        let middle = word / 64;
        if let Some(bit) = lowest(self.middles[middle] & above(word % 64)) {
            return Some(self.first_in_word(middle * 64 + bit));
        }
        lowest(self.top & above(middle)).map(|middle| self.first_below(middle))
    }

    /// The highest group in the set.
    pub(crate) fn last(&self) -> Option<usize> {
        let middle = highest(self.top)?;
        let word = middle * 64 + highest(self.middles[middle])?;
        Some(word * 64 + highest(self.words[word])?)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.first(), |&group| self.next(group + 1))
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        (self.words.capacity() + self.middles.capacity()) * size_of::<u64>()
    }

    /// Panics unless each summary bit is set exactly if the word below it is not empty.
    pub(crate) fn audit(&self) {
        assert_summary(&self.words, &self.middles);
        assert_summary(&self.middles, &[self.top]);
    }

    fn first_below(&self, middle: usize) -> usize {
        let bits = self.middles[middle];
        assert!(bits != 0, "a summary bit is set over an empty word");
        self.first_in_word(middle * 64 + bits.trailing_zeros() as usize)
    }

    fn first_in_word(&self, word: usize) -> usize {
        let bits = self.words[word];
        assert!(bits != 0, "a summary bit is set over an empty word");
        word * 64 + bits.trailing_zeros() as usize
    }
}

/// The number of the lowest bit that is set.
pub(crate) fn lowest(bits: u64) -> Option<usize> {
    (bits != 0).then(|| bits.trailing_zeros() as usize)
}

/// The number of the highest bit that is set.
pub(crate) fn highest(bits: u64) -> Option<usize> {
    (bits != 0).then(|| bits.ilog2() as usize)
}

/// All bits above bit `bit`, which is below 64.
pub(crate) const fn above(bit: usize) -> u64 {
    !(u64::MAX >> (63 - bit))
}

/// Panics unless each bit i of `summary` is set exactly if word i of `words` is not empty.
pub(crate) fn assert_summary(words: &[u64], summary: &[u64]) {
    for (word, &bits) in words.iter().enumerate() {
        let is_set = summary[word / 64] & (1 << (word % 64)) != 0;
        assert_eq!(is_set, bits != 0, "summary of word {word}: {bits:#x}");
    }
    let set: u32 = summary.iter().map(|bits| bits.count_ones()).sum();
    assert!(set as usize <= words.len(), "a summary bit is set after the last word");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn masks_at_the_ends() {
        assert_eq!(above(63), 0);
        assert_eq!(above(0), !1);
        assert_eq!(above(62), 1 << 63);
        assert_eq!((lowest(0), highest(0)), (None, None));
        assert_eq!((lowest(12), highest(12)), (Some(2), Some(3)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn behaves_as_an_ordered_set(
            groups in prop_oneof![Just(5_usize), Just(64), Just(4097), Just(GROUPS_MAX)],
            steps in prop::collection::vec((any::<u32>(), any::<bool>(), any::<u32>()), 1..200),
        ) {
            let mut set = GroupSet::new(groups);
            let mut model = BTreeSet::new();
            for (number, is_insert, from) in steps {
                // Half of the numbers are close together, so that words are emptied again.
                let group = if number % 2 == 0 { number as usize % groups } else { number as usize % groups.min(70) };
                if is_insert { set.insert(group); model.insert(group); } else { set.remove(group); model.remove(&group); }
                prop_assert_eq!(set.contains(group), is_insert);
                prop_assert_eq!(set.first(), model.first().copied());
                prop_assert_eq!(set.last(), model.last().copied());
                let from = from as usize % groups;
                prop_assert_eq!(set.next(from), model.range(from..).next().copied());
            }
            set.audit();
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!(set.next(groups + 64), None);
        }
    }
}
