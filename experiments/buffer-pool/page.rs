//! The contents of the benchmark's pages, so that a lost update, a stale read, a torn page and a wrong page are seen.
//!
//! A page carries its number and a version, the version again at its end, and one byte whose place and value follow
//! from the version. A check costs a few loads, so that it does not hide the cost of a pool.

use std::sync::atomic::{AtomicU64, Ordering};

use shoal_base::BLOCK_BYTES;

/// One page.
pub(crate) type Page = [u8; BLOCK_BYTES];

/// Threads of each kind; pages are dealt to them.
pub(crate) const THREADS: u64 = 8;

const NUMBER: usize = 8;
const VERSION: usize = 16;
const VERSION_AGAIN: usize = BLOCK_BYTES - 8;
const MARKS: usize = 32;
const MARKS_COUNT: u64 = 4000;

fn word(page: &Page, at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&page[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn mark_of(version: u64) -> (usize, u8) {
    (MARKS + (version % MARKS_COUNT) as usize, version as u8 | 1)
}

/// Fills in version `version` of page `number`.
pub(crate) fn stamp(page: &mut Page, number: u64, version: u64) {
    page[NUMBER..NUMBER + 8].copy_from_slice(&number.to_le_bytes());
    page[VERSION..VERSION + 8].copy_from_slice(&version.to_le_bytes());
    page[VERSION_AGAIN..].copy_from_slice(&version.to_le_bytes());
    let (at, mark) = mark_of(version);
    page[at] = mark;
}

/// The version of page `number`.
///
/// # Panics
/// If it is another page or a torn one: a pool that does this is broken, and its figures are worth nothing.
pub(crate) fn checked(page: &Page, number: u64) -> u64 {
    let version = word(page, VERSION);
    let (at, mark) = mark_of(version);
    let found = (word(page, NUMBER), word(page, VERSION_AGAIN), page[at]);
    assert_eq!(found, (number, version, mark), "page {number} is another one, or torn");
    version
}

/// The version of every page that was last written and released. Pages of one thread are adjacent.
pub(crate) struct Versions(Box<[AtomicU64]>);

impl Versions {
    pub(crate) fn new(pages: u64) -> Self {
        Self((0..pages).map(|_| AtomicU64::new(1)).collect())
    }

    fn of(&self, number: u64) -> &AtomicU64 {
        let each = self.0.len() as u64 / THREADS;
        &self.0[(number % THREADS * each + number / THREADS) as usize]
    }

    /// To be asked before a page is read: it must not be older.
    pub(crate) fn at_least(&self, number: u64) -> u64 {
        self.of(number).load(Ordering::Acquire)
    }

    /// To be called after the page was released.
    pub(crate) fn wrote(&self, number: u64, version: u64) {
        self.of(number).store(version, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_and_torn_pages_are_detected() {
        let mut page = [0; BLOCK_BYTES];
        stamp(&mut page, 7, 5);
        assert_eq!(checked(&page, 7), 5);
        let broken = |change: fn(&mut Page), number: u64| {
            let mut page = page;
            change(&mut page);
            std::panic::catch_unwind(move || checked(&page, number)).is_err()
        };
        assert!(broken(|_| {}, 8), "another page");
        assert!(broken(|page| page[VERSION] = 6, 7), "half of it is newer");
        assert!(broken(|page| page[mark_of(5).0] ^= 2, 7), "the middle is older");
    }
}
