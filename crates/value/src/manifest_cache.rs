//! Keeps decoded manifests of long values: without it, each range of a value of 5 GiB reads and decodes 350 KiB.

use std::ops::Deref;
use std::sync::Arc;

use shoal_base::Lsn;
use shoal_base::sync::Mutex;
use shoal_common::error::Result;
use shoal_device::Device;
use shoal_pool::Pool;

use crate::entry::{Entry, Home};
use crate::read::Located;

/// The least manifest that is kept, in bytes: of a value of 256 MiB, or of many parts. A shorter one is decoded in less time than a range of
/// its value is read, and the pool keeps its bytes.
const KEPT_FROM: u32 = 16 << 10;

/// Bytes of all kept manifests at most. A small store keeps a 64th of its cache.
const BYTES_MAX: u64 = 4 << 20;

/// Kept manifests at most: a search looks at each.
const COUNT_MAX: usize = 64;

/// The manifest of a version. Its blocks cannot have another one of the same version.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ManifestName {
    block: u64,
    version: Lsn,
    checksum: u32,
}

/// Decoded manifests in the order of their last use.
pub struct ManifestCache {
    bytes_max: usize,
    kept: Mutex<Vec<(ManifestName, Arc<Located>)>>,
}

/// The places of a value that was found.
pub enum FoundPlaces {
    /// Those of this search.
    Own(Located),
    /// Those that the cache keeps.
    Kept(Arc<Located>),
}

impl Deref for FoundPlaces {
    type Target = Located;

    fn deref(&self) -> &Located {
        match self {
            Self::Own(located) => located,
            Self::Kept(located) => located,
        }
    }
}

impl ManifestCache {
    /// The cache of a store with this pool.
    #[must_use]
    pub fn new(pool: &Pool) -> Self {
        Self::of_bytes(pool.pass_through_bytes().min(BYTES_MAX) as usize)
    }

    const fn of_bytes(bytes_max: usize) -> Self {
        Self { bytes_max, kept: Mutex::new(Vec::new()) }
    }

    /// As [`Located::find`], without reading a manifest that is kept.
    ///
    /// # Errors
    /// Those of [`Located::find`].
    pub async fn find(
        &self,
        device: &Device,
        pool: &Pool,
        entry: &Entry,
        version: Lsn,
    ) -> Result<FoundPlaces> {
        let name = match &entry.home {
            Home::Manifest { runs, bytes, checksum } if *bytes >= KEPT_FROM => {
                let block = runs.first().map_or(0, |run| run.block);
                ManifestName { block, version, checksum: *checksum }
            }
            _ => return Located::find(device, pool, entry, version).await.map(FoundPlaces::Own),
        };
        if let Some(kept) = self.get(name) {
            return Ok(FoundPlaces::Kept(kept));
        }
        let located = Arc::new(Located::find(device, pool, entry, version).await?);
        self.keep(name, &located);
        Ok(FoundPlaces::Kept(located))
    }

    fn get(&self, name: ManifestName) -> Option<Arc<Located>> {
        let mut kept = self.kept.lock();
        let at = kept.iter().rposition(|(found, _)| *found == name)?;
        kept[at..].rotate_left(1);
        kept.last().map(|(_, located)| located.clone())
    }

