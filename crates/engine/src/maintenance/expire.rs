//! The reaper deletes expired objects, so that their space comes back (R18).
//!
//! Readers do not need it: they see that an object has expired. The reaper learns the next deadlines from the writes
//! since the opening, and from one slow walk over the trees that have objects with deadlines, as their totals tell. If
//! there are more than it can remember, it walks again. Each deletion is a transaction that first checks that the
//! object has expired: an object written meanwhile stays, and is remembered again if it expires later. So the result of
//! a write with a request id (`dedup.rs`) takes one place in the list, however often its object is overwritten.

use crate::checkpoint::publish::Changes;
use crate::common::counters::OperationCounters;
use crate::common::error::Result;
use crate::common::key::ObjectKey;
use crate::read::list::walk_expiring;
use crate::store::expiring::{DELETED_MAX, Now};
use crate::store::{Inner, Store};
use crate::write::transact::Reaped;

/// Objects that the walk reads at a time: it reads leaves that no request needs.
const WALKED_MAX: usize = 256;

impl Store {
    /// Saves the clocks of expiry if that is due, and deletes expired objects that were written since the opening. A
    /// store with threads of its own does this by itself.
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
    /// Deletes expired objects; returns true if there may be more.
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

    /// Reads some objects from the encoded key `from` on. Returns the key to continue with; `None` at the end.
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

    /// Reads the clocks, and saves them if that is due: after a step of the wall clock, and every ten seconds while any
    /// object has a deadline.
    ///
    /// # Errors
    /// As a publish.
    pub(crate) async fn keep_time(&self) -> Result<()> {
        self.log.tick();
        let is_in_trees = || self.tablets.all().iter().any(|tablet| !tablet.view().totals.is_for_ever());
        if self.log.expiry.wants_saving(!self.maintenance.expiring.is_empty() || is_in_trees()) {
            self.checkpointer.publish(Changes::default()).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_base::{ManualClock, RequestId, SeededEntropy};
    use shoal_device::{Device, MemDevice};

    use super::*;
    use crate::write::dedup::{RESULT_LIFE_NS, RESULTS_KEPT};
    use crate::write::write_batch::Write;
    use crate::{Environment, FormatOptions, OpenOptions, PutOptions, Store, block_on};

    /// Results are remembered by their slots, not by the writes, and are deleted when the last one of a slot has
    /// expired.
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
                assert_eq!(block_on(store.0.walk_for_expiring(Vec::new())).unwrap(), None);
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
}
