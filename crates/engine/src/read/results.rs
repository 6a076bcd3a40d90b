//! The count of the stored results of writes with a request id: a walk over their range of keys.

use std::sync::Arc;

use shoal_base::task::Boxed;
use shoal_common::error::Result;
use shoal_common::key::{RESULT_PREFIX, is_result};
use shoal_tablets::tablet::result_totals::ResultTotals;

use crate::read::list::successor;
use crate::read::streams::{Merge, TabletStream};
use crate::store::Store;

/// Entries that the walk expects in a tablet: it reads ahead no further.
const EXPECTED: usize = 64;

impl Store {
    /// Counts the stored results that an earlier run of the store left, so that [`StoreStat`](crate::StoreStat)
    /// counts them apart from objects. Call this once after the opening, which reads no tree itself. Does not read
    /// tablets that are counted already or have no deadlines. Does not count results that damage hides.
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
                let end = successor(RESULT_PREFIX);
                let stream = TabletStream::new(inner, trees.clone(), end.as_deref(), Some(EXPECTED));
                let mut merge = Merge::new(inner, vec![stream]);
                merge.seek(RESULT_PREFIX.to_vec()).await?;
                let mut found = ResultTotals::default();
                while let Some((_, result)) =
                    merge.next(&mut Vec::new()).await?.filter(|(key, _)| is_result(key))
                {
                    if let Some(result) = result {
                        found.add(result.entry.value_bytes);
                    }
                }
                *tablet.results_at_opening.lock() = Some(found.before(trees.results));
            }
            Ok(())
        })
    }
}
