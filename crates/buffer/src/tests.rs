//! The buffer against a vector: every operation in any order, and the cases that have a story.

use std::borrow::Cow;

use bytes::{Buf, BufMut, Bytes};
use proptest::prelude::*;

use crate::{BUILT_IN_BYTES, Buffer, COPY_BYTES_MAX, OutOfRange, PREPEND_BYTES};

/// Fewer cases under Miri, which is slow.
pub(crate) const fn cases(count: u32) -> u32 {
    if cfg!(miri) { count / 200 } else { count }
}

const ROOM: usize = BUILT_IN_BYTES - PREPEND_BYTES;

#[test]
fn short_message_is_one_inline_chunk() {
    let mut buffer = Buffer::new();
    assert_eq!(buffer.room(), ROOM);
    buffer.append_copy(b"head");
    buffer.alloc(4).copy_from_slice(b"tail");
    buffer.prepend(b"frame ");
    let moved = Box::new(buffer);
    assert_eq!(moved.as_contiguous(), Some(&b"frame headtail"[..]));
    assert_eq!(moved.shape(), "tail(14)");
    moved.check();
}

#[test]
fn internal_bytes_continue_after_external_chunk() {
    let mut buffer = Buffer::new();
    buffer.append_copy(b"header");
    buffer.append(Bytes::from(vec![5; COPY_BYTES_MAX + 1]));
    buffer.append_copy(b"\r\n");
    assert_eq!(buffer.shape(), "built-in(6) shared(513) tail(2)");
    assert_eq!(buffer.room(), ROOM - 8);
    assert_eq!(buffer.clone().shape(), buffer.shape());
    buffer.truncate_back(2 + 513);
    assert_eq!((buffer.shape().as_str(), buffer.room()), ("built-in(6)", ROOM - 6));
    buffer.truncate_back(1);
    assert_eq!((buffer.shape().as_str(), buffer.room()), ("tail(5)", ROOM - 5));
    buffer.check();
}

#[test]
fn an_allocation_is_shared_by_the_chunks_in_it() {
    let mut buffer = Buffer::new();
    buffer.append_copy(&[1; ROOM]);
    for _ in 0..3 {
        buffer.append_copy(&[2; 10]);
        buffer.append_static(&[3; 4]);
    }
    assert_eq!(buffer.room(), 2048 - 30);
    assert_eq!(buffer.shape(), "built-in(900) owned(10) static(4) owned(10) static(4) owned(10) static(4)");
    buffer.check();
}

#[test]
fn appending_refers_to_long_chunks_and_copies_short_ones() {
    let long = Bytes::from(vec![5; COPY_BYTES_MAX + 1]);
    let mut buffer = Buffer::new();
    buffer.append(long.clone());
    buffer.append(long.slice(..8));
    assert_eq!(buffer.shape(), "shared(513) tail(8)");
    assert_eq!(buffer.first_chunk().as_ptr(), long.as_ptr());

    let part = buffer.range(500, 20).unwrap();
    assert_eq!(part.shape(), "shared(13) tail(7)");
    assert_eq!(part.first_chunk().as_ptr(), long[500..].as_ptr());
    assert!(matches!(buffer.contiguous(1, 512).unwrap(), Cow::Borrowed(_)));
    assert!(matches!(buffer.contiguous(514, 2).unwrap(), Cow::Borrowed(_)));
    assert_eq!(buffer.contiguous(510, 6).unwrap(), Cow::<[u8]>::Owned(vec![5; 6]));
    assert_eq!((buffer.peek(512), buffer.peek(515).len(), buffer.peek(521)), (&[5][..], 6, &[][..]));
    assert_eq!(buffer.peek(usize::MAX), &[] as &[u8]);
}

#[test]
fn a_long_allocation_changes_its_buffer_without_a_copy() {
    let (mut buffer, mut other) = (Buffer::new(), Buffer::new());
    other.append_copy(&[4; 3000]);
    let at = other.first_chunk().as_ptr();
    buffer.append_copy(b"in front");
    buffer.append_buffer(other);
    assert_eq!(buffer.shape(), "built-in(8) owned(3000)");
    assert_eq!(buffer.peek(8).as_ptr(), at);
    buffer.check();
}

