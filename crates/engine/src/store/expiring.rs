//! The objects that expire next, as many as memory may remember.

use std::collections::BTreeSet;

use shoal_base::sync::Mutex;

use crate::common::object::End;

/// Bytes of remembered keys, with the overhead of their places, unless `Tuning::deadlines_bytes_max` says otherwise.
const REMEMBERED_BYTES_MAX: usize = 16 << 20;
/// Overhead of a remembered key, in bytes, roughly.
const PLACE_BYTES: usize = 64;
/// Expired objects deleted at a time.
pub(crate) const DELETED_MAX: usize = 1_000;

/// Deadlines of one kind with their keys, the earliest first.
type Deadlines = BTreeSet<(u64, Box<[u8]>)>;

pub(crate) struct Due {
    /// Deadlines of store time.
    pub store: Deadlines,
    /// Deadlines of the wall clock.
    wall: Deadlines,
    bytes: usize,
    /// Bytes of keys that may be remembered.
    pub bytes_max: usize,
    forgot: bool,
}

impl Default for Due {
    fn default() -> Self {
        let (store, wall) = (Deadlines::new(), Deadlines::new());
        Self { store, wall, bytes: 0, bytes_max: REMEMBERED_BYTES_MAX, forgot: false }
    }
}

impl Due {
    /// Removes the latest deadline of the kind that has more of them.
    fn take_latest(&mut self) -> Option<(u64, Box<[u8]>)> {
        let kind = if self.store.len() > self.wall.len() { &mut self.store } else { &mut self.wall };
        kind.pop_last()
    }
}

/// The current moment on both clocks.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    pub store_ns: u64,
    pub wall_ns: u64,
}

/// The remembered deadlines, the earliest first.
#[derive(Default)]
pub(crate) struct Expiring(pub Mutex<Due>);

impl Expiring {
    /// Remembers an object's deadline. Forgets the latest deadlines if memory is full.
    pub(crate) fn note(&self, end: End, key: &[u8]) {
        let mut due = self.0.lock();
        let is_new = match end {
            End::Store(ns) => due.store.insert((ns, key.into())),
            End::Wall(ns) => due.wall.insert((ns, key.into())),
        };
        if is_new {
            due.bytes += key.len() + PLACE_BYTES;
        }
        while due.bytes > due.bytes_max
            && let Some((_, latest)) = due.take_latest()
        {
            due.bytes -= latest.len() + PLACE_BYTES;
            due.forgot = true;
        }
    }

    /// Returns true if no deadline is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        let due = self.0.lock();
        due.store.is_empty() && due.wall.is_empty()
    }

    /// Takes up to [`DELETED_MAX`] keys of each kind whose deadlines have passed.
    pub(crate) fn take(&self, now: Now) -> Vec<Box<[u8]>> {
        let mut due = self.0.lock();
        let Due { store, wall, bytes, .. } = &mut *due;
        let mut over = Vec::new();
        for (deadlines, now_ns) in [(store, now.store_ns), (wall, now.wall_ns)] {
            while over.len() < DELETED_MAX
                && deadlines.first().is_some_and(|(ns, _)| *ns <= now_ns)
                && let Some((_, key)) = deadlines.pop_first()
            {
                *bytes -= key.len() + PLACE_BYTES;
                over.push(key);
            }
        }
        over
    }

    /// Notes that taken keys were not handled: a walk must find them again.
    pub(crate) fn forget(&self) {
        self.0.lock().forgot = true;
    }

    /// Returns true if a deadline was forgotten since the last call.
    pub(crate) fn take_forgot(&self) -> bool {
        std::mem::take(&mut self.0.lock().forgot)
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
            // From late to early.
            let ns = (1 << 40) - number;
            let end = if number % 2 == 0 { End::Store(ns) } else { End::Wall(ns) };
            expiring.note(end, &number.to_le_bytes());
        }
        assert!(expiring.take_forgot() && !expiring.take_forgot());
        assert!(expiring.0.lock().bytes <= REMEMBERED_BYTES_MAX);
        let last = (room as u64 + 999) & !1;
        let first = expiring.take(Now { store_ns: u64::MAX, wall_ns: 0 });
        assert_eq!(first[0][..], last.to_le_bytes());
        assert_eq!(first.len(), DELETED_MAX);
        let first = expiring.take(Now { store_ns: 0, wall_ns: u64::MAX });
        assert_eq!(first[0][..], (last + 1).to_le_bytes());
        assert!(expiring.take(Now { store_ns: 0, wall_ns: 0 }).is_empty());
    }
}
