//! The reaper deletes expired objects, so that their space comes back (R18).
//!
//! Readers do not need it: they see that an object has expired. The reaper learns the next deadlines from the writes since the opening, and
//! from a walk over the trees that have objects with deadlines according to their totals. If there are more than it can remember, it walks
//! again when the first forgotten deadline has passed. The walk is slow while it finds nothing, and faster the more it finds and the less
//! room there is. Each deletion is a transaction that first checks that the object has expired: an object written meanwhile stays, and is
//! remembered again if it expires later. So the result of a write with a request id (`dedup.rs`) takes one place in the list, however often
//! its object is overwritten.

use std::ops::RangeInclusive;
use std::time::Duration;

use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::upload_of;
use shoal_common::key::of_encoded;
use shoal_tablets::checkpoint::publish::Publication;
use shoal_tablets::counters::OperationCounters;

use crate::read::list::walk_expiring;
use crate::store::expiring::{DELETED_MAX, ExpiryWalk, Now, Pass};
use crate::store::{Inner, Store};
use crate::write::txn::Reaped;

/// Keys that the walk examines in one step: it reads leaves that no request needs.
const WALKED_MAX: usize = 1_024;
/// A write that finds no room tries again after this many deletions for each block that it needs, within these bounds.
const DELETED_PER_BLOCK: u64 = 64;
const DELETED_FOR_ROOM: RangeInclusive<u64> = 1_024..=4_096;
/// The walk takes one part in this many of a thread's time while it finds little.
const WALK_SHARE: u32 = 10;
/// A step that finds one expired object among this many keys is followed by the next one at once.
const FOUND_MUCH: u64 = 8;
/// Room is short while less than one part in this many of the store is free.
const ROOM_SHORT: u64 = 8;
/// The reaper checks for work this often while something happens.
pub(crate) const REAPER_PERIOD: Duration = Duration::from_millis(100);
/// And this often at least while any object has a deadline: the wall clock may be set, and the clocks are stored from time to time.
const CLOCK_PERIOD: Duration = Duration::from_secs(1);
/// The shortest and the longest rest between two walks.
const WALK_REST: RangeInclusive<u64> = 1_000_000_000..=60_000_000_000;

/// Nanoseconds of rest after a walk of `took_ns`; longer if the walk found nothing. A walk that found little has already rested between its
/// steps.
fn rest_ns(pass: Pass, took_ns: u64) -> u64 {
    assert!(pass.expired <= pass.examined, "more expired than were examined: {pass:?}");
    let share = if pass.expired > 0 { 1 } else { u64::from(WALK_SHARE - 1) };
    took_ns.saturating_mul(share).clamp(*WALK_REST.start(), *WALK_REST.end())
}

impl Store {
    /// Saves the clocks of expiry if that is due, and deletes expired objects that were written since the opening. A store with its own
    /// threads does this by itself.
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
    /// The time that decides about deadlines.
    fn expiry_now(&self) -> Now {
        Now { store_ns: self.log.expiry.store_ns(), wall_ns: self.log.wall_ns() }
    }

    /// Deletes some of the remembered objects that have expired; returns true if there may be more.
    ///
    /// # Errors
    /// As a delete.
    pub(crate) async fn reap_due(&self) -> Result<bool> {
        let expiring = &self.maintenance.expiring;
        let mut over = expiring.take(self.expiry_now()).into_iter();
        assert!(over.len() <= DELETED_MAX, "a round deletes a bounded number");
        let may_be_more = over.len() >= DELETED_MAX;
        while let Some((end, encoded)) = over.next() {
            let reaped = match (of_encoded(&encoded), upload_of(&encoded)) {
                (Some(key), _) => self.delete_if_over(&key).await,
                (None, Some(upload)) => self.reap_upload(&upload).await,
                (None, None) => continue,
            };
            match reaped {
                Ok(Reaped::Deleted) => OperationCounters::add(&self.counters.expired, 1),
                Ok(Reaped::Later { end }) => expiring.note(end, &encoded),
                Ok(Reaped::Stays) => {}
                Err(error) => {
                    match error {
                        // The next try has room.
                        Error::Full { .. } | Error::NoRoom(_) => expiring.note(end, &encoded),
                        // If it were remembered, it would block the others each time.
                        _ => expiring.forget(),
                    }
                    expiring.put_back(over);
                    return Err(error);
                }
            }
        }
        Ok(may_be_more)
    }

