//! Gets of one thread, which counts them in batches.

use shoal_common::key::ObjectKey;
use shoal_tablets::counters::OperationCounters;

use crate::read::get::{ShortObject, TryGet};
use crate::store::Store;

/// Gets of one thread. The store's counters, which all threads share, include them after [`Self::settle`].
pub struct CountedReader {
    store: Store,
    gets: u64,
    bytes: u64,
}

impl std::fmt::Debug for CountedReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CountedReader({} gets to be counted)", self.gets)
    }
}

impl Store {
    /// A reader for one thread.
    #[must_use]
    pub fn reader(&self) -> CountedReader {
        CountedReader { store: self.clone(), gets: 0, bytes: 0 }
    }
}

impl CountedReader {
    /// As [`Store::try_get`].
    #[inline]
    pub fn try_get<T>(
        &mut self,
        key: &ObjectKey,
        show: impl FnOnce(Option<&ShortObject<'_>>) -> T,
    ) -> TryGet<T> {
        let (gets, bytes) = (&mut self.gets, &mut self.bytes);
        self.store.0.try_get(key, |found| {
            *gets += 1;
            *bytes += found.map_or(0, |found| found.value().len() as u64);
            show(found)
        })
    }

    /// Adds the gets to the store's counters. Call it after each handful of requests.
    pub fn settle(&mut self) {
        let counters = &self.store.0.counters;
        OperationCounters::add(&counters.gets, std::mem::take(&mut self.gets));
        OperationCounters::add(&counters.value_bytes_read, std::mem::take(&mut self.bytes));
    }
}
