//! I/O memory that was used before: handed out again instead of going back to the system.
//!
//! Fresh memory of this size comes from the kernel, which clears every page at the first touch and takes it back soon after
//! it was freed. Under puts of 4 KiB to 1 MiB that was 38 to 51 % of all CPU (docs/measurements/performance-log.md). A few size classes
//! keep at most [`KEPT_BYTES_MAX`] bytes; pieces beyond go back to the system. A recycled piece holds the bytes that its last
//! user left there, so a user that takes one writes all of it or clears the rest.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use shoal_base::BLOCK_BYTES;

use crate::allocation::Allocation;

/// The most bytes that are kept in the whole process, unless [`keep_at_most`] lowers it.
pub(crate) const KEPT_BYTES_MAX: usize = 16 << 20;

/// The limit in force; see [`keep_at_most`].
static KEPT_LIMIT: AtomicUsize = AtomicUsize::new(KEPT_BYTES_MAX);

/// Sets the most bytes of I/O memory that this process keeps for later, never more than 16 MiB. For a program that should use little
/// memory.
pub fn keep_at_most(bytes: usize) {
    KEPT_LIMIT.store(bytes.min(KEPT_BYTES_MAX), Ordering::Relaxed);
}

/// Longer pieces are not kept: they are rare, and a few of them would take all of the limit.
const KEPT_BLOCKS_MAX: usize = 1024;
/// Classes: 1 to 8 blocks exactly, then four a doubling up to [`KEPT_BLOCKS_MAX`].
const CLASSES: usize = 8 + 4 * 7;

static SHELVES: [Mutex<Vec<Allocation>>; CLASSES] = [const { Mutex::new(Vec::new()) }; CLASSES];
static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The class that releases a piece next when too much is kept.
static VICTIM: AtomicUsize = AtomicUsize::new(0);

/// A piece of a class up to this many above is taken if the class itself has none: three blocks more, or less than twice the size.
const CLASSES_ABOVE: usize = 3;

/// The class that holds pieces for `blocks` blocks, and the size of its pieces in blocks.
fn class_of(blocks: usize) -> Option<(usize, usize)> {
    match blocks {
        0 => None,
        1..=8 => Some((blocks - 1, blocks)),
        _ if blocks > KEPT_BLOCKS_MAX => None,
        _ => {
            // The doubling above 2^shift x 4, in steps of 2^shift blocks.
            let shift = (blocks - 1).ilog2() - 2;
            let steps = (blocks - 1) >> shift;
            let class = 8 + 4 * (shift as usize - 1) + (steps - 4);
            Some((class, (steps + 1) << shift))
        }
    }
}

/// Memory of at least `blocks` blocks, and true if all of it is zero.
pub(crate) fn take(blocks: usize) -> (Allocation, bool) {
    let Some((class, size)) = class_of(blocks) else { return (Allocation::zeroed(blocks), true) };
    match SHELVES.iter().skip(class).take(1 + CLASSES_ABOVE).find_map(pop) {
        Some(allocation) => (allocation, false),
        None => (Allocation::zeroed(size), true),
    }
}

fn pop(shelf: &Mutex<Vec<Allocation>>) -> Option<Allocation> {
    let allocation = shelf.lock().pop()?;
    KEPT_BYTES.fetch_sub(allocation.blocks() * BLOCK_BYTES, Ordering::Relaxed);
    Some(allocation)
}

/// Keeps a piece for later, if there is room.
pub(crate) fn keep(allocation: Allocation) {
    let blocks = allocation.blocks();
    let Some((class, size)) = class_of(blocks) else { return };
    let bytes = blocks * BLOCK_BYTES;
    assert_eq!(size, blocks, "pieces have the size of their class");
    let limit = KEPT_LIMIT.load(Ordering::Relaxed);
    let mut kept = KEPT_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
    for _ in 0..CLASSES {
        if kept <= limit {
            break;
        }
        // Pieces of earlier sizes make room for the present ones.
        let victim = VICTIM.fetch_add(1, Ordering::Relaxed) % CLASSES;
        drop(SHELVES.get(victim).and_then(pop));
        kept = KEPT_BYTES.load(Ordering::Relaxed);
    }
    if kept > limit {
        KEPT_BYTES.fetch_sub(bytes, Ordering::Relaxed);
        return;
    }
    if let Some(shelf) = SHELVES.get(class) {
        shelf.lock().push(allocation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_class_that_holds_it() {
        let mut last = None;
        for blocks in 1..=KEPT_BLOCKS_MAX {
            let (class, size) = class_of(blocks).unwrap();
            assert!(class < CLASSES && size >= blocks, "{blocks}: {class} {size}");
            assert!(size * 4 <= blocks * 5, "{blocks} blocks in {size}: at most a quarter is wasted");
            assert_eq!(class_of(size), Some((class, size)), "{blocks}");
            if let Some((before, size_before)) = last {
                assert!(class == before && size == size_before || class == before + 1, "{blocks}");
            }
            last = Some((class, size));
        }
        assert_eq!(class_of(0), None);
        assert_eq!(class_of(KEPT_BLOCKS_MAX + 1), None);
    }

    #[test]
    fn kept_memory_is_bounded() {
        let pieces: Vec<Allocation> = (0..KEPT_BYTES_MAX / (4 << 20) + 8).map(|_| take(1024).0).collect();
        pieces.into_iter().for_each(keep);
        assert!(KEPT_BYTES.load(Ordering::Relaxed) <= KEPT_BYTES_MAX);
        keep_at_most(1 << 20);
        let pieces: Vec<Allocation> = (0..100).map(|_| take(64).0).collect();
        pieces.into_iter().for_each(keep);
        // The pieces that were kept before are released one by one.
        (0..10 * CLASSES).for_each(|_| keep(take(1).0));
        // Other tests may be about to put a piece on its shelf.
        assert!(KEPT_BYTES.load(Ordering::Relaxed) <= 9 << 20);
        keep_at_most(usize::MAX);
        assert_eq!(KEPT_LIMIT.load(Ordering::Relaxed), KEPT_BYTES_MAX);
    }
}
