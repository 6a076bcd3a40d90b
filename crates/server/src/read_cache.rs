//! A read cache for each serving thread: values that the thread recently served are answered from its own memory
//! (`docs/adr/2026-11-21-read-cache.md`).

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use shoal_engine::{Lookup, ObjectKey, ReadCache, ShortObject, Store, TryGet};
use shoal_frontend::Rights;

/// Bytes of the read caches of all threads together, unless the options name another number.
pub(crate) const BYTES_MAX: usize = 16 << 20;
/// Threads beyond these share the memory of others.
const THREADS_MAX: usize = 64;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The number of this thread, in the order in which threads first needed a cache.
    static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// The read cache of each thread.
pub(crate) struct ReadCaches(Box<[Mutex<ReadCache>]>);

impl ReadCaches {
    /// Caches that take at most `bytes_max` bytes together, with the first values.
    pub(crate) fn new(store: &Store, bytes_max: usize) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        Self((0..threads).map(|_| Mutex::new(store.read_cache(bytes_max / threads))).collect())
    }

    /// The cache of this thread, or the store itself if another thread is using that cache; for a caller with `rights` (`None`: all).
    pub(crate) fn here<'a>(&'a self, store: &'a Store, rights: Option<&'a Rights>) -> CachedReads<'a> {
        let cache = self.0.get(NUMBER.with(|number| *number) % self.0.len());
        CachedReads { cache: cache.and_then(|cache| cache.try_lock().ok()), store, rights }
    }
}

/// The read cache of this thread, for a few gets one after the other.
pub(crate) struct CachedReads<'a> {
    cache: Option<MutexGuard<'a, ReadCache>>,
    store: &'a Store,
    rights: Option<&'a Rights>,
}

impl CachedReads<'_> {
    /// As [`Store::try_get`]. An object that the caller may not read is not looked for.
    #[inline]
    pub(crate) fn try_get<T>(
        &mut self,
        key: &ObjectKey,
        show: impl FnOnce(Option<&ShortObject<'_>>) -> T,
    ) -> TryGet<T> {
        if self.rights.is_some_and(|rights| rights.allow_read(key.bucket()).is_err()) {
            return TryGet::MustWait(Lookup::default());
        }
        match &mut self.cache {
            Some(cache) => cache.try_get(key, show),
            None => self.store.try_get(key, show),
        }
    }

    /// As [`ReadCache::keep_read`].
    pub(crate) fn keep_read(&mut self, key: &ObjectKey, value_bytes: usize) {
        if let Some(cache) = &mut self.cache {
            cache.keep_read(key, value_bytes);
        }
    }
}

impl Drop for CachedReads<'_> {
    fn drop(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use shoal_engine::block_on;

    use super::*;

    /// The newest durable value is shown, with its memory in any of the caches.
    #[test]
    fn newest_value_is_visible_to_all_threads() {
        let store = crate::testing::store();
        let caches = ReadCaches::new(&store, 16 << 20);
        let key = ObjectKey::new("default", b"k").unwrap();
        for round in 0..9_u8 {
            let put = store.put(&key, Bytes::from(vec![round; 9]).into(), Default::default());
            let version = block_on(put).unwrap().version;
            let (mut first, mut second) = (caches.here(&store, None), caches.here(&store, None));
            assert!(first.cache.is_some() && second.cache.is_none());
            for reads in [&mut first, &mut second] {
                for _ in 0..3 {
                    let read = reads.try_get(&key, |found| {
                        let found = found.unwrap();
                        assert_eq!(found.info().unwrap().version, version);
                        assert_eq!(found.value(), vec![round; 9]);
                    });
                    assert!(matches!(read, TryGet::Shown(())));
                }
            }
        }
    }
}
