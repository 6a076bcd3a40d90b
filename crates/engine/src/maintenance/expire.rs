//! The reaper: objects whose time is over are deleted, so that their space comes back (R18).
//!
//! Readers do not need it: they see that an object's time is over. It knows when the soonest ones are due from what was written
//! since the store was opened, and from one slow walk over the trees that have such objects, as their totals tell; where
//! there are more than it can remember, it walks again. It deletes only what it finds to be over at that moment, as one
//! step: whatever was written meanwhile stays, and is remembered again where its time ends later. So the result of a write
//! with an identity (`dedup.rs`) takes one place in the list, however often its object is overwritten.

use crate::checkpoint::publish::Changes;
use crate::common::error::Result;
use crate::common::key::ObjectKey;
use crate::read::list::walk_expiring;
use crate::store::expiring::{DELETED_MAX, Now};
use crate::store::{Inner, OperationCounters, Store};
use crate::write::transact::Reaped;

/// Objects that the walk looks at at a time: it reads leaves that nobody asked for.
const WALKED_MAX: usize = 256;

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
        let now = Now { store_ns: self.log.expiry.store_ns(), wall_ns: self.log.wall_ns() };
        let over = self.maintenance.expiring.take(now);
        for key in &over {
            let Some(key) = ObjectKey::of_encoded(key) else { continue };
            let reaped =
                self.delete_if_over(&key).await.inspect_err(|_| self.maintenance.expiring.forget())?;
            match reaped {
                Reaped::Deleted => OperationCounters::add(&self.counters.expired, 1),
                Reaped::Later { end } => self.maintenance.expiring.note(end, key.encoded()),
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
                self.maintenance.expiring.note(end, key);
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
        self.log.tick();
        let is_in_trees = || self.tablets.all().iter().any(|tablet| !tablet.view().totals.is_for_ever());
        if self.log.expiry.wants_saving(!self.maintenance.expiring.is_empty() || is_in_trees()) {
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
    use crate::write::dedup::{RESULT_LIFE_NS, RESULTS_KEPT, RequestId};
    use crate::write::put::Write;
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
        let remembered = |store: &Store| store.0.maintenance.expiring.0.lock().store.len() as u64;
        for sequence in 0..10 * RESULTS_KEPT {
            if sequence == 5 * RESULTS_KEPT {
                // What an opening does not know any more, the walk finds.
                block_on(store.close()).unwrap();
                drop(store);
                store = block_on(Store::open(device.clone(), options(), environment())).unwrap();
                assert_eq!(block_on(store.0.walk_for_expiring(Vec::new())).unwrap(), None);
            }
            clock.advance(1_000);
            let identity = RequestId { session: 1, sequence };
            let (value, options) = (vec![1].into(), PutOptions::default());
            let write = Write::put(&key, &value, &options).once(Some(identity));
            block_on(store.write_durably(write)).unwrap();
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
}