#[test]
fn truncation_releases_external_memory() {
    struct Owner(std::sync::Arc<[u8; 3]>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0[..]
        }
    }
    let count = std::sync::Arc::new([1, 2, 3]);
    let mut buffer = Buffer::new();
    buffer.append_external(Bytes::from_owner(Owner(count.clone())));
    buffer.append_copy(b"tail");
    buffer.truncate_front(2);
    assert_eq!(std::sync::Arc::strong_count(&count), 2);
    buffer.truncate_front(1);
    assert_eq!(std::sync::Arc::strong_count(&count), 1);
    assert_eq!(buffer.to_vec(), b"tail");
    buffer.append_external(Bytes::from_owner(Owner(count.clone())));
    buffer.truncate_back(3);
    assert_eq!(std::sync::Arc::strong_count(&count), 1);
}

#[test]
fn owned_buffer_pins_no_external_memory() {
    let shared = Bytes::from(vec![1; 600]);
    let mut buffer = Buffer::new();
    buffer.own();
    buffer.append_copy(b"head");
    buffer.append_external(shared.clone());
    buffer.append_static(b"static");
    buffer.append_external(shared.slice(..100));
    buffer.append_copy(b"tail");
    buffer.truncate_front(14);
    let bytes = buffer.to_vec();
    assert_eq!(buffer.external_lengths().collect::<Vec<_>>(), [590, 100]);
    buffer.own();
    assert_eq!((buffer.external_lengths().count(), buffer.to_vec()), (0, bytes));
    assert!(shared.is_unique());
    buffer.append_copy(b"more");
    assert_eq!(buffer.len(), 590 + 6 + 100 + 4 + 4);
}

#[test]
fn writing_into_external_memory_copies_it_first() {
    let shared = Bytes::from(vec![1; 600]);
    let mut buffer = Buffer::from(shared.clone());
    buffer.append_static(b"static");
    buffer.append_copy(b"built in");
    buffer.append_static(b"untouched");
    buffer.copy_in(599, b"ABCDEFGHI").unwrap();
    assert_eq!(&shared[..], &[1; 600]);
    assert_eq!(&buffer.to_vec()[598..], b"\x01ABCDEFGHIilt inuntouched");
    assert_eq!(buffer.shape(), "owned(600) owned(6) built-in(8) static(9)");
    assert!(buffer.copy_in(buffer.len(), b"x").is_err());
    assert!(buffer.copy_in(usize::MAX, b"x").is_err());
    buffer.copy_in(buffer.len(), b"").unwrap();
}

#[test]
fn ranges_that_overflow_are_refused() {
    // RAMCloud's Buffer adds offset and length unchecked: these crash it or read foreign memory.
    let mut buffer = Buffer::from(vec![0; 10]);
    assert!(buffer.contiguous(2, usize::MAX).is_err());
    assert!(buffer.contiguous(2, u32::MAX as usize).is_err());
    assert!(buffer.range(3, usize::MAX - 1).is_err());
    assert_eq!(buffer.contiguous(usize::MAX, 0), Err(OutOfRange { offset: usize::MAX, count: 0, len: 10 }));
    assert_eq!(buffer.contiguous(10, 0).unwrap().len(), 0);
    let mut target = [9; 4];
    assert!(buffer.copy_out(7, &mut target).is_err());
    assert_eq!(target, [9; 4]);
    buffer.truncate_back(usize::MAX);
    assert!(buffer.is_empty());
    buffer.truncate_front(usize::MAX);
    assert_eq!(buffer.contiguous(0, 0).unwrap(), Cow::Borrowed(&[] as &[u8]));
    assert!(buffer.contiguous(0, 1).is_err() && buffer.contiguous(usize::MAX, usize::MAX).is_err());
    assert_eq!((buffer.copy_out(0, &mut []), buffer.peek(0)), (Ok(()), &[] as &[u8]));
    assert!(buffer.into_chunks().next().is_none());
}

