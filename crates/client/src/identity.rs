//! Identities of writes: a session, and a number in it, by which the server does a repeated write once (R17).
//!
//! The server keeps the results of a session's writes in 64 places, by the number modulo 64. So a session is used as 64
//! *lanes*: a write takes a free lane, whose numbers are its own modulo 64, and nobody else uses it until the write has ended.
//! So no result is overwritten whose write may still be repeated. A lane whose write was given up goes on with its next number.
//! From then on the server refuses what is left of the old write, but only where the lane's next write went to the same tablet:
//! results are kept by tablet. In another tablet what is left of a write that was given up may still be done, once.

use std::sync::{Mutex, PoisonError};

use shoal_base::{Entropy, SystemEntropy};

/// Lanes of a session: as many as the server keeps results.
const LANES: u64 = 64;

/// Sessions of one client: with more writes than lanes under way, a write waits for nothing and has no identity.
const SESSIONS_MAX: usize = 64;

/// Who a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The session.
    pub session: u64,
    /// The number of the write in it.
    pub sequence: u64,
}

/// The lanes of a client.
#[derive(Default)]
pub(crate) struct Identities(Mutex<Free>);

#[derive(Default)]
struct Free {
    /// The next identity of each free lane; the one that was used last is used first, so that few results are kept.
    lanes: Vec<Identity>,
    sessions: usize,
}

/// The identity of one write; its lane is free again when this is dropped.
pub(crate) struct Numbered<'a> {
    identities: &'a Identities,
    pub(crate) identity: Identity,
}

impl Identities {
    /// An identity that no write had; none where too many writes are under way.
    pub(crate) fn take(&self) -> Option<Numbered<'_>> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.lanes.is_empty() && free.sessions < SESSIONS_MAX {
            free.sessions += 1;
            let session = SystemEntropy.next_u64();
            free.lanes.extend((0..LANES).rev().map(|sequence| Identity { session, sequence }));
        }
        let identity = free.lanes.pop()?;
        Some(Numbered { identities: self, identity })
    }
}

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        let mut free = self.identities.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Identity { session, sequence } = self.identity;
        if let Some(sequence) = sequence.checked_add(LANES) {
            free.lanes.push(Identity { session, sequence });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_identity_is_given_twice_and_a_lane_has_one_write() {
        let identities = Identities::default();
        let mut seen = BTreeSet::new();
        for round in 0..50 {
            let held: Vec<_> = (0..round * 3).map(|_| identities.take().unwrap()).collect();
            let lanes: BTreeSet<_> =
                held.iter().map(|held| (held.identity.session, held.identity.sequence % LANES)).collect();
            assert_eq!(lanes.len(), held.len());
            assert!(held.iter().all(|held| seen.insert(held.identity)));
        }
        let one = |identities: &Identities| identities.take().unwrap().identity;
        let (first, second) = (one(&identities), one(&identities));
        assert_eq!((second.session, second.sequence), (first.session, first.sequence + LANES));
    }

    #[test]
    fn there_are_only_so_many() {
        let identities = Identities::default();
        let held: Vec<_> = std::iter::from_fn(|| identities.take()).collect();
        assert_eq!(held.len() as u64, LANES * SESSIONS_MAX as u64);
        drop(held);
        assert!(identities.take().is_some());
    }
}
