//! The tests of the buffer's table: RAMCloud's shapes (`nanobenchmarks/Perf.cc`) for Shoal's buffer and its peers.
//!
//! `bytes_mut` and `vec` have room for 1,000 bytes when they are made, as a buffer for a message has; if a test is
//! about several chunks they are several of them in a queue. `bytes_chain` is a queue of `Bytes`, the faster of the
//! two ways to chain them (the other is a nested `Chain`). Each iteration passes its buffer through `black_box`, or
//! the compiler would remove the loop.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use shoal_buffer::Buffer;

/// Iterations of a slice; a test of several operations an iteration runs fewer and counts the operations.
const ITERATIONS: usize = 20_000;

/// Room of a peer's buffer: the same that Shoal's has built in.
const ROOM: usize = 1000;

/// Appends of one byte between two resets.
const APPENDS: usize = 500;

static FIVE: [u8; 5] = *b"abcde";
static BODY: [u8; 2000] = [7; 2000];

/// The implementations that are compared.
pub(super) const IMPLEMENTATIONS: [&str; 4] = ["shoal", "bytes_mut", "bytes_chain", "vec"];

/// The cost of one test of one implementation.
pub(super) struct Row {
    /// `shoal`, `bytes_mut`, `bytes_chain` or `vec`.
    pub(super) implementation: &'static str,
    /// RAMCloud's name.
    pub(super) test: &'static str,
    /// Nanoseconds an operation in the median slice.
    pub(super) median_ns: f64,
    /// In the fastest one.
    pub(super) best_ns: f64,
}

/// One slice: its time, in nanoseconds an operation.
type Slice = Box<dyn FnMut() -> f64>;

struct Case {
    implementation: &'static str,
    test: &'static str,
    slice: Slice,
}

/// Names of the tests, in the table's order.
pub(super) fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = cases().iter().map(|case| case.test).collect();
    names.dedup();
    names
}

/// Runs `slices` slices of the wanted tests of the wanted implementations, in turns.
pub(super) fn measure(slices: usize, tests: &[&str], implementations: &[&str]) -> Vec<Row> {
    let mut cases = cases();
    cases.retain(|case| tests.contains(&case.test) && implementations.contains(&case.implementation));
    let mut samples = vec![Vec::with_capacity(slices); cases.len()];
    for _ in 0..slices {
        for (case, samples) in cases.iter_mut().zip(&mut samples) {
            samples.push((case.slice)());
        }
    }
    let rows = cases.iter().zip(samples).map(|(case, mut samples)| {
        samples.sort_by(f64::total_cmp);
        let (median_ns, best_ns) = (samples[samples.len() / 2], samples[0]);
        Row { implementation: case.implementation, test: case.test, median_ns, best_ns }
    });
    rows.collect()
}

/// `rounds` calls of `round`, which does `operations` operations, as one slice.
fn slice(operations: usize, mut round: impl FnMut() + 'static) -> Slice {
    let rounds = ITERATIONS / operations;
    Box::new(move || {
        let start = Instant::now();
        for _ in 0..rounds {
            round();
        }
        start.elapsed().as_nanos() as f64 / (rounds * operations) as f64
    })
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |test, slices: [Slice; 4]| {
        let implementations = IMPLEMENTATIONS.into_iter();
        let all = implementations.zip(slices);
        cases.extend(all.map(|(implementation, slice)| Case { implementation, test, slice }));
    };
    add("bufferBasic", basic());
    add("bufferBasicAlloc", basic_alloc());
    add("bufferBasicCopy", basic_copy(b"abcdef"));
    add("bufferBasicCopy1", basic_copy(b"a"));
    add("bufferExtendChunk", extend::<10>());
    add("bufferExtendSteady", extend::<50>());
    add("bufferAppendSteady1", append_steady());
    add("bufferCopy", copy());
    add("bufferIterator5x5", iterator::<5>());
    add("bufferExternalIterator5", iterator::<100>());
    add("bufferGetRange", get_range());
    add("bufferConstruct", construct());
    add("bufferReset", reset());
    add("bufferPrepend40", prepend());
    add("bufferReply100", reply(&BODY[..100]));
    add("bufferReply2000", reply(&BODY));
    cases
}

