//! Memory into which a value is received: the device writes it from there, and reads find it there afterwards.

use std::io::IoSliceMut;

use shoal_base::copy::copy_past_cache;
use shoal_pool::{Filled, Fresh};
use shoal_value::UnitChecksums;
use smallvec::SmallVec;

/// Memory for one value, in frames of the pool. Dropping it frees them.
#[derive(Debug)]
pub struct ReceiveBuffer(Box<Receiving>);

/// The state of a [`ReceiveBuffer`], on the heap because the buffer is moved through the futures of a write.
#[derive(Debug)]
struct Receiving {
    fresh: Fresh,
    value_bytes: usize,
    /// Bytes of the value that were received.
    filled: usize,
    /// Received bytes that were copied.
    copied: usize,
    /// The checksums of the received bytes, formed piece by piece, while each is in the processor's cache.
    checksums: UnitChecksums,
}

/// A value as it was received.
pub(crate) struct ReceivedValue {
    /// Its bytes, then zeros.
    pub(crate) frames: Filled,
    pub(crate) value_bytes: usize,
    /// Bytes of the value that were copied.
    pub(crate) copied: usize,
    /// The checksums of its units.
    pub(crate) checksums: Vec<u32>,
}

impl ReceiveBuffer {
    pub(crate) fn new(fresh: Fresh, value_bytes: usize) -> Self {
        assert!(value_bytes <= fresh.byte_count(), "the value fits in its frames");
        let checksums = UnitChecksums::default();
        Self(Box::new(Receiving { fresh, value_bytes, filled: 0, copied: 0, checksums }))
    }

