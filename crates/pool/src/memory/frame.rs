//! The memory of the pool: one aligned region of frames, and [`Frames`], the exclusive right to some of them.
//!
//! A large region is mapped, not touched: a frame costs memory from its first use on. `Frames` is the only way to write
//! to a frame; it frees the frames when dropped, and implements the device's memory traits, so that a read request owns
//! its frames until it completed.

#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use shoal_base::BLOCK_BYTES;
use shoal_device::{IoBuf, IoMemory, ReadMemory};
use smallvec::SmallVec;

use super::free::{FreeList, List};
use super::starve::Starving;
use crate::counters::{Alone, CELLS, cell};

/// Size of a huge page on the usual machines; the region starts at such a border.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A region of at most this many frames reuses I/O memory if there is some. Mapping and unmapping interrupt the other
/// cores of the process: two threads that open small stores all day (the laboratory's) were slower by a third.
const RECYCLED_FRAMES_MAX: u32 = 256;

/// One aligned piece of memory. Its first contents are zero or left over from an earlier use.
struct Region {
    start: NonNull<u8>,
    memory: Memory,
}

/// The owner of a region's memory.
enum Memory {
    Mapped { map: NonNull<u8>, bytes: usize },
    Recycled { _buf: IoBuf },
}

// SAFETY: the region is plain memory; `Frames` and the pins decide which thread may touch which frame.
unsafe impl Send for Region {}
// SAFETY: as above. The buffer itself is not used until it is dropped with the region.
unsafe impl Sync for Region {}

impl Region {
    fn new(frames: u32) -> io::Result<Self> {
        if frames <= RECYCLED_FRAMES_MAX {
            let mut buf = IoBuf::unfilled(frames.max(1) as usize);
            let start = NonNull::from(&mut buf[..]).cast();
            return Ok(Self { start, memory: Memory::Recycled { _buf: buf } });
        }
        let bytes = (frames as usize).checked_mul(BLOCK_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let map_bytes = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = map_memory(map_bytes)?;
        let skip = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
        assert!(skip < HUGE_PAGE_BYTES);
        // SAFETY: `skip` is below the surplus that was mapped.
        let start = unsafe { map.add(skip) };
        advise_huge(start, bytes);
        Ok(Self { start, memory: Memory::Mapped { map, bytes: map_bytes } })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Memory::Mapped { map, bytes } = self.memory {
            unmap_memory(map, bytes);
        }
    }
}

#[cfg(not(miri))]
fn map_memory(bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address that the kernel chooses does not touch existing memory.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(map.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

#[cfg(not(miri))]
fn unmap_memory(map: NonNull<u8>, bytes: usize) {
    // SAFETY: mapped by `map_memory` with this size; the region, and with it every right to a frame, is gone.
    let result = unsafe { libc::munmap(map.as_ptr().cast(), bytes) };
    assert_eq!(result, 0, "unmapping the pool's frames: {}", io::Error::last_os_error());
}

/// A hint only: without huge pages everything works, with more misses of the address cache.
#[cfg(not(miri))]
fn advise_huge(start: NonNull<u8>, bytes: usize) {
    if bytes >= HUGE_PAGE_BYTES {
        // SAFETY: the range is in the mapping, and the advice changes no contents.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(miri)]
fn miri_layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes, BLOCK_BYTES).unwrap()
}

#[cfg(miri)]
fn map_memory(bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: the layout has a size above 0.
    let map = unsafe { std::alloc::alloc_zeroed(miri_layout(bytes)) };
    NonNull::new(map).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

#[cfg(miri)]
fn unmap_memory(map: NonNull<u8>, bytes: usize) {
    // SAFETY: allocated by `map_memory` with this layout.
    unsafe { std::alloc::dealloc(map.as_ptr(), miri_layout(bytes)) }
}

#[cfg(miri)]
fn advise_huge(_start: NonNull<u8>, _bytes: usize) {}

/// All frames: their memory, the free ones, and the requests that wait for one.
pub(crate) struct Store {
    region: Region,
    pub(crate) free: FreeList,
    pub(crate) starving: Arc<Starving>,
}

impl Store {
    pub(crate) fn new(frames: u32) -> io::Result<Arc<Self>> {
        let region = Region::new(frames)?;
        Ok(Arc::new(Self { region, free: FreeList::new(frames), starving: Arc::default() }))
    }

    /// The memory of `bytes` bytes from `skip` on in the frames of `list`, adjacent frames in one piece.
    pub(crate) fn pieces(&self, list: List, skip: usize, bytes: usize) -> Pieces<'_> {
        assert!(skip < BLOCK_BYTES && skip + bytes <= list.count as usize * BLOCK_BYTES);
        Pieces { store: self, frame: list.head, skip, bytes }
    }

    /// The start of a frame.
    #[inline]
    pub(crate) fn address(&self, frame: u32) -> *mut u8 {
        assert!((frame as usize) < self.free.frames());
        // SAFETY: the region has that many frames.
        unsafe { self.region.start.as_ptr().add(frame as usize * BLOCK_BYTES) }
    }
}

/// A reference to the store, counted for one group of threads.
struct Lane(Alone<Arc<Store>>);

/// The store, with a count of references for each group of threads: every miss takes one, and one count for all of them
/// would have to travel between the cores.
pub(crate) struct Stores {
    store: Arc<Store>,
    lanes: [Arc<Lane>; CELLS],
}

impl Stores {
    /// As [`Store::new`].
    pub(crate) fn new(frames: u32) -> io::Result<Self> {
        let store = Store::new(frames)?;
        let lanes = std::array::from_fn(|_| Arc::new(Lane(Alone(store.clone()))));
        Ok(Self { store, lanes })
    }

    /// Takes `count` free frames, or none at all. Their contents are left over from earlier uses.
    pub(crate) fn take(&self, count: usize) -> Option<Frames> {
        self.store.free.take(count).map(|list| Frames { lane: self.lanes[cell()].clone(), list })
    }

    /// The right to frames without an owner.
    ///
    /// # Safety
    /// `list` is a list of this store that no `Frames`, no pin and no free list holds, nor will hold.
    pub(crate) unsafe fn claim(&self, list: List) -> Frames {
        Frames { lane: self.lanes[cell()].clone(), list }
    }
}

impl Deref for Stores {
    type Target = Store;

    #[inline]
    fn deref(&self) -> &Store {
        &self.store
    }
}

/// Address and length of pieces of memory, in order.
#[derive(Clone)]
pub(crate) struct Pieces<'a> {
    store: &'a Store,
    frame: u32,
    skip: usize,
    bytes: usize,
}

impl Pieces<'_> {
    /// Bytes that are left.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Iterator for Pieces<'_> {
    type Item = (*mut u8, usize);

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes == 0 {
            return None;
        }
        let start = self.store.address(self.frame).wrapping_add(self.skip);
        let mut piece = self.bytes.min(BLOCK_BYTES - self.skip);
        self.bytes -= piece;
        self.skip = 0;
        while self.bytes > 0 {
            let next = self.store.free.next(self.frame);
            let adjacent = next == self.frame + 1;
            self.frame = next;
            if !adjacent {
                break;
            }
            let more = self.bytes.min(BLOCK_BYTES);
            piece += more;
            self.bytes -= more;
        }
        Some((start, piece))
    }
}

