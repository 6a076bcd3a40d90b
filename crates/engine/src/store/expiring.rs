//! The objects that expire next, up to a limit of memory.

use std::collections::BTreeSet;

use shoal_base::sync::Mutex;
use shoal_common::object::EndTime;

/// Bytes of remembered keys, with the overhead of their places, unless `Tuning::deadlines_bytes_max` is set.
const REMEMBERED_BYTES_MAX: usize = 16 << 20;
/// Overhead of a remembered key, in bytes, roughly.
const PLACE_BYTES: usize = 64;
/// Expired objects deleted at a time.
pub(crate) const DELETED_MAX: usize = 1_000;

/// Deadlines of one kind with their keys, the earliest first.
type Deadlines = BTreeSet<(u64, Box<[u8]>)>;

/// Turns a time into the end of an object of this kind.
type EndOf = fn(u64) -> EndTime;

/// A deadline that has passed, and its encoded key.
pub(crate) type Taken = (EndTime, Box<[u8]>);

pub(crate) struct Due {
    /// Deadlines of store time.
    pub store: Deadlines,
    /// Deadlines of the wall clock.
    wall: Deadlines,
    bytes: usize,
    /// Bytes of keys that may be remembered.
    pub bytes_max: usize,
    /// The earliest forgotten deadlines.
    forgotten: Option<Now>,
}

impl Default for Due {
    fn default() -> Self {
        let (store, wall) = (Deadlines::new(), Deadlines::new());
        Self { store, wall, bytes: 0, bytes_max: REMEMBERED_BYTES_MAX, forgotten: None }
    }
}

impl Due {
    /// Forgets the latest deadline of the kind that has more of them. Returns false if there is none.
    fn forget_latest(&mut self) -> bool {
        let is_store = self.store.len() > self.wall.len();
        let kind = if is_store { &mut self.store } else { &mut self.wall };
        let Some((ns, key)) = kind.pop_last() else { return false };
        assert!(self.bytes >= key.len() + PLACE_BYTES, "a deadline is forgotten once");
        self.bytes -= key.len() + PLACE_BYTES;
        let earliest = self.forgotten.get_or_insert(Now { store_ns: u64::MAX, wall_ns: u64::MAX });
        let earliest = if is_store { &mut earliest.store_ns } else { &mut earliest.wall_ns };
        *earliest = ns.min(*earliest);
        true
    }
}

/// The current moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub store_ns: u64,
    pub wall_ns: u64,
}

/// The remembered deadlines, the earliest first.
#[derive(Default)]
pub(crate) struct Expiring(pub Mutex<Due>);

impl Expiring {
    /// Remembers an object's deadline. Forgets the latest deadlines if memory is full.
    pub(crate) fn note(&self, end: EndTime, key: &[u8]) {
        let mut due = self.0.lock();
        let is_new = match end {
            EndTime::Store(ns) => due.store.insert((ns, key.into())),
            EndTime::Wall(ns) => due.wall.insert((ns, key.into())),
        };
        if is_new {
            due.bytes += key.len() + PLACE_BYTES;
        }
        while due.bytes > due.bytes_max && due.forget_latest() {}
    }

