//! The count of the stored results of writes with a request id, of uploads and parts: a walk over their ranges of keys.

use std::sync::Arc;

use shoal_base::task::Boxed;
use shoal_common::error::Result;
use shoal_common::hidden_key::PART;
use shoal_common::key::{RESERVED, RESULT_PREFIX, is_uncounted};
use shoal_tablets::tablet::result_totals::ResultTotals;

use crate::read::get::FoundEntry;
use crate::read::list::successor;
use crate::read::streams::{Merge, TabletStream};
use crate::store::Store;

/// Entries that the walk expects in a tablet: it reads ahead no further.
const EXPECTED: usize = 64;

impl Store {
    /// Counts the stored results, uploads and parts that an earlier run of the store left, so that [`StoreStat`](crate::StoreStat)
    /// counts them apart from objects. Call this once after the opening, which reads no tree itself. Does not read
    /// tablets that are counted already or can have none. Does not count results that damage hides.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn count_results(&self) -> Boxed<'_, Result<()>> {
        Box::pin(async {
            let inner = &*self.0;
            inner.check_open()?;
            for tablet in inner.tablets.all() {
                if tablet.results_at_opening.lock().is_some() {
                    continue;
                }
                let trees = Arc::new(tablet.view().only_trees());
                let mut found = ResultTotals::default();
                let ranges = [(RESULT_PREFIX, successor(RESULT_PREFIX)), (&[PART], Some(vec![RESERVED]))];
                let count = if inner.checkpointer.has_uploads() { 2 } else { 1 };
                for (start, end) in ranges.into_iter().take(count) {
                    let stream = TabletStream::new(inner, trees.clone(), end.as_deref(), Some(EXPECTED));
                    let mut merge = Merge::new(inner, vec![stream]);
                    merge.seek(start.to_vec()).await?;
                    while let Some((key, entry)) =
                        merge.next(&mut Vec::new()).await?.filter(|(key, _)| is_uncounted(key))
                    {
                        if let Some(FoundEntry { entry, .. }) = entry {
                            found.add(&key, entry.value_bytes, entry.end.is_some());
                        }
                    }
                }
                *tablet.results_at_opening.lock() = Some(found.before(trees.results));
            }
            Ok(())
        })
    }
}