#[test]
fn many_small_appends_take_few_allocations() {
    let mut buffer = Buffer::new();
    let times = if cfg!(miri) { 2_000 } else { 100_000 };
    for _ in 0..times {
        buffer.append_copy(&[3; 10]);
    }
    assert_eq!(buffer.len(), times * 10);
    assert!(buffer.chunk_count() < 24, "{buffer:?}");
}

#[test]
fn repeatedly_drained_buffer_does_not_grow() {
    let mut buffer = Buffer::new();
    for turn in 0..200_usize {
        let count = 1 + turn * 7 % 300;
        buffer.append_copy(&vec![turn as u8; count]);
        assert_eq!(buffer.chunk_count(), 1);
        buffer.truncate_front(count - 1);
        buffer.truncate_back(1);
        assert_eq!(buffer.room(), ROOM);
    }
}

#[test]
fn never_empty_queue_stays_bounded() {
    let mut buffer = Buffer::new();
    for turn in 0..500_usize {
        buffer.append_static(&STATIC[..3]);
        buffer.append_external(Bytes::from(vec![turn as u8; 2]));
        if turn > 10 {
            buffer.truncate_front(3);
            assert_eq!(buffer.copy_to_bytes(2), [(turn - 11) as u8; 2][..]);
        }
        buffer.check();
    }
    assert_eq!(buffer.chunk_count(), 22);
}

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<u8>),
    AppendCopy(Vec<u8>),
    AppendExternal(Vec<u8>),
    AppendStatic(usize),
    AppendBuffer(Vec<(u8, Vec<u8>)>),
    Alloc(Vec<u8>),
    Receive(Vec<u8>),
    Reserve(usize),
    Prepend(Vec<u8>),
    CopyIn(usize, Vec<u8>),
    TruncateFront(usize),
    TruncateBack(usize),
    Take(usize),
    Range(usize, usize),
    Clone,
    Move,
    Clear,
}

static STATIC: [u8; 700] = [0x5a; 700];

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..40),
        1 => (any::<u8>(), 0..1500_usize).prop_map(|(byte, count)| vec![byte; count]),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => bytes().prop_map(Step::Append),
        4 => bytes().prop_map(Step::AppendCopy),
        3 => bytes().prop_map(Step::AppendExternal),
        1 => (0..STATIC.len()).prop_map(Step::AppendStatic),
        2 => proptest::collection::vec((0..3_u8, bytes()), 0..4).prop_map(Step::AppendBuffer),
        2 => bytes().prop_map(Step::Alloc),
        2 => bytes().prop_map(Step::Receive),
        1 => (0..3000_usize).prop_map(Step::Reserve),
        4 => bytes().prop_map(Step::Prepend),
        4 => (0..900_usize, bytes()).prop_map(|(offset, bytes)| Step::CopyIn(offset, bytes)),
        3 => (0..300_usize).prop_map(Step::TruncateFront),
        3 => (0..300_usize).prop_map(Step::TruncateBack),
        2 => (0..300_usize).prop_map(Step::Take),
        1 => (0..400_usize, 0..2000_usize).prop_map(|(offset, count)| Step::Range(offset, count)),
        1 => Just(Step::Clone),
        1 => Just(Step::Move),
        1 => Just(Step::Clear),
    ]
}

fn buffer_of(pieces: Vec<(u8, Vec<u8>)>) -> Buffer {
    let mut buffer = Buffer::new();
    for (how, piece) in pieces {
        match how {
            0 => buffer.append_external(piece.into()),
            1 => buffer.append_copy(&piece),
            _ => buffer.append(piece.into()),
        }
    }
    buffer
}