    /// Returns true if no deadline is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        let due = self.0.lock();
        due.store.is_empty() && due.wall.is_empty()
    }

    /// Nanoseconds until the first remembered deadline passes, and until the first forgotten one does.
    pub(crate) fn next_in_ns(&self, now: Now) -> (u64, u64) {
        let due = self.0.lock();
        let first = |deadlines: &Deadlines| deadlines.first().map_or(u64::MAX, |(ns, _)| *ns);
        let until = |store_ns: u64, wall_ns: u64| {
            store_ns.saturating_sub(now.store_ns).min(wall_ns.saturating_sub(now.wall_ns))
        };
        let forgotten = due.forgotten.map_or(u64::MAX, |first| until(first.store_ns, first.wall_ns));
        (until(first(&due.store), first(&due.wall)), forgotten)
    }

    /// Takes up to [`DELETED_MAX`] keys whose deadlines have passed.
    pub(crate) fn take(&self, now: Now) -> Vec<Taken> {
        let mut due = self.0.lock();
        let Due { store, wall, bytes, .. } = &mut *due;
        let mut over = Vec::new();
        let kinds = [(store, now.store_ns, EndTime::Store as EndOf), (wall, now.wall_ns, EndTime::Wall)];
        for (deadlines, now_ns, end) in kinds {
            while over.len() < DELETED_MAX
                && deadlines.first().is_some_and(|(ns, _)| *ns <= now_ns)
                && let Some((ns, key)) = deadlines.pop_first()
            {
                assert!(*bytes >= key.len() + PLACE_BYTES, "a deadline is taken once");
                *bytes -= key.len() + PLACE_BYTES;
                over.push((end(ns), key));
            }
        }
        over
    }

    /// Remembers keys that were taken and not handled.
    pub(crate) fn put_back(&self, taken: impl IntoIterator<Item = Taken>) {
        taken.into_iter().for_each(|(end, key)| self.note(end, &key));
    }

    /// Notes that a taken key was not handled and is not remembered: a walk must find it again.
    pub(crate) fn forget(&self) {
        self.0.lock().forgotten = Some(Now { store_ns: 0, wall_ns: 0 });
    }

    /// Returns true if a forgotten deadline has passed, and forgets that, too: the caller starts a walk.
    pub(crate) fn take_forgotten(&self, now: Now) -> bool {
        let mut due = self.0.lock();
        let has_passed = |first: &Now| first.store_ns <= now.store_ns || first.wall_ns <= now.wall_ns;
        due.forgotten.take_if(|first| has_passed(first)).is_some()
    }
}

/// The walk over all objects with deadlines. Walks follow each other as they are needed.
pub(crate) struct ExpiryWalk {
    /// The key to continue with; `None` between two walks.
    pub from: Option<Vec<u8>>,
    /// The keys that this walk, or else the last one, looked at.
    pub pass: Pass,
    /// The monotonic time at which this walk started, and before which no other one starts.
    pub started_ns: u64,
    pub next_ns: u64,
}

impl Default for ExpiryWalk {
    /// The first walk finds the objects with deadlines from before the opening.
    fn default() -> Self {
        Self { from: Some(Vec::new()), pass: Pass::default(), started_ns: 0, next_ns: 0 }
    }
}

/// A part of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Keys that were looked at.
    pub examined: u64,
    /// Objects among them that had expired.
    pub expired: u64,
}

impl Pass {
    /// Returns true if at least one key in `share` was that of an expired object.
    pub(crate) fn found(self, share: u64) -> bool {
        self.expired > 0 && self.expired.saturating_mul(share) >= self.examined
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
            // Notes the deadlines from late to early.
            let ns = (1 << 40) - number;
            let end = if number % 2 == 0 { EndTime::Store(ns) } else { EndTime::Wall(ns) };
            expiring.note(end, &number.to_le_bytes());
        }
        // The latest deadlines are forgotten: a walk is needed when the first of them passes.
        let first_forgotten = |wall_ns| expiring.take_forgotten(Now { store_ns: 0, wall_ns });
        assert!(!first_forgotten((1 << 40) - 1_000));
        assert!(first_forgotten(1 << 40) && !first_forgotten(1 << 40));
        assert!(expiring.0.lock().bytes <= REMEMBERED_BYTES_MAX);
        let soonest = (1 << 40) - ((room as u64 + 999) & !1);
        assert_eq!(expiring.next_in_ns(Now { store_ns: soonest - 7, wall_ns: 0 }), (7, u64::MAX));
        let last = (room as u64 + 999) & !1;
        let first = expiring.take(Now { store_ns: u64::MAX, wall_ns: 0 });
        assert_eq!(first[0].1[..], last.to_le_bytes());
        assert_eq!(first.len(), DELETED_MAX);
        let first = expiring.take(Now { store_ns: 0, wall_ns: u64::MAX });
        assert_eq!(first[0].1[..], (last + 1).to_le_bytes());
        assert!(expiring.take(Now { store_ns: 0, wall_ns: 0 }).is_empty());
    }
}