/// The exclusive right to a list of frames. Frees them when dropped.
pub(crate) struct Frames {
    lane: Arc<Lane>,
    list: List,
}

impl Frames {
    pub(crate) fn list(&self) -> List {
        self.list
    }

    pub(crate) fn count(&self) -> usize {
        self.list.count as usize
    }

    fn store(&self) -> &Store {
        &self.lane.0
    }

    pub(crate) fn are_of(&self, stores: &Stores) -> bool {
        Arc::ptr_eq(&self.lane.0, &stores.store)
    }

    /// Returns the list without freeing the frames: a resident unit holds them from now on.
    pub(crate) fn into_list(self) -> List {
        let list = self.list;
        let mut frames = std::mem::ManuallyDrop::new(self);
        // SAFETY: the value is never used again, and its other field needs no drop.
        unsafe { std::ptr::drop_in_place(&raw mut frames.lane) };
        list
    }

    /// `bytes` bytes from `skip` on.
    pub(crate) fn chunks(&self, skip: usize, bytes: usize) -> impl Iterator<Item = &[u8]> {
        // SAFETY: the region is initialised, and no other right to these frames exists while `self` is borrowed.
        self.store()
            .pieces(self.list, skip, bytes)
            .map(|(start, bytes)| unsafe { std::slice::from_raw_parts(start, bytes) })
    }

    /// `bytes` bytes from `skip` on, to be written to.
    pub(crate) fn chunks_mut(&mut self, skip: usize, bytes: usize) -> impl Iterator<Item = &mut [u8]> {
        // SAFETY: as in `chunks`, and `self` is borrowed mutably; a list holds a frame once, so the pieces are disjoint.
        self.store()
            .pieces(self.list, skip, bytes)
            .map(|(start, bytes)| unsafe { std::slice::from_raw_parts_mut(start, bytes) })
    }

    fn segments(&self, each: &mut dyn FnMut(*mut u8, usize)) {
        let pieces = self.store().pieces(self.list, 0, self.count() * BLOCK_BYTES);
        pieces.for_each(|(start, bytes)| each(start, bytes));
    }

    /// The first frame.
    pub(crate) fn first(&self) -> &[u8; BLOCK_BYTES] {
        // SAFETY: as in `chunks`; a frame is this long.
        unsafe { &*self.store().address(self.list.head).cast() }
    }

