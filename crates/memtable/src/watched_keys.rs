//! Watches detect any write of a key since the watch started, however long ago that was.
//!
//! Versions are not enough: a key that was absent, was put and was deleted again is absent, and a state in flight has no version. So a
//! table holds each watched key with the number of its puts and deletes, shared by all its watches. A write looks its key up under the
//! memtable's lock when it inserts its record. Without any watch that costs a write one load.
//!
//! A watch starts when the memtable's lock is taken after its key entered the table: writes inserted before that moment are not counted,
//! all later ones are. The delete of an absent key changes nothing. An object that had expired at the start of the watch does not change
//! when the expiry removes it; an object that expires later does change.

use std::collections::HashMap;
use std::sync::Arc;

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use shoal_base::sync::stripes;
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::ObjectKey;
use shoal_log::format::RecordKind;
use smallvec::SmallVec;

/// Parts of the table, each with its own lock.
const PARTS: usize = stripes(64);

/// A watched key.
pub struct Watched {
    /// The key.
    pub key: ObjectKey,
    /// The number of its puts and of its deletes. Written under the memtable's lock; decisions also read them under that lock.
    pub puts: AtomicU64,
    /// See `puts`.
    pub deletes: AtomicU64,
}

/// The keys of one part by their hashes, each with the number of its watches.
type Part = HashMap<u64, SmallVec<[(Arc<Watched>, usize); 1]>>;

/// The watched keys.
pub struct Watches {
    parts: Box<[Mutex<Part>]>,
    /// The number of watches. Relaxed: a new watch takes the memtable's lock afterwards, and a write reads the count
    /// under that lock.
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

    /// Notes a record of a key with this hash. The caller holds the lock of the memtable that has the record.
    #[inline]
    pub fn note(&self, hash: u64, key: &[u8], kind: RecordKind) {
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

    /// Adds a watch of a key.
    pub fn add(&self, hash: u64, key: &ObjectKey) -> Arc<Watched> {
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

    /// Removes a watch of a key.
    pub fn remove(&self, hash: u64, watched: &Arc<Watched>) {
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
