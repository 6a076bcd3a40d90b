//! Ids of writes: a session and a number in it, with which the server does a repeated write once (R17).
//!
//! The server keeps the results of a session's writes in 64 places, by the number modulo 64. So a session is used as 64
//! *lanes*: a write takes a free lane, the numbers with the same remainder modulo 64, and no other write uses it until the
//! write has completed. So no result is overwritten while its write may still be repeated. A lane whose write was abandoned
//! continues with its next number. From then on the server refuses repetitions of the old write, but only if the lane's next
//! write went to the same tablet, because results are kept by tablet. In another tablet, a repetition of an abandoned write may
//! still be done, once.

use std::sync::{Mutex, PoisonError};

pub(crate) use shoal_base::RequestId;
use shoal_base::{Entropy, SystemEntropy};

/// Lanes of a session: the number of results that the server keeps.
const LANES: u64 = 64;

/// Sessions of one client. If more writes than lanes are in flight, a further write does not wait: it has no id.
const SESSIONS_MAX: usize = 64;

/// The lanes of a client.
#[derive(Default)]
pub(crate) struct RequestIds(Mutex<Free>);

#[derive(Default)]
struct Free {
    /// The next id of each free lane; the most recently used one is used first, so that few results are kept.
    lanes: Vec<RequestId>,
    sessions: usize,
}

/// The id of a write in flight; its lane is free again when this is dropped.
pub(crate) struct Lane<'a> {
    ids: &'a RequestIds,
    pub(crate) id: RequestId,
}

impl RequestIds {
    /// An id that no write had; `None` if too many writes are in flight.
    pub(crate) fn take(&self) -> Option<Lane<'_>> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.lanes.is_empty() && free.sessions < SESSIONS_MAX {
            free.sessions += 1;
            let session = SystemEntropy.next_u64();
            free.lanes.extend((0..LANES).rev().map(|sequence| RequestId { session, sequence }));
        }
        let id = free.lanes.pop()?;
        Some(Lane { ids: self, id })
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut free = self.ids.0.lock().unwrap_or_else(PoisonError::into_inner);
        let RequestId { session, sequence } = self.id;
        if let Some(sequence) = sequence.checked_add(LANES) {
            free.lanes.push(RequestId { session, sequence });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn request_ids_are_unique_and_lanes_exclusive() {
        let ids = RequestIds::default();
        let mut seen = BTreeSet::new();
        for round in 0..50 {
            let held: Vec<_> = (0..round * 3).map(|_| ids.take().unwrap()).collect();
            let lanes: BTreeSet<_> =
                held.iter().map(|held| (held.id.session, held.id.sequence % LANES)).collect();
            assert_eq!(lanes.len(), held.len());
            assert!(held.iter().all(|held| seen.insert(held.id)));
        }
        let one = |ids: &RequestIds| ids.take().unwrap().id;
        let (first, second) = (one(&ids), one(&ids));
        assert_eq!((second.session, second.sequence), (first.session, first.sequence + LANES));
    }

    #[test]
    fn lanes_are_bounded() {
        let ids = RequestIds::default();
        let held: Vec<_> = std::iter::from_fn(|| ids.take()).collect();
        assert_eq!(held.len() as u64, LANES * SESSIONS_MAX as u64);
        drop(held);
        assert!(ids.take().is_some());
    }
}