    /// The first frame, to be written to.
    pub(crate) fn first_mut(&mut self) -> &mut [u8; BLOCK_BYTES] {
        // SAFETY: as in `first`, and `self` is borrowed mutably.
        unsafe { &mut *self.store().address(self.list.head).cast() }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.store().free.give(self.list);
        self.store().starving.notify();
    }
}

/// The memory of a read request: the frames of one unit, or of several that are adjacent on the device.
pub(crate) struct ReadFrames(pub(crate) SmallVec<[Frames; 1]>);

// SAFETY: frames do not move and are block-aligned; the right to them is owned, so no other code writes.
unsafe impl IoMemory for ReadFrames {
    fn segments(&self, each: &mut dyn FnMut(*mut u8, usize)) {
        self.0.iter().for_each(|frames| frames.segments(each));
    }
}

// SAFETY: the right is exclusive, so no other code reads either.
unsafe impl ReadMemory for ReadFrames {}

/// The memory of a write request: filled frames that are only read, in the order of their blocks.
pub(crate) struct SharedFrames(pub(crate) SmallVec<[Arc<Frames>; 1]>);

// SAFETY: frames do not move and are block-aligned; a shared right can only be read by.
unsafe impl IoMemory for SharedFrames {
    fn segments(&self, each: &mut dyn FnMut(*mut u8, usize)) {
        self.0.iter().for_each(|frames| frames.segments(each));
    }
}

/// Filled frames, on their way to the device.
pub struct FilledFrames {
    pub(crate) frames: SharedFrames,
    /// Lives until the device has finished with the frames: the put that wanted them written may be dropped
    /// before.
    pub(crate) _guard: Arc<dyn Send + Sync>,
}

/// The memory of a write of a value.
pub enum WriteMemory {
    /// Its own.
    Own(IoBuf),
    /// Frames that become resident when the value is durable.
    Filled(FilledFrames),
}

impl std::fmt::Debug for WriteMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Own(_)) { "Own" } else { "Filled" })
    }
}

// SAFETY: the segments are those of memory that is fit for it.
unsafe impl IoMemory for WriteMemory {
    fn segments(&self, each: &mut dyn FnMut(*mut u8, usize)) {
        match self {
            Self::Own(memory) => memory.segments(each),
            Self::Filled(filled) => filled.frames.segments(each),
        }
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[cfg(not(miri))]
    #[test]
    fn more_memory_than_there_are_addresses_is_refused() {
        let error = map_memory(1 << 60).map(|_| ()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM), "{error}");
    }

    #[test]
    fn frames_are_aligned_exclusive_and_come_back() {
        let store = Stores::new(4).unwrap();
        let mut one = store.take(1).unwrap();
        let mut two = store.take(1).unwrap();
        one.first_mut().fill(1);
        two.first_mut().fill(2);
        assert_eq!(one.first().as_ptr() as usize % BLOCK_BYTES, 0);
        assert!(one.first().iter().all(|&byte| byte == 1));
        assert!(two.first().iter().all(|&byte| byte == 2));
        assert!(store.take(3).is_none());
        drop(one);
        assert!(store.take(3).is_some());
        assert_eq!(store.free.used(), 1);
    }

    #[test]
    fn pieces_follow_the_list_and_merge_neighbours() {
        let store = Stores::new(8).unwrap();
        let singles: Vec<_> = (0..8).map(|_| store.take(1).unwrap()).collect();
        for (index, frames) in singles.into_iter().enumerate() {
            // Freed in this order, they are taken as 7, 6, ...: no two in ascending order.
            assert_eq!(frames.list().head, index as u32);
        }
        let frames = store.take(3).unwrap();
        let lengths: Vec<_> = frames.chunks(100, 2 * BLOCK_BYTES).map(<[u8]>::len).collect();
        assert_eq!(lengths, [BLOCK_BYTES - 100, BLOCK_BYTES, 100]);
        drop(frames);

        let store = Stores::new(8).unwrap();
        let frames = store.take(5).unwrap();
        let lengths: Vec<_> = frames.chunks(4095, 2 + 2 * BLOCK_BYTES).map(<[u8]>::len).collect();
        assert_eq!(lengths, [2 + 2 * BLOCK_BYTES], "fresh frames are adjacent");
        let mut segments = Vec::new();
        ReadFrames(smallvec::smallvec![frames]).segments(&mut |_, bytes| segments.push(bytes));
        assert_eq!(segments, [5 * BLOCK_BYTES]);
    }

    #[test]
    fn a_claimed_list_is_owned_again() {
        let store = Stores::new(2).unwrap();
        let list = store.take(2).unwrap().into_list();
        assert!(store.take(1).is_none(), "a given-up right keeps the frames");
        // SAFETY: `into_list` released the right above, and no other owner has the list.
        drop(unsafe { store.claim(list) });
        assert!(store.take(2).is_some());
        assert!(store.lanes.iter().all(|lane| Arc::strong_count(lane) == 1), "no right leaks the store");
    }
}