fn bytes_mut() -> BytesMut {
    BytesMut::with_capacity(ROOM)
}

fn vec() -> Vec<u8> {
    Vec::with_capacity(ROOM)
}

/// Create, append a chunk of 5 bytes by reference (the peers that cannot refer copy), drop.
fn basic() -> [Slice; 4] {
    [
        slice(1, || {
            let mut buffer = Buffer::new();
            buffer.append_static(&FIVE);
            black_box(&mut buffer);
        }),
        slice(1, || {
            let mut buffer = bytes_mut();
            buffer.put_slice(&FIVE);
            black_box(&mut buffer);
        }),
        slice(1, || {
            let mut buffer = Bytes::from_static(&FIVE);
            black_box(&mut buffer);
        }),
        slice(1, || {
            let mut buffer = vec();
            buffer.extend_from_slice(&FIVE);
            black_box(&mut buffer);
        }),
    ]
}

/// Create, allocate 16 bytes, drop.
fn basic_alloc() -> [Slice; 4] {
    [
        slice(1, || {
            let mut buffer = Buffer::new();
            black_box(buffer.alloc(16));
            black_box(&mut buffer);
        }),
        slice(1, || {
            let mut buffer = bytes_mut();
            buffer.put_bytes(0, 16);
            black_box(&mut buffer);
        }),
        slice(1, || {
            let mut buffer = Bytes::copy_from_slice(&[0; 16]);
            black_box(&mut buffer);
        }),
        slice(1, || {
            let mut buffer = vec();
            buffer.resize(16, 0);
            black_box(&mut buffer);
        }),
    ]
}

/// Create, copy a few bytes in, drop.
fn basic_copy<const N: usize>(bytes: &'static [u8; N]) -> [Slice; 4] {
    [
        slice(1, move || {
            let mut buffer = Buffer::new();
            buffer.append_copy(bytes);
            black_box(&mut buffer);
        }),
        slice(1, move || {
            let mut buffer = bytes_mut();
            buffer.put_slice(bytes);
            black_box(&mut buffer);
        }),
        slice(1, move || {
            let mut buffer = Bytes::copy_from_slice(bytes);
            black_box(&mut buffer);
        }),
        slice(1, move || {
            let mut buffer = vec();
            buffer.extend_from_slice(bytes);
            black_box(&mut buffer);
        }),
    ]
}

/// `N` times 16 bytes more on a chunk that is there; a reset and the first 16 bytes are in each `N`.
fn extend<const N: usize>() -> [Slice; 4] {
    let (mut shoal, mut mutable, mut chain, mut vec) = (Buffer::new(), bytes_mut(), VecDeque::new(), vec());
    [
        slice(N, move || {
            shoal.clear();
            shoal.alloc(16);
            for _ in 0..N {
                black_box(&mut shoal).alloc(16);
            }
        }),
        slice(N, move || {
            mutable.clear();
            mutable.put_bytes(0, 16);
            for _ in 0..N {
                black_box(&mut mutable).put_bytes(0, 16);
            }
        }),
        slice(N, move || {
            chain.clear();
            for _ in 0..N {
                black_box(&mut chain).push_back(Bytes::copy_from_slice(&[0; 16]));
            }
        }),
        slice(N, move || {
            vec.clear();
            vec.resize(16, 0);
            for _ in 0..N {
                let vec = black_box(&mut vec);
                vec.extend_from_slice(&[0; 16]);
            }
        }),
    ]
}