    /// One round of the reaper: some deletions, and a step of the walk. Returns the wait until the next round; `None` if nothing is due
    /// before the time of [`next_reap_in`](Self::next_reap_in).
    ///
    /// # Errors
    /// As a delete.
    pub(crate) async fn reap_round(&self) -> Result<Option<Duration>> {
        if self.reap_due().await? {
            return Ok(Some(Duration::ZERO));
        }
        // A writer that needs room also walks.
        let Some(mut walk) = self.maintenance.walk.try_take() else { return Ok(Some(REAPER_PERIOD)) };
        let is_short = self.is_room_short();
        if !self.continues(&mut walk, is_short) {
            return Ok(None);
        }
        let began_ns = self.now_ns();
        let pass = self.walk_some(&mut walk).await?;
        let took = Duration::from_nanos(self.now_ns().saturating_sub(began_ns));
        let wait = match () {
            () if pass.found(FOUND_MUCH) => Duration::ZERO,
            () if is_short => took,
            () => took * (WALK_SHARE - 1),
        };
        Ok(Some(wait.min(REAPER_PERIOD)))
    }

    /// The time until the reaper must look again if nothing is written meanwhile.
    pub(crate) fn next_reap_in(&self) -> Duration {
        if !self.may_have_deadlines() {
            return Duration::MAX;
        }
        let Some(walk) = self.maintenance.walk.try_take() else { return REAPER_PERIOD };
        let (remembered_ns, forgotten_ns) = self.maintenance.expiring.next_in_ns(self.expiry_now());
        let rests_ns = walk.next_ns.saturating_sub(self.now_ns());
        Duration::from_nanos(remembered_ns.min(forgotten_ns.max(rests_ns))).min(CLOCK_PERIOD)
    }

    /// Returns true if a walk is in progress, or one starts because a forgotten deadline has passed.
    fn continues(&self, walk: &mut ExpiryWalk, is_short: bool) -> bool {
        if walk.from.is_none() {
            let now_ns = self.now_ns();
            let is_rested = now_ns >= walk.next_ns || is_short && walk.pass.expired > 0;
            if !is_rested || !self.maintenance.expiring.take_forgotten(self.expiry_now()) {
                return false;
            }
            *walk = ExpiryWalk { from: Some(Vec::new()), started_ns: now_ns, ..ExpiryWalk::default() };
        }
        true
    }

    /// A step of the walk. An error at a damaged place stops the walk: readers of that place get the error, and the next walk may get
    /// further.
    async fn walk_some(&self, walk: &mut ExpiryWalk) -> Result<Pass> {
        let Some(from) = walk.from.take() else { return Ok(Pass::default()) };
        let walked = self.walk_for_expiring(from).await;
        let (pass, next) = walked.inspect_err(|_| self.rest(walk))?;
        walk.pass.examined += pass.examined;
        walk.pass.expired += pass.expired;
        walk.from = next;
        if walk.from.is_none() {
            self.rest(walk);
        }
        Ok(pass)
    }

    /// Prevents the next walk for some time.
    fn rest(&self, walk: &mut ExpiryWalk) {
        let now_ns = self.now_ns();
        walk.next_ns = now_ns.saturating_add(rest_ns(walk.pass, now_ns.saturating_sub(walk.started_ns)));
    }

    /// Examines some keys from the encoded key `from` on. Returns the key to continue with; `None` at the end.
    ///
    /// # Errors
    /// As a listing.
    pub(crate) async fn walk_for_expiring(&self, from: Vec<u8>) -> Result<(Pass, Option<Vec<u8>>)> {
        let mut pass = Pass { examined: WALKED_MAX as u64, expired: 0 };
        let started_at = from.clone();
        let next = walk_expiring(self, from, WALKED_MAX, |key, found| {
            if let Some(end) = found.entry.end {
                pass.expired += u64::from(self.is_over(Some(end), found.version));
                self.maintenance.expiring.note(end, key);
            }
        });
        let next = next.await?;
        assert!(
            next.as_ref().is_none_or(|next| *next > started_at),
            "a walk over deadlines makes no progress"
        );
        assert!(pass.expired <= pass.examined, "more expired than were examined: {pass:?}");
        OperationCounters::add(&self.counters.expiry_examined, pass.examined);
        Ok((pass, next))
    }

    /// Returns true if little of the store is free.
    pub(crate) fn is_room_short(&self) -> bool {
        self.checkpointer.room_with_growth() < self.layout().blocks_max / ROOM_SHORT
    }

