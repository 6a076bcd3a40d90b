//! Those who must not answer before a record is durable, by the record.
//!
//! A record says by one bit whether anybody waits for it. The waiters are here and not in the record, because a record stays in an
//! overlay long after it is durable. Whoever registers asks once more afterwards whether the record is durable; the committer
//! says that it is before it asks the bit. One of the two sees the other, since both change the same word.

use std::task::Waker;

use shoal_base::sync::{Mutex, stripes};
use smallvec::SmallVec;

use crate::log::record::Record;

/// Lists that the records share, by their addresses.
const LISTS: usize = stripes(256);

/// See the top of the file.
pub(super) struct Waiters {
    lists: Box<[Mutex<List>]>,
}

/// Addresses of records, with one who waits for each. A record has its address until it was woken: the committer holds it.
type List = Vec<(usize, Waker)>;

fn address(record: &Record) -> usize {
    std::ptr::from_ref(record).addr()
}

impl Default for Waiters {
    fn default() -> Self {
        Self { lists: (0..LISTS).map(|_| Mutex::default()).collect() }
    }
}

impl Waiters {
    fn list(&self, address: usize) -> &Mutex<List> {
        // The upper bits of a product depend on all of the address.
        let mixed = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.lists[(mixed >> 32) as usize % self.lists.len()]
    }

    /// Leaves a waker that [`wake`](Self::wake) calls once.
    pub(super) fn register(&self, record: &Record, waker: &Waker) {
        let address = address(record);
        let mut list = self.list(address).lock();
        let is_known =
            record.await_it() && list.iter().any(|(of, known)| *of == address && known.will_wake(waker));
        if !is_known {
            list.push((address, waker.clone()));
        }
    }

    /// Wakes all who wait for `record`, and forgets them.
    pub(super) fn wake(&self, record: &Record) {
        if !record.end_waiting() {
            return;
        }
        let address = address(record);
        let woken: SmallVec<[Waker; 2]> = {
            let mut list = self.list(address).lock();
            // Once more under the lock: who came in between is woken, too.
            record.end_waiting();
            list.extract_if(.., |(of, _)| *of == address).map(|(_, waker)| waker).collect()
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// How many wait.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.lists.iter().map(|list| list.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use shoal_base::Lsn;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_is_woken_once_and_only_for_its_record() {
        let waiters = Waiters::default();
        let records: Vec<_> = (0..1_000).map(|lsn| Record::recovered(&[0; 20], Lsn(lsn), 0)).collect();
        let woken: Vec<_> = records.iter().map(|_| Arc::new(Woken::default())).collect();
        let other = Arc::new(Woken::default());
        for (record, woken) in records.iter().zip(&woken) {
            let waker = Waker::from(woken.clone());
            waiters.register(record, &waker);
            waiters.register(record, &waker);
            waiters.register(record, &Waker::from(other.clone()));
        }
        assert_eq!(waiters.count(), 2_000);
        for (at, record) in records.iter().enumerate() {
            waiters.wake(record);
            waiters.wake(record);
            assert!(
                woken
                    .iter()
                    .enumerate()
                    .all(|(of, woken)| woken.0.load(Ordering::Relaxed) == usize::from(of <= at))
            );
        }
        assert_eq!((other.0.load(Ordering::Relaxed), waiters.count()), (1_000, 0));
    }
}
