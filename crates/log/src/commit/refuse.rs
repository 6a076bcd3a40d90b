//! A batch that finds no room in the data file: its records are refused, and the log continues at the same place.
//!
//! Nothing of the batch was acknowledged. But a part of it may be on the device, or all of it if only a value had no room. So the next
//! batch at the head is a seal: once it is durable, no remains of the failed batch can follow the chain. The outcome of the batch's records
//! is unknown only if the seal finds no room either and the whole batch is on the device: a crash before the seal brings the records back.

use std::collections::VecDeque;
use std::sync::Arc;

use shoal_base::Lsn;
use shoal_base::plug::plug;
use shoal_common::error::{Error, Result};
use shoal_device::IoBuf;

use super::{Committer, Drained, DriverState};
use crate::commit::queue::Item;
use crate::format::check_batch;
use crate::record::{Record, Refusal};

/// The memtables, as seen by a commit that found no room.
pub trait Unwritten: Send + Sync {
    /// Removes the records that `take` returns from the memtables, at one moment: while `take` runs, no write can decide or be queued.
    fn withdraw(&self, take: &mut dyn FnMut() -> Vec<Arc<Record>>);

    /// Frees the extents of such a record. Nothing names them, and no write to them is in flight.
    fn give_back(&self, record: &Record);
}

impl Committer {
    /// Replaces a batch that had no room, or had a value without room, by a seal, so that it never takes effect. Returns the outcome
    /// of its records.
    ///
    /// # Errors
    /// As the device.
    pub(super) async fn supersede(
        &self,
        driver: &mut DriverState,
        drained: &Drained<'_>,
        why: &str,
    ) -> Result<Option<Refusal>> {
        self.room.note(why);
        match self.write_seal(driver).await {
            // The log has room; a value had none.
            Ok(()) => Ok(Some(Refusal::NoRoom)),
            Err(Error::NoRoom(_)) if self.is_on_device(drained).await => Ok(Some(Refusal::InDoubt)),
            Err(Error::NoRoom(_)) => Ok(Some(Refusal::NoRoom)),
            Err(error) => Err(error),
        }
    }

    /// Returns true if the whole batch is, or may be, on the device, so that recovery would find it there. All of its requests have
    /// completed, so a block with other contents was not written and never will be.
    async fn is_on_device(&self, drained: &Drained<'_>) -> bool {
        let Some((position, blocks, first_lsn)) = drained.place else { return false };
        let read = self.device.read(self.ring.block(position), IoBuf::unfilled(blocks as usize)).await.ok();
        let Ok(bytes) = read else { return true };
        check_batch(&bytes, self.seed)
            .is_some_and(|(header, _)| (header.position, header.first_lsn) == (position, first_lsn))
    }

    /// Refuses the records of a batch that found no room, and all queued ones, which may depend on them. The store is then as if none of
    /// them had arrived; their numbers are not used again.
    pub(super) fn refuse(&self, driver: &DriverState, drained: &Drained<'_>, refusal: Refusal) {
        let mut queued = VecDeque::new();
        let mut take = || {
            queued = std::mem::take(&mut *self.queue.lock());
            drained.records.iter().for_each(|record| record.refuse(refusal));
            let of_queue = records_of(&queued).inspect(|record| record.refuse(Refusal::NoRoom));
            of_queue.chain(&drained.records).cloned().collect()
        };
        match self.unwritten.get() {
            Some(unwritten) => unwritten.withdraw(&mut take),
            None => drop(take()),
        }
        let last = Lsn(driver.next_lsn.0 - 1);
        // Nothing before a marker is in flight any more.
        drained.markers.iter().for_each(|(marker, lsn)| marker.reach(*lsn));
        let mut records = Vec::new();
        for item in queued {
            match item {
                Item::Marker(marker) => marker.reach(last),
                Item::Writes { batch, reserved } => {
                    self.ring.unreserve(reserved);
                    // The writes of its values were never started; they are dropped here.
                    records.extend(batch.records);
                }
            }
        }
        let dead = records.iter().chain(drained.records.iter().filter(|_| refusal == Refusal::NoRoom));
        if let Some(unwritten) = self.unwritten.get() {
            // A batch that may come back at the next opening keeps its extents until then (R8).
            dead.for_each(|record| unwritten.give_back(record));
        }
        plug(|| records.iter().chain(&drained.records).for_each(|record| record.wake()));
        self.moved.notify();
    }
}

/// The records of queued write batches.
fn records_of(queue: &VecDeque<Item>) -> impl Iterator<Item = &Arc<Record>> {
    queue.iter().flat_map(|item| match item {
        Item::Writes { batch, .. } => &batch.records[..],
        Item::Marker(_) => &[],
    })
}
