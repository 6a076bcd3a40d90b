//! A value that is being received: the memory that goes to the device, and that it is read from afterwards.

use std::io::IoSliceMut;

use shoal_pool::{Filled, Fresh};
use smallvec::SmallVec;

/// Memory for one value, in frames of the pool. Dropped, it gives them back.
#[derive(Debug)]
pub struct ReceiveBuffer {
    fresh: Fresh,
    value_bytes: usize,
    /// So many bytes of the value are there.
    filled: usize,
    /// Of them, so many were copied.
    copied: usize,
}

impl ReceiveBuffer {
    pub(crate) fn new(fresh: Fresh, value_bytes: usize) -> Self {
        assert!(value_bytes <= fresh.byte_count(), "the value fits in its frames");
        Self { fresh, value_bytes, filled: 0, copied: 0 }
    }

    /// Bytes of the value that are not there yet.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.value_bytes - self.filled
    }

    /// Bytes of the value that are there.
    #[must_use]
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// A copy of what is there.
    #[must_use]
    pub fn to_vec(&mut self) -> Vec<u8> {
        self.fresh.pieces_mut(0, self.filled).concat()
    }

    /// Bytes of the memory that it takes.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.fresh.byte_count()
    }

    /// The memory of what is missing, in order, for a call that receives; [`Self::advance`] says how much came.
    pub fn spare(&mut self) -> SmallVec<[IoSliceMut<'_>; 4]> {
        let missing = self.missing();
        self.fresh.pieces_mut(self.filled, missing).into_iter().map(IoSliceMut::new).collect()
    }

    /// So many bytes came into what [`Self::spare`] gave.
    ///
    /// # Panics
    /// Where so many were not missing.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.missing(), "more bytes came than there was room for");
        self.filled += bytes;
    }

    /// Copies bytes that were received elsewhere.
    ///
    /// # Panics
    /// Where so many are not missing.
    pub fn take(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        for piece in self.fresh.pieces_mut(self.filled, bytes.len()) {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
        }
        self.advance(bytes.len());
        self.copied += bytes.len();
    }

    /// The filled frames, zeros behind the value; the bytes of the value, and how many of them were copied.
    pub(crate) fn into_filled(mut self) -> (Filled, usize, usize) {
        assert_eq!(self.missing(), 0, "the value is there as a whole");
        let behind = self.fresh.byte_count() - self.value_bytes;
        // The frames were used before: what is behind the last byte must not reach the device.
        for piece in self.fresh.pieces_mut(self.value_bytes, behind) {
            piece.fill(0);
        }
        (self.fresh.filled(), self.value_bytes, self.copied)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_device::{Device, MemDevice};

    use crate::common::object::{Metadata, PutOptions};
    use crate::common::options::{Environment, FormatOptions, OpenOptions};
    use crate::store::Store;
    use crate::write::put::Write;
    use crate::{ByteRange, ObjectKey, block_on};

    const BLOCKS: u64 = 32_768;

    fn store(background: bool) -> Store {
        let device = Device::new(Arc::new(MemDevice::new(BLOCKS)));
        block_on(async {
            let options = FormatOptions { tablets: 4, ..FormatOptions::for_blocks(BLOCKS) };
            Store::format(&device, &options, &Environment::default()).await.unwrap();
            let options = OpenOptions { cache_bytes: 32 << 20, background, ..OpenOptions::default() };
            Store::open(device.clone(), options, Environment::default()).await.unwrap()
        })
    }

    fn key(name: impl ToString) -> ObjectKey {
        ObjectKey::new("b", name.to_string().as_bytes()).unwrap()
    }

    fn value(bytes: usize, seed: usize) -> Vec<u8> {
        (0..bytes).map(|at| ((at * 31 + at / 253 + seed * 7) % 251) as u8).collect()
    }

    fn get(store: &Store, name: impl ToString) -> Vec<u8> {
        block_on(store.get(&key(name), ByteRange::ALL)).unwrap().unwrap().value.to_vec()
    }

    /// What a put wrote to extents of its own is there for the first get, before and after the apply.
    #[test]
    fn what_was_just_written_is_read_without_the_device() {
        for background in [false, true] {
            let store = store(background);
            let sizes = [20 << 10, 64 << 10, (64 << 10) + 1, 100_000, 250_000];
            let metadata =
                Metadata { user: vec![("x".into(), vec![7; 1_900].into())], ..Metadata::default() };
            for (seed, &bytes) in sizes.iter().enumerate() {
                let options = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
                let options = if seed % 2 == 1 { options } else { PutOptions::default() };
                block_on(store.put(&key(bytes), value(bytes, seed).into(), options)).unwrap();
            }
            let reads = store.stat().device.reads;
            for (seed, &bytes) in sizes.iter().enumerate() {
                assert_eq!(get(&store, bytes), value(bytes, seed));
            }
            assert_eq!(store.stat().device.reads, reads, "of values that were just written");
            block_on(store.0.apply_all()).unwrap();
            // The leaves are new, and come with the entries; the values are where they were.
            for &bytes in &sizes {
                block_on(store.0.find(&store.0.tablets.of(&key(bytes)).view(), key(bytes).encoded()))
                    .unwrap();
            }
            let reads = store.stat().device.reads;
            for (seed, &bytes) in sizes.iter().enumerate() {
                assert_eq!(get(&store, bytes), value(bytes, seed));
            }
            assert_eq!(store.stat().device.reads, reads, "also behind the apply");
        }
    }

    /// Extents are used again and again; what is read is always the newest value.
    #[test]
    fn a_reused_extent_never_gives_what_was_in_it() {
        let store = store(false);
        let mut blocks = std::collections::HashSet::new();
        let mut written = 0;
        for round in 0..60 {
            for at in 0..8 {
                let bytes = (20 << 10) + (round * 7_919 + at * 4_099) % 50_000;
                block_on(store.put(&key(at), value(bytes, round).into(), PutOptions::default())).unwrap();
                let view = store.0.tablets.of(&key(at)).view();
                let record = view.active.newest(key(at).encoded()).unwrap();
                blocks.extend(record.owned().iter().map(|run| run.block));
                written += 1;
                assert_eq!(get(&store, at), value(bytes, round));
            }
            if round % 4 == 3 {
                block_on(store.0.apply_all()).unwrap();
            }
        }
        assert!(blocks.len() < written, "{} places for {written} values: some were used again", blocks.len());
    }

    /// A value that is written again and again has the frames of one or two versions, not of all of them.
    #[test]
    fn a_version_that_was_superseded_leaves_the_pool() {
        const FRAMES: usize = (64 << 10) / 4096;
        let store = store(false);
        let mut used = Vec::new();
        for seed in 0..50 {
            block_on(store.put(&key("k"), value(64 << 10, seed).into(), PutOptions::default())).unwrap();
            assert_eq!(get(&store, "k"), value(64 << 10, seed));
            used.push(store.stat().pool.frames_used);
        }
        assert!(used[49] <= used[0] + 2 * FRAMES, "{used:?}");
        assert_eq!(store.stat().pool.adopted, 50);
    }

    #[test]
    fn what_is_received_into_a_room_is_not_copied() {
        let store = store(true);
        assert!(store.receive_buffer(&key("short"), 1_000).is_none(), "it rides in its record");
        assert!(store.receive_buffer(&key("long"), 4 << 20).is_none(), "it would not stay in this pool");
        for (copied, bytes) in [(0, 64 << 10), (500, 64 << 10), (500, 150_001), (20_480, 20_480)] {
            let (value, before) = (value(bytes, copied), store.stat());
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
        // What was given up leaves nothing.
        drop(store.receive_buffer(&key("gone"), 100_000).unwrap());
        assert!(block_on(store.get(&key("gone"), ByteRange::ALL)).unwrap().is_none());
        // And what comes from elsewhere is copied once.
        let before = store.stat().value_bytes_copied;
        block_on(store.put(&key("copied"), value(64 << 10, 3).into(), PutOptions::default())).unwrap();
        assert_eq!(store.stat().value_bytes_copied - before, 64 << 10);
    }
}
