//! Short values near the threads that serve: what the store was asked for lately is answered from memory of the thread's own
//! (`docs/adr/2026-11-21-near-values.md`).

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use shoal_engine::{Near, ObjectInfo, ObjectKey, Store};

/// Memory of all threads together, in bytes; taken with the first values.
const NEAR_BYTES_MAX: usize = 16 << 20;

/// Threads beyond these share the memory of others.
const THREADS_MAX: usize = 64;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Which of the threads that asked for a value this one is.
    static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// The values near each thread.
pub(crate) struct NearValues(Box<[Mutex<Near>]>);

impl NearValues {
    pub(crate) fn new(store: &Store) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        Self((0..threads).map(|_| Mutex::new(store.near(NEAR_BYTES_MAX / threads))).collect())
    }

    /// Those of this thread, or the store itself where another one has them just now.
    pub(crate) fn here<'a>(&'a self, store: &'a Store) -> Nearby<'a> {
        let near = self.0.get(NUMBER.with(|number| *number) % self.0.len());
        Nearby { near: near.and_then(|near| near.try_lock().ok()), store }
    }
}

/// Values near this thread, for a few gets one after the other.
pub(crate) struct Nearby<'a> {
    near: Option<MutexGuard<'a, Near>>,
    store: &'a Store,
}

impl Nearby<'_> {
    /// As [`Store::show_object_at_once`].
    #[inline]
    pub(crate) fn show_object<T>(
        &mut self,
        key: &ObjectKey,
        show: impl FnOnce(Option<(&ObjectInfo, &[u8])>) -> T,
    ) -> Option<T> {
        match &mut self.near {
            Some(near) => near.show_object(key, show),
            None => self.store.show_object_at_once(key, show),
        }
    }
}

impl Drop for Nearby<'_> {
    fn drop(&mut self) {
        if let Some(near) = &mut self.near {
            near.settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use shoal_engine::block_on;

    use super::*;

    /// Whoever holds the memory, the newest durable value is what is shown.
    #[test]
    fn the_newest_value_is_shown_from_anywhere() {
        let store = crate::testing::store();
        let near = NearValues::new(&store);
        let key = ObjectKey::new("default", b"k").unwrap();
        for round in 0..9_u8 {
            let put = store.put(&key, Bytes::from(vec![round; 9]).into(), Default::default());
            let version = block_on(put).unwrap().version;
            let (mut first, mut second) = (near.here(&store), near.here(&store));
            assert!(first.near.is_some() && second.near.is_none());
            for nearby in [&mut first, &mut second] {
                for _ in 0..3 {
                    let shown = nearby.show_object(&key, |object| {
                        let (info, value) = object.unwrap();
                        (info.version, value.to_vec())
                    });
                    assert_eq!(shown, Some((version, vec![round; 9])));
                }
            }
        }
    }
}
