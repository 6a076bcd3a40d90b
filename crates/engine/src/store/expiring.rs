//! Objects whose time ends, the soonest first, as far as there is room to remember them.

use std::collections::BTreeSet;

use shoal_base::sync::Mutex;

use crate::common::object::End;

/// Bytes of keys that the reaper remembers, with what a place in its list costs.
const REMEMBERED_BYTES_MAX: usize = 16 << 20;
/// What remembering a key costs besides its bytes, roughly.
const PLACE_BYTES: usize = 64;
/// Objects deleted at a time.
pub(crate) const DELETED_MAX: usize = 1_000;

/// Deadlines of one kind and the keys that have them, the soonest first.
type Deadlines = BTreeSet<(u64, Box<[u8]>)>;

#[derive(Default)]
pub(crate) struct Due {
    /// By store time.
    pub store: Deadlines,
    /// By the wall clock.
    wall: Deadlines,
    bytes: usize,
    forgot: bool,
}

impl Due {
    /// Takes the latest one of the kind of which there are more.
    fn take_latest(&mut self) -> Option<(u64, Box<[u8]>)> {
        let kind = if self.store.len() > self.wall.len() { &mut self.store } else { &mut self.wall };
        kind.pop_last()
    }
}

/// The moments at which deadlines of both kinds are due now.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    pub store_ns: u64,
    pub wall_ns: u64,
}

/// What is due, the soonest first.
#[derive(Default)]
pub(crate) struct Expiring(pub Mutex<Due>);

impl Expiring {
    /// Remembers that an object's time ends. Where there is no room, the latest is forgotten.
    pub(crate) fn note(&self, end: End, key: &[u8]) {
        let mut due = self.0.lock();
        let is_new = match end {
            End::Store(ns) => due.store.insert((ns, key.into())),
            End::Wall(ns) => due.wall.insert((ns, key.into())),
        };
        if is_new {
            due.bytes += key.len() + PLACE_BYTES;
        }
        while due.bytes > REMEMBERED_BYTES_MAX
            && let Some((_, latest)) = due.take_latest()
        {
            due.bytes -= latest.len() + PLACE_BYTES;
            due.forgot = true;
        }
    }

    /// Whether nothing is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        let due = self.0.lock();
        due.store.is_empty() && due.wall.is_empty()
    }

    /// Some whose time is over now.
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

    /// What was taken was not looked at: a walk finds it again.
    pub(crate) fn forget(&self) {
        self.0.lock().forgot = true;
    }

    /// Whether something was forgotten since this was asked.
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
            // From late to soon.
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