fn apply(step: Step, buffer: &mut Buffer, model: &mut Vec<u8>) {
    match step {
        Step::Append(bytes) => {
            model.extend_from_slice(&bytes);
            buffer.append(bytes.into());
        }
        Step::AppendCopy(bytes) => {
            model.extend_from_slice(&bytes);
            buffer.append_copy(&bytes);
        }
        Step::AppendExternal(bytes) => {
            model.extend_from_slice(&bytes);
            buffer.append_external(bytes.into());
        }
        Step::AppendStatic(count) => {
            model.extend_from_slice(&STATIC[..count]);
            buffer.append_static(&STATIC[..count]);
        }
        Step::AppendBuffer(pieces) => {
            pieces.iter().for_each(|(_, piece)| model.extend_from_slice(piece));
            buffer.append_buffer(buffer_of(pieces));
        }
        Step::Alloc(bytes) => {
            model.extend_from_slice(&bytes);
            let room = buffer.alloc(bytes.len());
            assert!(room.iter().all(|&byte| byte == 0));
            room.copy_from_slice(&bytes);
        }
        Step::Receive(bytes) => {
            model.extend_from_slice(&bytes);
            buffer.put(&bytes[..]);
        }
        Step::Reserve(count) => {
            buffer.reserve(count);
            assert!(buffer.room() >= count);
        }
        Step::Prepend(bytes) => {
            model.splice(..0, bytes.iter().copied());
            buffer.prepend(&bytes);
        }
        Step::CopyIn(offset, bytes) => match model.get_mut(offset..offset + bytes.len()) {
            Some(part) => {
                part.copy_from_slice(&bytes);
                buffer.copy_in(offset, &bytes).unwrap();
            }
            None => assert!(buffer.copy_in(offset, &bytes).is_err()),
        },
        Step::TruncateFront(count) => {
            model.drain(..count.min(model.len()));
            buffer.truncate_front(count);
        }
        Step::TruncateBack(count) => {
            model.truncate(model.len().saturating_sub(count));
            buffer.truncate_back(count);
        }
        Step::Take(count) => {
            let count = count.min(model.len());
            let taken: Vec<u8> = model.drain(..count).collect();
            assert_eq!(buffer.copy_to_bytes(count), taken);
        }
        Step::Range(offset, count) => match model.get(offset..offset + count) {
            Some(part) => {
                *model = part.to_vec();
                *buffer = buffer.range(offset, count).unwrap();
            }
            None => assert!(buffer.range(offset, count).is_err()),
        },
        Step::Clone => *buffer = buffer.clone(),
        Step::Move => {
            let boxed = Box::new(std::mem::take(buffer));
            *buffer = *boxed;
        }
        Step::Clear => {
            model.clear();
            buffer.clear();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(800), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_vector(steps in proptest::collection::vec(step(), 0..30), offset in 0..200_usize, count in 0..900_usize) {
        let (mut buffer, mut model) = (Buffer::new(), Vec::new());
        for step in steps {
            apply(step, &mut buffer, &mut model);
            buffer.check();
            prop_assert_eq!(buffer.to_vec(), &model[..]);
        }
        match model.get(offset..offset + count) {
            Some(part) => {
                let mut target = vec![0; count];
                buffer.copy_out(offset, &mut target).unwrap();
                prop_assert_eq!(&target, part);
                let whole = buffer.contiguous(offset, count).unwrap();
                prop_assert_eq!(&*whole, part);
            }
            None => prop_assert!(buffer.contiguous(offset, count).is_err()),
        }
        let rest = model.get(offset..).unwrap_or_default();
        prop_assert!(rest.starts_with(buffer.peek(offset)));
        prop_assert_eq!(rest.is_empty(), buffer.peek(offset).is_empty());
        prop_assert_eq!(buffer.as_contiguous().is_some(), buffer.chunk_count() < 2);
        let slices: Vec<u8> = buffer.io_slices().flat_map(|slice| slice.to_vec()).collect();
        prop_assert_eq!(&slices, &model);
        let clone = buffer.clone();
        let owned: Vec<u8> = buffer.into_chunks().flatten().collect();
        prop_assert_eq!(&owned, &model);
        prop_assert_eq!(clone.to_vec(), model);
    }
}
