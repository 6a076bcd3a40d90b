//! The positions of scans. Redis's cursors are numbers; Shoal's listings continue after a key. A bounded table connects them:
//! the oldest cursors are dropped, and a dropped cursor is invalid.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use shoal_base::Entropy;

/// Stored cursors; each with a key of at most 1 KiB.
const CURSORS_MAX: usize = 16_384;

#[derive(Default)]
struct Table {
    behind: BTreeMap<u64, Vec<u8>>,
    order: VecDeque<u64>,
}

/// The cursors of a frontend.
#[derive(Default)]
pub(crate) struct Cursors(Mutex<Table>);

impl Cursors {
    /// A cursor that continues after `key`.
    pub(crate) fn add(&self, key: Vec<u8>, entropy: &dyn Entropy) -> u64 {
        // Clients in languages without 64-bit integers keep 53 bits.
        let cursor = (entropy.next_u64() >> 12).max(1);
        let mut table = self.0.lock();
        if table.order.len() >= CURSORS_MAX
            && let Some(oldest) = table.order.pop_front()
        {
            table.behind.remove(&oldest);
        }
        if table.behind.insert(cursor, key).is_none() {
            table.order.push_back(cursor);
        }
        cursor
    }

    /// The key after which a cursor continues. The cursor may be used again.
    pub(crate) fn key(&self, cursor: u64) -> Option<Vec<u8>> {
        self.0.lock().behind.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::SeededEntropy;

    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let (cursors, entropy) = (Cursors::default(), SeededEntropy::new(1));
        let first = cursors.add(b"a".to_vec(), &entropy);
        assert_eq!(cursors.key(first), Some(b"a".to_vec()));
        assert_eq!(cursors.key(first), Some(b"a".to_vec()), "a client may repeat a call");
        for _ in 0..CURSORS_MAX {
            cursors.add(b"b".to_vec(), &entropy);
        }
        assert_eq!(cursors.key(first), None);
        assert_eq!(cursors.0.lock().behind.len(), CURSORS_MAX);
    }
}