    /// Bytes of the value that are missing.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.0.value_bytes - self.0.filled
    }

    /// Bytes of the value that were received.
    #[must_use]
    pub fn filled(&self) -> usize {
        self.0.filled
    }

    /// A copy of the received bytes.
    #[must_use]
    pub fn to_vec(&mut self) -> Vec<u8> {
        self.0.fresh.pieces_mut(0, self.0.filled).concat()
    }

    /// Bytes of the whole value.
    pub(crate) fn value_bytes(&self) -> usize {
        self.0.value_bytes
    }

    /// Bytes of the memory that the buffer takes.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.0.fresh.byte_count()
    }

    /// The memory of the missing bytes, in order, for a system call that receives. [`Self::advance`] then sets the
    /// received number.
    pub fn spare(&mut self) -> SmallVec<[IoSliceMut<'_>; 4]> {
        let missing = self.missing();
        self.0.fresh.pieces_mut(self.0.filled, missing).into_iter().map(IoSliceMut::new).collect()
    }

    /// Notes that `bytes` bytes were received into [`Self::spare`].
    ///
    /// # Panics
    /// If fewer bytes are missing.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.missing(), "more bytes came than there was room for");
        for piece in self.0.fresh.pieces_mut(self.0.filled, bytes) {
            self.0.checksums.update(piece);
        }
        self.0.filled += bytes;
    }

    /// Copies bytes that were received elsewhere.
    ///
    /// # Panics
    /// If fewer bytes are missing.
    pub fn take(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.missing(), "more bytes came than there was room for");
        let mut rest = bytes;
        for piece in self.0.fresh.pieces_mut(self.0.filled, bytes.len()) {
            let (now, later) = rest.split_at(piece.len());
            copy_past_cache(piece, now);
            self.0.checksums.update(now);
            rest = later;
        }
        self.0.filled += bytes.len();
        self.0.copied += bytes.len();
    }

    /// Finishes the receiving; the rest of the memory after the value is zeroed.
    ///
    /// # Panics
    /// If bytes are missing.
    pub(crate) fn into_value(mut self) -> ReceivedValue {
        assert_eq!(self.missing(), 0, "the value is there as a whole");
        let behind = self.0.fresh.byte_count() - self.0.value_bytes;
        // The frames were used before: bytes after the value's last byte must not reach the device.
        for piece in self.0.fresh.pieces_mut(self.0.value_bytes, behind) {
            piece.fill(0);
        }
        let Receiving { fresh, value_bytes, copied, checksums, .. } = *self.0;
        ReceivedValue { frames: fresh.filled(), value_bytes, copied, checksums: checksums.finish() }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Display;

    use shoal_common::object::{Metadata, PutOptions, RejectRules};
    use shoal_common::options::{Environment, OpenOptions};
    use shoal_testkit::bytes::patterned;

    use crate::store::Store;
    use crate::testing::fixtures::{self, in_memory, key, open_in};
    use crate::write::write_batch::Write;
    use crate::{ByteRange, block_on};

    fn store(background: bool) -> Store {
        let options = OpenOptions { cache_bytes: 32 << 20, background, ..OpenOptions::default() };
        open_in(&in_memory(), options, Environment::default())
    }

    fn get(store: &Store, name: impl Display) -> Vec<u8> {
        fixtures::get(store, &key(name)).unwrap().unwrap()
    }

    /// The first get finds a value that a put wrote to extents in memory, before and after the apply.
    #[test]
    fn fresh_value_is_read_from_cache() {
        for background in [false, true] {
            let store = store(background);
            let sizes = [20 << 10, 64 << 10, (64 << 10) + 1, 100_000, 250_000];
            let metadata =
                Metadata { user: vec![("x".into(), vec![7; 1_900].into())], ..Metadata::default() };
            for (seed, &bytes) in sizes.iter().enumerate() {
                let options = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
                let options = if seed % 2 == 1 { options } else { PutOptions::default() };
                block_on(store.put(&key(bytes), patterned(bytes, seed).into(), options)).unwrap();
            }
            let reads = store.stat().device.reads;
            for (seed, &bytes) in sizes.iter().enumerate() {
                assert_eq!(get(&store, bytes), patterned(bytes, seed));
            }
            assert_eq!(store.stat().device.reads, reads, "of values that were just written");
            block_on(store.0.checkpointer.apply_all()).unwrap();
            // The leaves are new and come with the entries; the values stay in their places.
            for &bytes in &sizes {
                block_on(store.0.find(&store.0.tablets.of(&key(bytes)).view(), key(bytes).encoded()))
                    .unwrap();
            }
            let reads = store.stat().device.reads;
            for (seed, &bytes) in sizes.iter().enumerate() {
                assert_eq!(get(&store, bytes), patterned(bytes, seed));
            }
            assert_eq!(store.stat().device.reads, reads, "also behind the apply");
        }
    }

    /// Extents are reused again and again; a read always returns the newest value.
    #[test]
    fn reused_extent_never_serves_old_value() {
        let store = store(false);
        let mut blocks = std::collections::HashSet::new();
        let mut written = 0;
        for round in 0..60 {
            for at in 0..8 {
                let bytes = (20 << 10) + (round * 7_919 + at * 4_099) % 50_000;
                block_on(store.put(&key(at), patterned(bytes, round).into(), PutOptions::default())).unwrap();
                let view = store.0.tablets.of(&key(at)).view();
                let record = view.active.newest(key(at).encoded()).unwrap();
                blocks.extend(record.owned().iter().map(|run| run.block));
                written += 1;
                assert_eq!(get(&store, at), patterned(bytes, round));
            }
            if round % 4 == 3 {
                block_on(store.0.checkpointer.apply_all()).unwrap();
            }
        }
        assert!(blocks.len() < written, "{} places for {written} values: some were used again", blocks.len());
    }

    /// A value that is overwritten again and again takes the frames of one or two versions, not of all.
    #[test]
    fn a_version_that_was_superseded_leaves_the_pool() {
        const FRAMES: usize = (64 << 10) / 4096;
        let store = store(false);
        let mut used = Vec::new();
        for seed in 0..50 {
            block_on(store.put(&key("k"), patterned(64 << 10, seed).into(), PutOptions::default())).unwrap();
            assert_eq!(get(&store, "k"), patterned(64 << 10, seed));
            used.push(store.stat().pool.frames_used);
        }
        assert!(used[49] <= used[0] + 2 * FRAMES, "{used:?}");
        assert_eq!(store.stat().pool.adopted, 50);
    }

    /// The same for a deleted value.
    #[test]
    fn a_deleted_version_leaves_the_pool() {
        const FRAMES: usize = (64 << 10) / 4096;
        let store = store(false);
        let mut used = Vec::new();
        for seed in 0..50 {
            block_on(store.put(&key(seed), patterned(64 << 10, seed).into(), PutOptions::default())).unwrap();
            block_on(store.delete(&key(seed), RejectRules::default())).unwrap();
            used.push(store.stat().pool.frames_used);
        }
        assert!(used[49] <= used[0] + 2 * FRAMES, "{used:?}");
        assert_eq!(store.stat().pool.adopted, 50);
    }

    #[test]
    fn received_bytes_are_not_copied() {
        let store = store(true);
        assert!(store.receive_buffer(&key("short"), 1_000).is_none(), "it rides in its record");
        assert!(store.receive_buffer(&key("long"), 4 << 20).is_none(), "it would not stay in this pool");
        for (copied, bytes) in [(0, 64 << 10), (500, 64 << 10), (500, 150_001), (20_480, 20_480)] {
            let (value, before) = (patterned(bytes, copied), store.stat());
            let mut room = store.receive_buffer(&key(bytes), bytes).unwrap();
            room.take(&value[..copied]);
            // In uneven pieces, as they come from a socket.
            let mut at = copied;
            while room.missing() > 0 {
                let mut now = 0;
                for mut slice in room.spare() {
                    let count = slice.len().min(30_011 - now);
                    slice[..count].copy_from_slice(&value[at + now..at + now + count]);
                    now += count;
                }
                room.advance(now);
                at += now;
            }
            let pending =
                block_on(store.write(Write::put_received(&key(bytes), room, &PutOptions::default())))
                    .unwrap();
            block_on(pending.durable()).unwrap();
            assert_eq!(get(&store, bytes), value);
            let stat = store.stat();
            assert_eq!(stat.value_bytes_copied - before.value_bytes_copied, copied as u64);
            assert_eq!(stat.device.reads, before.device.reads);
        }
        // A dropped buffer leaves nothing.
        drop(store.receive_buffer(&key("gone"), 100_000).unwrap());
        assert!(block_on(store.get(&key("gone"), ByteRange::ALL)).unwrap().is_none());
        // A value in other memory is copied once.
        let before = store.stat().value_bytes_copied;
        block_on(store.put(&key("copied"), patterned(64 << 10, 3).into(), PutOptions::default())).unwrap();
        assert_eq!(store.stat().value_bytes_copied - before, 64 << 10);
    }
}
