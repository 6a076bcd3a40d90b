//! Watches: whether a key was written since somebody began to watch it, however long that is ago.
//!
//! Versions cannot tell: a key that was absent, was put and deleted again is absent, and what is in flight has no version. So the
//! keys that are watched stand in a table with how often each was put and deleted since, shared by all who watch it; a write looks
//! it up under its overlay's lock, as it takes its place. Where nobody watches anything that costs a write one load.
//!
//! A watch begins at the moment in which the overlay's lock is taken after its key is in the table: a write whose place is before
//! is not counted, every later one is. To delete what does not exist changes nothing, and what was over when the watch began does
//! not change when the reaper takes it away; what was not, does when its time is over.

use std::collections::HashMap;
use std::sync::Arc;

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use shoal_base::sync::stripes;
use smallvec::SmallVec;

use crate::common::key::ObjectKey;
use crate::log::format::RecordKind;
use crate::testing::injected_bug::{Bug, injected};

/// Parts of the table, each with a lock of its own.
const PARTS: usize = stripes(64);

/// A key that is watched.
pub(crate) struct Watched {
    pub key: ObjectKey,
    /// How often it was put and deleted. Written under the overlay's lock; who decides by it holds that, too.
    pub puts: AtomicU64,
    pub deletes: AtomicU64,
}

/// Keys of one part by their hashes, each with how many watch it.
type Part = HashMap<u64, SmallVec<[(Arc<Watched>, usize); 1]>>;

/// The keys that are watched.
pub(crate) struct Watches {
    parts: Box<[Mutex<Part>]>,
    /// Watches in all. Relaxed: who watches takes the overlay's lock afterwards, and a write looks under it.
    count: AtomicUsize,
}

impl Default for Watches {
    fn default() -> Self {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        Self { parts, count: AtomicUsize::new(0) }
    }
}

impl Watches {
    fn part(&self, hash: u64) -> &Mutex<Part> {
        &self.parts[hash as usize % PARTS]
    }

    /// A record of a key with this hash is in its overlay, whose lock is held.
    pub(crate) fn note(&self, hash: u64, key: &[u8], kind: RecordKind) {
        if self.count.load(Ordering::Relaxed) == 0 || injected(Bug::WatchesForgotten) {
            return;
        }
        let part = self.part(hash).lock();
        let watched = part.get(&hash).into_iter().flatten();
        if let Some((watched, _)) = watched.into_iter().find(|(watched, _)| watched.key.encoded() == key) {
            let count = if kind == RecordKind::Put { &watched.puts } else { &watched.deletes };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn add(&self, hash: u64, key: &ObjectKey) -> Arc<Watched> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut part = self.part(hash).lock();
        let same_hash = part.entry(hash).or_default();
        if let Some((watched, count)) = same_hash.iter_mut().find(|(watched, _)| watched.key == *key) {
            *count += 1;
            return watched.clone();
        }
        let (puts, deletes) = Default::default();
        let watched = Arc::new(Watched { key: key.clone(), puts, deletes });
        same_hash.push((watched.clone(), 1));
        watched
    }

    pub(crate) fn remove(&self, hash: u64, watched: &Arc<Watched>) {
        let mut part = self.part(hash).lock();
        if let Some(same_hash) = part.get_mut(&hash) {
            same_hash.retain(|(other, count)| {
                *count -= usize::from(Arc::ptr_eq(other, watched));
                *count > 0
            });
            if same_hash.is_empty() {
                part.remove(&hash);
            }
        }
        drop(part);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
