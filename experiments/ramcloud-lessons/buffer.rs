//! The message buffer: with layers, as RAMCloud's was before seed 000's rewriting, beside `shoal_buffer`.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use shoal_buffer::Buffer;

use super::{Pair, compare};

/// Operations of one call.
const OPERATIONS: usize = 500;
/// Bytes of a piece of memory.
const PIECE_BYTES: usize = 1_000;

/// A chunk: some bytes of one of the allocations.
#[derive(Clone, Copy)]
struct Chunk {
    allocation: usize,
    start: usize,
    bytes: usize,
}

/// A piece of memory that chunks are cut from.
struct Allocation {
    memory: Box<[u8]>,
    used: usize,
}

impl Allocation {
    /// The lowest layer: room at the end, if there is any.
    #[inline(never)]
    fn allocate_append(&mut self, bytes: usize) -> Option<usize> {
        if self.memory.len() - self.used < bytes {
            return None;
        }
        let start = self.used;
        self.used += bytes;
        Some(start)
    }
}

/// The old buffer: shallow layers, each of which checks the results of the one below, and a length that is counted on request.
#[derive(Default)]
struct Layered {
    allocations: Vec<Allocation>,
    chunks: Vec<Chunk>,
}

impl Layered {
    /// The layer in the middle: almost a pass-through.
    #[inline(never)]
    fn allocate_append(&mut self, bytes: usize) -> (usize, usize) {
        if let Some(last) = self.allocations.len().checked_sub(1)
            && let Some(start) = self.allocations.last_mut().and_then(|last| last.allocate_append(bytes))
        {
            return (last, start);
        }
        let memory = vec![0; PIECE_BYTES.max(bytes)].into_boxed_slice();
        self.allocations.push(Allocation { memory, used: bytes });
        (self.allocations.len() - 1, 0)
    }

    /// New space, merged with the last chunk if it happens to follow it.
    #[inline(never)]
    fn alloc(&mut self, bytes: usize) -> &mut [u8] {
        let (allocation, start) = self.allocate_append(bytes);
        match self.chunks.last_mut() {
            Some(last) if last.allocation == allocation && last.start + last.bytes == start => {
                last.bytes += bytes
            }
            _ => self.chunks.push(Chunk { allocation, start, bytes }),
        }
        let piece = self.allocations.get_mut(allocation).map(|allocation| &mut allocation.memory[..]);
        piece.and_then(|piece| piece.get_mut(start..start + bytes)).unwrap_or_default()
    }

    fn append(&mut self, bytes: &[u8]) {
        self.alloc(bytes.len()).copy_from_slice(bytes);
    }

    /// A separate chunk.
    fn append_chunk(&mut self, bytes: &[u8]) {
        self.allocations.push(Allocation { memory: bytes.into(), used: bytes.len() });
        let allocation = self.allocations.len() - 1;
        self.chunks.push(Chunk { allocation, start: 0, bytes: bytes.len() });
    }

    /// The bytes of the chunk at `index`, computed at each access.
    #[inline(never)]
    fn data(&self, index: usize) -> &[u8] {
        let Some(chunk) = self.chunks.get(index) else { return &[] };
        let memory = self.allocations.get(chunk.allocation).map(|allocation| &allocation.memory[..]);
        memory.and_then(|memory| memory.get(chunk.start..chunk.start + chunk.bytes)).unwrap_or_default()
    }

    #[inline(never)]
    fn length_at(&self, index: usize) -> usize {
        self.data(index).len()
    }

    #[inline(never)]
    fn is_done(&self, index: usize) -> bool {
        index >= self.chunks.len()
    }
}

pub(super) fn append(time: Duration) -> Result<Pair> {
    let byte = black_box([7_u8]);
    Ok(compare(
        time,
        OPERATIONS,
        || {
            let mut buffer = Layered::default();
            for _ in 0..OPERATIONS {
                black_box(&mut buffer).append(&byte);
            }
        },
        || {
            let mut buffer = Buffer::new();
            for _ in 0..OPERATIONS {
                black_box(&mut buffer).append_copy(&byte);
            }
        },
    ))
}

pub(super) fn life(time: Duration) -> Result<Pair> {
    let bytes = black_box([7_u8; 6]);
    Ok(compare(
        time,
        1,
        || {
            let mut buffer = Layered::default();
            black_box(&mut buffer).append(&bytes);
            black_box(&mut buffer);
        },
        || {
            let mut buffer = Buffer::new();
            black_box(&mut buffer).append_copy(&bytes);
            black_box(&mut buffer);
        },
    ))
}

pub(super) fn iterate(time: Duration) -> Result<Pair> {
    static PIECES: [[u8; 100]; 5] = [[1; 100]; 5];
    let (mut old, mut new) = (Layered::default(), Buffer::new());
    for piece in &PIECES {
        old.append_chunk(piece);
        new.append_static(piece);
    }
    Ok(compare(
        time,
        1,
        || {
            let (buffer, mut at, mut sum) = (black_box(&old), 0, 0);
            while !buffer.is_done(at) {
                sum += usize::from(buffer.data(at).first().copied().unwrap_or(0)) + buffer.length_at(at);
                at += 1;
            }
            black_box(sum);
        },
        || {
            let mut sum = 0;
            for chunk in black_box(&new).chunks() {
                sum += usize::from(chunk.first().copied().unwrap_or(0)) + chunk.len();
            }
            black_box(sum);
        },
    ))
}

/// An object of a header, a key and a value, in one chunk: three accesses to its fields.
pub(super) fn contiguous(time: Duration) -> Result<Pair> {
    let mut object = Buffer::new();
    object.append_copy(&[5; 200]);
    let field = |bytes: &[u8], at: usize| -> u64 {
        bytes.get(at..at + 8).and_then(|field| field.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    Ok(compare(
        time,
        1,
        || {
            let object = black_box(&object);
            let mut sum = 0;
            for at in [0, 8, 100] {
                let range = object.contiguous(at, 8).unwrap_or_default();
                sum += field(&range, 0);
            }
            black_box(sum);
        },
        || {
            let object = black_box(&object).as_contiguous().unwrap_or_default();
            black_box(field(object, 0) + field(object, 8) + field(object, 100));
        },
    ))
}