    /// Deletes expired objects for a write that finds no room for `blocks` blocks. Returns true if there may be room after the next apply.
    /// One writer works at a time, and the writers that wait for it share its result, even an empty one.
    ///
    /// # Errors
    /// As a delete, and as a listing.
    pub(crate) async fn reap_for_room(&self, blocks: u64) -> Result<bool> {
        if !self.may_have_deadlines() {
            return Ok(false);
        }
        OperationCounters::add(&self.counters.reaps_for_room, 1);
        let wanted = blocks
            .saturating_mul(DELETED_PER_BLOCK)
            .clamp(*DELETED_FOR_ROOM.start(), *DELETED_FOR_ROOM.end());
        let work = || {
            let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            (of(&self.counters.expired), of(&self.counters.expiry_examined))
        };
        let before = work();
        let mut walk = self.maintenance.walk.take().await;
        loop {
            let mut is_full = false;
            while !is_full && work().0 - before.0 < wanted {
                match self.reap_due().await {
                    Ok(true) => {}
                    Ok(false) => break,
                    // The apply of the deletions makes room for further ones.
                    Err(Error::Full { .. }) => is_full = true,
                    Err(error) => return Err(error),
                }
            }
            let (expired, examined) = work();
            let deleted = expired - before.0;
            if is_full
                || deleted >= wanted
                || examined - before.1 >= self.tuning.walked_for_room_max
                || !self.continues(&mut walk, true)
            {
                return Ok(deleted > 0);
            }
            self.walk_some(&mut walk).await?;
        }
    }

    /// Reads the clocks, and saves them if that is due: after a step of the wall clock, and every ten seconds while any
    /// object has a deadline.
    ///
    /// # Errors
    /// As a publish.
    pub(crate) async fn keep_time(&self) -> Result<()> {
        self.log.tick();
        if self.log.expiry.wants_saving(self.may_have_deadlines()) {
            self.checkpointer.publish(Publication::default()).await?;
        }
        Ok(())
    }

