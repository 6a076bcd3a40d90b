//! The lengths of short free runs that a shard has: one bit each, written under the shard's lock and read by everybody.
//!
//! A reader without the lock learns what was there a moment ago: good enough to choose a shard, never to answer a request.

use shoal_base::sync::atomic::{AtomicU64, Ordering};

use crate::bits::{highest, lowest};

/// A set of lengths. Only who holds the shard's lock changes it.
#[derive(Debug)]
pub(crate) struct Present {
    words: Box<[AtomicU64]>,
}

impl Present {
    pub(crate) fn new(classes: usize) -> Self {
        Self { words: (0..classes.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// A word that does not change is not written: the line stays in every reader's cache.
    #[inline]
    pub(crate) fn insert(&self, class: usize) {
        let word = self.word(class / 64);
        if word & (1 << (class % 64)) == 0 {
            self.words[class / 64].store(word | 1 << (class % 64), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn remove(&self, class: usize) {
        let word = self.word(class / 64);
        self.words[class / 64].store(word & !(1 << (class % 64)), Ordering::Relaxed);
    }

    /// The lowest class from `class` on.
    #[inline]
    pub(crate) fn from(&self, class: usize) -> Option<usize> {
        let word = class / 64;
        if word >= self.words.len() {
            return None;
        }
        if let Some(bit) = lowest(self.word(word) & (!0 << (class % 64))) {
            return Some(word * 64 + bit);
        }
        (word + 1..self.words.len()).find_map(|word| lowest(self.word(word)).map(|bit| word * 64 + bit))
    }

    /// The highest class.
    pub(crate) fn last(&self) -> Option<usize> {
        (0..self.words.len()).rev().find_map(|word| highest(self.word(word)).map(|bit| word * 64 + bit))
    }

    pub(crate) fn words(&self) -> Vec<u64> {
        (0..self.words.len()).map(|word| self.word(word)).collect()
    }

    #[inline]
    fn word(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }
}
