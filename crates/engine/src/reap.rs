//! The reaper: objects whose time is over are deleted, so that their space comes back (R18).
//!
//! Readers do not need it: they see that an object's time is over. It knows when the soonest ones are due from what was written
//! since the store was opened, and from one slow walk over the trees that have such objects, as their totals tell; where
//! there are more than it can remember, it walks again. It deletes only what it finds to be over at that moment, as one
//! step: whatever was written meanwhile stays.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::error::Result;
use crate::key::ObjectKey;
use crate::list::walk_expiring;
use crate::store::{Inner, OperationCounters};

/// Bytes of keys that the reaper remembers, with what a place in its list costs.
const REMEMBERED_BYTES_MAX: usize = 16 << 20;
/// What remembering a key costs besides its bytes, roughly.
const PLACE_BYTES: usize = 64;
/// Objects deleted at a time.
const DELETED_MAX: usize = 1_000;
/// Objects that the walk looks at at a time: it reads leaves that nobody asked for.
const WALKED_MAX: usize = 256;

#[derive(Default)]
struct Due {
    soonest: BTreeSet<(u64, Box<[u8]>)>,
    bytes: usize,
    forgot: bool,
}

/// What is due, the soonest first.
#[derive(Default)]
pub(crate) struct Expiring(Mutex<Due>);

impl Expiring {
    /// Remembers that an object's time ends. Where there is no room, the latest is forgotten.
    pub(crate) fn note(&self, expiry_ns: u64, key: &[u8]) {
        let mut due = self.0.lock();
        if due.soonest.insert((expiry_ns, key.into())) {
            due.bytes += key.len() + PLACE_BYTES;
        }
        while due.bytes > REMEMBERED_BYTES_MAX
            && let Some((_, latest)) = due.soonest.pop_last()
        {
            due.bytes -= latest.len() + PLACE_BYTES;
            due.forgot = true;
        }
    }

    /// Some whose time was over at `now_ns`.
    fn take(&self, now_ns: u64) -> Vec<Box<[u8]>> {
        let mut due = self.0.lock();
        let mut over = Vec::new();
        while over.len() < DELETED_MAX
            && due.soonest.first().is_some_and(|(expiry_ns, _)| *expiry_ns <= now_ns)
            && let Some((_, key)) = due.soonest.pop_first()
        {
            due.bytes -= key.len() + PLACE_BYTES;
            over.push(key);
        }
        over
    }

    /// Whether something was forgotten since this was asked.
    pub(crate) fn take_forgot(&self) -> bool {
        std::mem::take(&mut self.0.lock().forgot)
    }
}

impl Inner {
    /// Deletes what is due; says whether there may be more.
    ///
    /// # Errors
    /// As a delete.
    pub(crate) async fn reap_due(&self) -> Result<bool> {
        let over = self.expiring.take(self.expiry.now_ns());
        for key in &over {
            if let Some(key) = ObjectKey::of_encoded(key)
                && self.delete_if_over(&key).await?
            {
                OperationCounters::add(&self.counters.expired, 1);
            }
        }
        Ok(over.len() == DELETED_MAX)
    }

    /// Looks at some objects from the encoded key `from` on; gives where to go on, or nothing at the end.
    ///
    /// # Errors
    /// As a listing.
    pub(crate) async fn walk_for_expiring(&self, from: Vec<u8>) -> Result<Option<Vec<u8>>> {
        walk_expiring(self, from, WALKED_MAX, |key, entry| {
            if let Some(expiry_ns) = entry.expiry_ns {
                self.expiring.note(expiry_ns, key);
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soonest_are_remembered() {
        let expiring = Expiring::default();
        let room = REMEMBERED_BYTES_MAX / (PLACE_BYTES + 8);
        for number in 0..room as u64 + 1_000 {
            // From late to soon.
            expiring.note((1 << 40) - number, &number.to_le_bytes());
        }
        assert!(expiring.take_forgot() && !expiring.take_forgot());
        assert!(expiring.0.lock().bytes <= REMEMBERED_BYTES_MAX);
        let first = expiring.take(u64::MAX);
        assert_eq!(first[0][..], (room as u64 + 999).to_le_bytes());
        assert_eq!(first.len(), DELETED_MAX);
        assert!(expiring.take(0).is_empty());
    }
}