    /// Returns false if no object can have a deadline.
    fn may_have_deadlines(&self) -> bool {
        let is_in_trees = || self.tablets.all().iter().any(|tablet| !tablet.view().totals.is_for_ever());
        !self.maintenance.expiring.is_empty() || is_in_trees()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use shoal_base::{ManualClock, RequestId, SeededEntropy};
    use shoal_device::{Device, MemDevice};

    use super::*;
    use crate::write::txn::dedup::{RESULT_LIFE_NS, RESULTS_KEPT};
    use crate::write::write_batch::Write;
    use crate::{Environment, Expiry, FormatOptions, ObjectKey, OpenOptions, PutOptions, Store, block_on};

    /// Results are remembered by their slots, not by the writes, and are deleted when the last one of a slot has expired.
    #[test]
    fn the_results_of_writes_take_one_place_each() {
        let device = Device::new(Arc::new(MemDevice::new(4_096)));
        let clock = Arc::new(ManualClock::new(1_000));
        let environment = || Environment { clock: clock.clone(), entropy: Arc::new(SeededEntropy::new(3)) };
        block_on(Store::format(&device, &FormatOptions::for_blocks(4_096), &environment())).unwrap();
        let options = || OpenOptions { background: false, ..OpenOptions::default() };
        let mut store = block_on(Store::open(device.clone(), options(), environment())).unwrap();
        let key = ObjectKey::new("default", b"k").unwrap();
        let remembered = |store: &Store| store.0.maintenance.expiring.0.lock().store.len() as u64;
        for sequence in 0..10 * RESULTS_KEPT {
            if sequence == 5 * RESULTS_KEPT {
                // The walk finds results that the new opening does not remember.
                block_on(store.close()).unwrap();
                drop(store);
                store = block_on(Store::open(device.clone(), options(), environment())).unwrap();
                assert_eq!(block_on(store.0.walk_for_expiring(Vec::new())).unwrap().1, None);
            }
            clock.advance(1_000);
            let request_id = RequestId { session: 1, sequence };
            let (value, options) = (vec![1].into(), PutOptions::default());
            let write = Write::put(&key, &value, &options).with_request_id(Some(request_id));
            block_on(store.write_durably(write)).unwrap();
            assert!(remembered(&store) <= RESULTS_KEPT, "{sequence}: {}", remembered(&store));
        }
        // The first result of each slot would have expired, the last ones have not.
        clock.advance(RESULT_LIFE_NS - RESULTS_KEPT * 1_000);
        block_on(store.0.reap_due()).unwrap();
        assert_eq!((store.stat().expired, remembered(&store)), (0, RESULTS_KEPT));
        clock.advance(RESULT_LIFE_NS);
        block_on(store.0.reap_due()).unwrap();
        assert_eq!((store.stat().expired, remembered(&store)), (RESULTS_KEPT, 0));
        assert!(block_on(store.head(&key)).unwrap().is_some());
    }

    /// A store on a device in memory whose objects have deadlines, of which it remembers few.
    fn with_deadlines(objects: usize, clock: &Arc<ManualClock>) -> Store {
        let device = Device::new(Arc::new(MemDevice::new(4_096)));
        let environment = || Environment { clock: clock.clone(), entropy: Arc::new(SeededEntropy::new(3)) };
        block_on(Store::format(&device, &FormatOptions::for_blocks(4_096), &environment())).unwrap();
        let mut options = OpenOptions { background: false, ..OpenOptions::default() };
        options.tuning.walked_for_room_max = WALKED_MAX as u64;
        let store = block_on(Store::open(device, options, environment())).unwrap();
        let expiry = Expiry::After(Duration::from_secs(1_000));
        for number in 0..objects {
            let key = ObjectKey::new("default", format!("{number:06}").as_bytes()).unwrap();
            let options = PutOptions { expiry, ..PutOptions::default() };
            block_on(store.put(&key, vec![1].into(), options)).unwrap();
        }
        store
    }

    /// Symptom: each of a hundred writers without room walked over the full limit of keys. Now waiting writers share the result of the
    /// first, even an empty one; and no write walks over keys that a walk has just passed.
    #[test]
    fn writers_without_room_share_one_search() {
        const KEYS: usize = 5_000;
        let store = with_deadlines(KEYS, &Arc::new(ManualClock::new(1_000)));
        let examined = || store.stat().expiry_examined;
        let walk = store.0.maintenance.walk.try_take().unwrap();
        let mut writers: Vec<_> = (0..8).map(|_| Box::pin(store.0.reap_for_room(1))).collect();
        for writer in &mut writers {
            assert!(writer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        drop(walk);
        for writer in writers {
            assert!(!block_on(writer).unwrap(), "nothing has expired");
        }
        assert_eq!(examined(), WALKED_MAX as u64);
        for _ in 0..1_000 {
            assert!(!block_on(store.0.reap_for_room(1)).unwrap());
        }
        assert!(examined() < (KEYS + WALKED_MAX) as u64, "{} keys for 1,000 writes", examined());
        assert_eq!(store.stat().reaps_for_room, 1_008);
    }

    /// A search for much room continues until it has deleted enough, and one for little stops early.
    #[test]
    fn a_search_deletes_what_the_write_needs() {
        for (blocks, least) in [(1, *DELETED_FOR_ROOM.start()), (1 << 20, *DELETED_FOR_ROOM.end())] {
            let clock = Arc::new(ManualClock::new(1_000));
            let store = with_deadlines(6_000, &clock);
            clock.advance(1_000_000_000_000);
            assert!(block_on(store.0.reap_for_room(blocks)).unwrap());
            let deleted = store.stat().expired;
            assert!((least..least + DELETED_MAX as u64).contains(&deleted), "{deleted} for {blocks} blocks");
        }
    }

    /// Symptom: after one failed deletion a thousand deadlines were forgotten, and found by a walk over all objects. Now only the failed
    /// one is forgotten.
    #[test]
    fn failed_deletion_keeps_other_deadlines() {
        let clock = Arc::new(ManualClock::new(1_000));
        let store = with_deadlines(100, &clock);
        let remembered = || store.0.maintenance.expiring.0.lock().store.len();
        clock.advance(1_000_000_000_000);
        store.0.log.fail("a test".into());
        assert!(block_on(store.0.reap_due()).is_err());
        assert_eq!(remembered(), 99);
        assert!(store.0.maintenance.expiring.take_forgotten(store.0.expiry_now()));
    }

    /// Symptom: the store held twice the number of live objects, because a walk that had found some, but fewer than one key in eight,
    /// rested nine times its duration, after the same rest in each of its steps.
    #[test]
    fn reaper_rests_as_long_as_it_worked() {
        const SECOND: u64 = 1_000_000_000;
        let rest = |expired, took_ns| rest_ns(Pass { examined: 80_000, expired }, took_ns);
        assert_eq!(rest(5_000, 2 * SECOND), 2 * SECOND);
        assert_eq!(rest(0, 2 * SECOND), 18 * SECOND);
        assert_eq!((rest(1, 1_000), rest(0, 1_000)), (SECOND, SECOND));
        assert_eq!((rest(1, 1_000 * SECOND), rest(0, u64::MAX)), (60 * SECOND, 60 * SECOND));
    }
}