/// One byte more.
fn append_steady() -> [Slice; 4] {
    let (mut shoal, mut mutable, mut chain, mut vec) = (Buffer::new(), bytes_mut(), VecDeque::new(), vec());
    [
        slice(APPENDS, move || {
            shoal.clear();
            for _ in 0..APPENDS {
                black_box(&mut shoal).append_copy(b"x");
            }
        }),
        slice(APPENDS, move || {
            mutable.clear();
            for _ in 0..APPENDS {
                black_box(&mut mutable).put_slice(b"x");
            }
        }),
        slice(APPENDS, move || {
            chain.clear();
            for _ in 0..APPENDS {
                black_box(&mut chain).push_back(Bytes::from_static(b"x"));
            }
        }),
        slice(APPENDS, move || {
            vec.clear();
            for _ in 0..APPENDS {
                black_box(&mut vec).extend_from_slice(b"x");
            }
        }),
    ]
}

/// Copies the bytes from `offset` on out of a queue of pieces until `target` is full.
fn copy_pieces<P: AsRef<[u8]>>(pieces: &VecDeque<P>, offset: usize, target: &mut [u8]) {
    let (mut skip, mut rest) = (offset, target);
    for piece in pieces {
        let piece = piece.as_ref();
        let piece = &piece[skip.min(piece.len())..];
        skip = skip.saturating_sub(piece.len());
        let (now, later) = rest.split_at_mut(piece.len().min(rest.len()));
        now.copy_from_slice(&piece[..now.len()]);
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
}

/// Copies 6 bytes out, across two chunks of 5.
fn copy() -> [Slice; 4] {
    let mut shoal = Buffer::new();
    shoal.append_static(&FIVE);
    shoal.append_static(&FIVE);
    let mutable = VecDeque::from([BytesMut::from(&FIVE[..]), BytesMut::from(&FIVE[..])]);
    let chain = VecDeque::from([Bytes::from_static(&FIVE), Bytes::from_static(&FIVE)]);
    let vec = VecDeque::from([FIVE.to_vec(), FIVE.to_vec()]);
    [
        slice(1, move || {
            let mut target = [0; 6];
            let done = black_box(&mut shoal).copy_out(2, &mut target);
            assert!(done.is_ok(), "10 bytes are there");
            black_box(&mut target);
        }),
        slice(1, move || {
            let mut target = [0; 6];
            copy_pieces(black_box(&mutable), 2, &mut target);
            black_box(&mut target);
        }),
        slice(1, move || {
            let mut target = [0; 6];
            copy_pieces(black_box(&chain), 2, &mut target);
            black_box(&mut target);
        }),
        slice(1, move || {
            let mut target = [0; 6];
            copy_pieces(black_box(&vec), 2, &mut target);
            black_box(&mut target);
        }),
    ]
}

/// The last byte of each of five chunks of `N` bytes.
fn iterator<const N: usize>() -> [Slice; 4] {
    let mut shoal = Buffer::new();
    (0..5).for_each(|_| shoal.append_static(&BODY[..N]));
    let mut mutable: VecDeque<_> = (0..5).map(|_| BytesMut::from(&BODY[..N])).collect();
    let mut chain: VecDeque<_> = (0..5).map(|_| Bytes::from_static(&BODY[..N])).collect();
    let mut vec: VecDeque<_> = (0..5).map(|_| BODY[..N].to_vec()).collect();
    let last = |sum: u64, piece: &[u8]| sum + u64::from(piece[piece.len() - 1]);
    [
        slice(1, move || {
            black_box(black_box(&mut shoal).chunks().fold(0, last));
        }),
        slice(1, move || {
            black_box(black_box(&mut mutable).iter().fold(0, |sum, piece| last(sum, piece)));
        }),
        slice(1, move || {
            black_box(black_box(&mut chain).iter().fold(0, |sum, piece| last(sum, piece)));
        }),
        slice(1, move || {
            black_box(black_box(&mut vec).iter().fold(0, |sum, piece| last(sum, piece)));
        }),
    ]
}

/// A view of 4 bytes within one chunk.
fn get_range() -> [Slice; 4] {
    let mut shoal = Buffer::new();
    shoal.append_copy(&BODY[..30]);
    let mut mutable = BytesMut::from(&BODY[..30]);
    let mut chain = VecDeque::from([Bytes::from_static(&BODY[..30])]);
    let mut vec = BODY[..30].to_vec();
    [
        slice(1, move || {
            let buffer = black_box(&mut shoal);
            if let Ok(bytes) = buffer.contiguous(black_box(10), 4) {
                black_box(bytes.as_ptr());
            }
        }),
        slice(1, move || {
            let buffer = black_box(&mut mutable);
            let offset = black_box(10);
            if let Some(bytes) = buffer.get(offset..offset + 4) {
                black_box(bytes.as_ptr());
            }
        }),
        slice(1, move || {
            let buffer = black_box(&mut chain);
            let offset = black_box(10);
            if let Some(bytes) = buffer.front().and_then(|front| front.get(offset..offset + 4)) {
                black_box(bytes.as_ptr());
            }
        }),
        slice(1, move || {
            let buffer = black_box(&mut vec);
            let offset = black_box(10);
            if let Some(bytes) = buffer.get(offset..offset + 4) {
                black_box(bytes.as_ptr());
            }
        }),
    ]
}

/// Create, drop.
fn construct() -> [Slice; 4] {
    [
        slice(1, || {
            black_box(&mut Buffer::new());
        }),
        slice(1, || {
            black_box(&mut bytes_mut());
        }),
        slice(1, || {
            black_box(&mut Bytes::new());
        }),
        slice(1, || {
            black_box(&mut vec());
        }),
    ]
}

/// Clears an empty buffer.
fn reset() -> [Slice; 4] {
    let (mut shoal, mut mutable, mut vec) = (Buffer::new(), bytes_mut(), vec());
    let mut chain = VecDeque::<Bytes>::new();
    [
        slice(1, move || black_box(&mut shoal).clear()),
        slice(1, move || black_box(&mut mutable).clear()),
        slice(1, move || black_box(&mut chain).clear()),
        slice(1, move || black_box(&mut vec).clear()),
    ]
}

/// Create, copy 30 bytes in, put 40 in front, drop.
fn prepend() -> [Slice; 4] {
    [
        slice(1, || {
            let mut buffer = Buffer::new();
            buffer.append_copy(&BODY[..30]);
            buffer.prepend(&BODY[..40]);
            black_box(&mut buffer);
        }),
        slice(1, || {
            let mut body = bytes_mut();
            body.put_slice(&BODY[..30]);
            let mut buffer = bytes_mut();
            buffer.put_slice(&BODY[..40]);
            buffer.put_slice(black_box(&body));
            black_box(&mut buffer);
        }),
        slice(1, || {
            let mut buffer = VecDeque::with_capacity(2);
            buffer.push_back(Bytes::copy_from_slice(&BODY[..30]));
            buffer.push_front(Bytes::copy_from_slice(&BODY[..40]));
            black_box(&mut buffer);
        }),
        slice(1, || {
            let mut buffer = vec();
            buffer.extend_from_slice(&BODY[..30]);
            buffer.splice(..0, BODY[..40].iter().copied());
            black_box(&mut buffer);
        }),
    ]
}

/// Create, a header of 16 bytes, append a body (Shoal copies a short one and refers to a long one), drop.
fn reply(body: &'static [u8]) -> [Slice; 4] {
    let header = [1; 16];
    [
        slice(1, move || {
            let mut buffer = Buffer::new();
            buffer.append_copy(&header);
            buffer.append(Bytes::from_static(body));
            black_box(&mut buffer);
        }),
        slice(1, move || {
            let mut buffer = bytes_mut();
            buffer.put_slice(&header);
            buffer.put_slice(body);
            black_box(&mut buffer);
        }),
        slice(1, move || {
            let mut buffer = VecDeque::with_capacity(2);
            buffer.push_back(Bytes::copy_from_slice(&header));
            buffer.push_back(Bytes::from_static(body));
            black_box(&mut buffer);
        }),
        slice(1, move || {
            let mut buffer = vec();
            buffer.extend_from_slice(&header);
            buffer.extend_from_slice(body);
            black_box(&mut buffer);
        }),
    ]
}
