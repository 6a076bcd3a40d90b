//! The read cache alone: a reader beside writers of one place.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_memtable::hash_of;
use shoal_memtable::read_cache::ReadCache;
use shoal_value::InlineEntry;

use super::{Share, explore, join};

const KEY: &[u8] = b"read often";

/// Two writers and a reader: each value that is read was written as a whole.
#[test]
fn no_cached_value_is_torn() {
    explore("read cache", Share::All, || {
        let (cache, hash) = (Arc::new(ReadCache::new(0)), hash_of(KEY));
        let writers = (1..=2_u64).map(|writer| {
            let cache = cache.clone();
            shuttle::thread::spawn(move || {
                for version in [writer, writer + 2] {
                    let value = [version as u8; 24];
                    let entry = InlineEntry { modified_ns: version, end: None, metadata: &[], value: &value };
                    cache.put(hash, KEY, Lsn(version), &entry, version);
                }
            })
        });
        let writers = writers.collect();
        for found in (0..4).filter_map(|_| cache.find(hash, KEY)) {
            let (version, entry) = (found.version().0, found.entry());
            assert_eq!(
                (found.count, entry.modified_ns, entry.value),
                (version, version, &[version as u8; 24][..])
            );
        }
        join(writers);
        assert!(cache.find(hash, KEY).is_some(), "the first writer finds no other one");
    });
}
