//! Watching a key: [`Store::transact`] does nothing if a watched key was written since (`crates/memtable/src/watched_keys.rs` has the
//! table).

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_base::sync::atomic::Ordering;
use shoal_common::error::Result;
use shoal_common::key::ObjectKey;
use shoal_common::object::EndTime;

use crate::store::{Inner, Store};
use crate::write::change::ReadLevel;
use shoal_memtable::hash_of;
use shoal_memtable::watched_keys::Watched;

/// A watched key, until this is dropped.
pub struct Watch {
    store: Store,
    watched: Arc<Watched>,
    hash: u64,
    /// The counts at the start of the watch.
    puts: u64,
    deletes: u64,
    /// The version at the start, and its deadline; `None` if the object did not exist.
    was: Option<(Lsn, Option<EndTime>)>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch({}, changed: {})", self.watched.key, self.is_changed())
    }
}

impl Watch {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &ObjectKey {
        &self.watched.key
    }

    /// Returns true if the key was written or expired since. Only [`Store::transact`] knows this for the moment of its
    /// writes.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        let counted = self.watched.puts.load(Ordering::Relaxed) != self.puts
            || self.was.is_some() && self.watched.deletes.load(Ordering::Relaxed) != self.deletes;
        counted || self.was.is_some_and(|(version, end)| self.store.0.is_over(end, version))
    }

    /// Returns true if the watch belongs to this store.
    pub(crate) fn is_of(&self, inner: &Inner) -> bool {
        std::ptr::eq(&raw const *self.store.0, inner)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.store.0.tablets.watches.remove(self.hash, &self.watched);
    }
}

impl Store {
    /// Watches a key: [`Store::transact`] then does nothing if the key was written after this returned. Earlier writes
    /// are durable on return, so that every later read sees them.
    ///
    /// # Errors
    /// As [`Store::head`]; [`crate::Error::Unknown`] if the device failed while an earlier write was in flight.
    pub async fn watch(&self, key: &ObjectKey) -> Result<Watch> {
        let inner = &*self.0;
        inner.check_open()?;
        let hash = hash_of(key.encoded());
        let watched = inner.tablets.watches.add(hash, key);
        // The guard also removes the watch if this returns early.
        let mut watch = Watch { store: self.clone(), watched, hash, puts: 0, deletes: 0, was: None };
        let tablet = inner.tablets.of(key);
        loop {
            let view = tablet.view();
            let active = view.active.lock();
            if !active.is_frozen() {
                watch.puts = watch.watched.puts.load(Ordering::Relaxed);
                watch.deletes = watch.watched.deletes.load(Ordering::Relaxed);
                break;
            }
        }
        let (seen, found) = inner.look(tablet, key, ReadLevel::Info).await?;
        watch.was = found.map(|found| (found.version, found.entry.end));
        if let Some(record) = seen.record {
            inner.log.committer.drive_until(&record).await?;
        }
        Ok(watch)
    }
}