    /// Keeps a manifest instead of those that were not used for longest. One that is larger than the cache is not kept.
    fn keep(&self, name: ManifestName, located: &Arc<Located>) {
        let bytes = located.memory_bytes();
        if bytes > self.bytes_max {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.iter().any(|(found, _)| *found == name) {
            return;
        }
        let mut room = self.bytes_max - bytes;
        let newest = kept.iter().rev().take(COUNT_MAX - 1).take_while(|(_, located)| {
            room.checked_sub(located.memory_bytes()).inspect(|rest| room = *rest).is_some()
        });
        let dropped = kept.len() - newest.count();
        let old: Vec<_> = kept.drain(..dropped).collect();
        kept.push((name, located.clone()));
        drop(kept);
        // Freed after the release.
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::checksum::crc32c;
    use shoal_base::task::block_on;
    use shoal_base::{BLOCK_BYTES, Run, blocks_for};
    use shoal_device::{IoBuf, MemDevice};
    use shoal_pool::PoolOptions;
    use smallvec::SmallVec;

    use super::*;
    use crate::entry::Meta;
    use crate::joined::JoinedManifest;

    /// The pool does not keep the bytes of such a manifest.
    const PARTS: u16 = 3_000;

    fn write(device: &Device, place: u64, bytes: &[u8]) {
        for (block, bytes) in (place..).zip(bytes.chunks(BLOCK_BYTES)) {
            let mut whole = bytes.to_vec();
            whole.resize(BLOCK_BYTES, 0);
            block_on(device.write(block, IoBuf::copied_from(&whole))).ok().unwrap();
        }
    }

    /// A joined value of parts of a block each, whose bytes are in block 1, and whose manifest is in `place`.
    fn joined_at(device: &Device, place: u64) -> Entry {
        let mut manifest = JoinedManifest::default();
        let crc = crc32c(&[7; BLOCK_BYTES]);
        for number in 1..=PARTS {
            manifest.push((number, b""), (BLOCK_BYTES as u64, 0), &[Run::new(1, 1)], &[crc]);
        }
        let (bytes, checksum) = manifest.encode();
        write(device, 1, &[7; BLOCK_BYTES]);
        write(device, place, &bytes);
        let runs = SmallVec::from_slice(&[Run::new(place, blocks_for(bytes.len() as u64) as u32)]);
        Entry {
            modified_ns: 1,
            end: None,
            value_bytes: manifest.bytes(),
            meta: Meta::Inline(SmallVec::new()),
            home: Home::Manifest { runs, bytes: bytes.len() as u32, checksum },
        }
    }

    fn fixture() -> (Device, Pool) {
        let device = Device::new(Arc::new(MemDevice::new(1_000)));
        let pool = Pool::new(device.clone(), PoolOptions::new(1_152)).unwrap();
        (device, pool)
    }

    #[test]
    fn a_kept_manifest_is_not_read_again() {
        let (device, pool) = fixture();
        let entry = joined_at(&device, 100);
        let cache = ManifestCache::of_bytes(1 << 20);
        let find = |cache: &ManifestCache, version| {
            block_on(cache.find(&device, &pool, &entry, Lsn(version))).map(|places| places.units())
        };
        assert_eq!(find(&cache, 7).unwrap(), u64::from(PARTS));
        write(&device, 100, &[0; BLOCK_BYTES]);
        assert_eq!(find(&cache, 7).unwrap(), u64::from(PARTS));
        assert!(find(&cache, 8).is_err(), "another version");
        assert!(find(&ManifestCache::new(&pool), 7).is_err(), "not kept");
    }

    #[test]
    fn the_ones_that_were_not_used_for_longest_leave() {
        let (device, pool) = fixture();
        let entries = [100, 200, 300].map(|place| joined_at(&device, place));
        let one = block_on(Located::find(&device, &pool, &entries[0], Lsn(7))).unwrap().memory_bytes();
        assert!((PARTS as usize * 20..PARTS as usize * 100).contains(&one), "{one}");
        let cache = ManifestCache::of_bytes(2 * one + one / 2);
        let find = |at: usize| block_on(cache.find(&device, &pool, &entries[at], Lsn(7))).is_ok();
        assert!(find(0) && find(1) && find(0) && find(2));
        [100, 200, 300].into_iter().for_each(|place| write(&device, place, &[0; BLOCK_BYTES]));
        assert_eq!([find(0), find(1), find(2)], [true, false, true]);
        let bytes: usize = cache.kept.lock().iter().map(|(_, located)| located.memory_bytes()).sum();
        assert!(bytes <= cache.bytes_max);
    }
}
