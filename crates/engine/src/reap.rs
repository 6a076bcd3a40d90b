//! The reaper: objects whose time is over are deleted, so that their space comes back (R18).
//!
//! Readers do not need it: they see that an object's time is over. It knows when the soonest ones are due from what was written
//! since the store was opened, and from one slow walk over the trees that have such objects, as their totals tell; where
//! there are more than it can remember, it walks again. It deletes only what it finds to be over at that moment, as one
//! step: whatever was written meanwhile stays, and is remembered again where its time ends later. So the result of a write
//! with an identity (`retry.rs`) takes one place in the list, however often its object is overwritten.

use std::collections::BTreeSet;

use shoal_base::sync::Mutex;

use crate::entry::End;
use crate::error::Result;
use crate::key::ObjectKey;
use crate::list::walk_expiring;
use crate::publish::Changes;
use crate::store::{Inner, OperationCounters, Store};
use crate::update::Reaped;

/// Bytes of keys that the reaper remembers, with what a place in its list costs.
const REMEMBERED_BYTES_MAX: usize = 16 << 20;
/// What remembering a key costs besides its bytes, roughly.
const PLACE_BYTES: usize = 64;
/// Objects deleted at a time.
const DELETED_MAX: usize = 1_000;
/// Objects that the walk looks at at a time: it reads leaves that nobody asked for.
const WALKED_MAX: usize = 256;

/// Deadlines of one kind and the keys that have them, the soonest first.
type Deadlines = BTreeSet<(u64, Box<[u8]>)>;

#[derive(Default)]
struct Due {
    /// By store time.
    store: Deadlines,
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
struct Now {
    store_ns: u64,
    wall_ns: u64,
}

/// What is due, the soonest first.
#[derive(Default)]
pub(crate) struct Expiring(Mutex<Due>);

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
    fn take(&self, now: Now) -> Vec<Box<[u8]>> {
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
    fn forget(&self) {
        self.0.lock().forgot = true;
    }

    /// Whether something was forgotten since this was asked.
    pub(crate) fn take_forgot(&self) -> bool {
        std::mem::take(&mut self.0.lock().forgot)
    }
}

impl Store {
    /// Writes down where the clocks of expiry stand, where that is due, and deletes objects whose time is over, as far as they are known
    /// from what was written since the opening. A store with threads of its own does it by itself.
    ///
    /// # Errors
    /// As a delete.
    pub async fn reap(&self) -> Result<()> {
        let inner = &*self.0;
        inner.check_writable()?;
        inner.keep_time().await?;
        while inner.reap_due().await? {}
        Ok(())
    }
}

impl Inner {
    /// Deletes what is due; says whether there may be more.
    ///
    /// # Errors
    /// As a delete.
    pub(crate) async fn reap_due(&self) -> Result<bool> {
        let now = Now { store_ns: self.expiry.store_ns(), wall_ns: self.expiry.wall_ns(&self.committer) };
        let over = self.expiring.take(now);
        for key in &over {
            let Some(key) = ObjectKey::of_encoded(key) else { continue };
            let reaped = self.delete_if_over(&key).await.inspect_err(|_| self.expiring.forget())?;
            match reaped {
                Reaped::Deleted => OperationCounters::add(&self.counters.expired, 1),
                Reaped::Later { end } => self.expiring.note(end, key.encoded()),
                Reaped::Stays => {}
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
            if let Some(end) = entry.end {
                self.expiring.note(end, key);
            }
        })
        .await
    }

    /// Looks at the clocks, and writes down where they stand where that is due: after a step of the wall clock, and every ten
    /// seconds, while anything has a deadline.
    ///
    /// # Errors
    /// As a publish.
    pub(crate) async fn keep_time(&self) -> Result<()> {
        self.expiry.tick(&self.committer);
        let is_in_trees = || self.tablets.all().iter().any(|tablet| !tablet.view().totals.is_for_ever());
        if self.expiry.wants_saving(!self.expiring.is_empty() || is_in_trees()) {
            self.publish(Changes::default()).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_base::{ManualClock, SeededEntropy};
    use shoal_device::{Device, MemDevice};

    use super::*;
    use crate::retry::{Identity, RESULT_LIFE_NS, RESULTS_KEPT};
    use crate::{Environment, FormatOptions, OpenOptions, PutOptions, Store, block_on};

    /// Results are remembered by their places, not by the writes, and go when the last one of a place is over.
    #[test]
    fn the_results_of_writes_take_one_place_each() {
        let device = Device::new(Arc::new(MemDevice::new(4_096)));
        let clock = Arc::new(ManualClock::new(1_000));
        let environment = || Environment { clock: clock.clone(), entropy: Arc::new(SeededEntropy::new(3)) };
        block_on(Store::format(&device, &FormatOptions::for_blocks(4_096), &environment())).unwrap();
        let options = || OpenOptions { background: false, ..OpenOptions::default() };
        let mut store = block_on(Store::open(device.clone(), options(), environment())).unwrap();
        let key = ObjectKey::new("default", b"k").unwrap();
        let remembered = |store: &Store| store.0.expiring.0.lock().store.len() as u64;
        for sequence in 0..10 * RESULTS_KEPT {
            if sequence == 5 * RESULTS_KEPT {
                // What an opening does not know any more, the walk finds.
                block_on(store.close()).unwrap();
                drop(store);
                store = block_on(Store::open(device.clone(), options(), environment())).unwrap();
                assert_eq!(block_on(store.0.walk_for_expiring(Vec::new())).unwrap(), None);
            }
            clock.advance(1_000);
            let identity = Identity { session: 1, sequence };
            block_on(store.put_once(identity, &key, vec![1].into(), PutOptions::default())).unwrap();
            assert!(remembered(&store) <= RESULTS_KEPT, "{sequence}: {}", remembered(&store));
        }
        // The first of each place would be over, the last ones are not.
        clock.advance(RESULT_LIFE_NS - RESULTS_KEPT * 1_000);
        block_on(store.0.reap_due()).unwrap();
        assert_eq!((store.stat().expired, remembered(&store)), (0, RESULTS_KEPT));
        clock.advance(RESULT_LIFE_NS);
        block_on(store.0.reap_due()).unwrap();
        assert_eq!((store.stat().expired, remembered(&store)), (RESULTS_KEPT, 0));
        assert!(block_on(store.head(&key)).unwrap().is_some());
    }

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
