//! Copies bytes past the processor's cache.
#![allow(unsafe_code)]

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Copies `from` to `to`, whose memory is next read by a device and not by this processor: the lines of `to` are neither read before they
/// are written, nor do they displace others from the cache.
///
/// # Panics
/// If the lengths differ.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub fn copy_past_cache(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    assert_eq!(to.len(), from.len(), "as many bytes as there is room for");
    let head = to.as_ptr().align_offset(LINE_BYTES).min(to.len());
    let (to_head, to) = to.split_at_mut(head);
    let (from_head, from) = from.split_at(head);
    to_head.copy_from_slice(from_head);
    let (mut to, mut from) = (to.chunks_exact_mut(LINE_BYTES), from.chunks_exact(LINE_BYTES));
    for (to, from) in to.by_ref().zip(from.by_ref()) {
        let (to, from) = (to.as_mut_ptr().cast::<__m128i>(), from.as_ptr().cast::<__m128i>());
        // SAFETY: both chunks have four times 16 bytes, and `to` is aligned to 64. SSE2 is part of x86-64.
        unsafe {
            let line = [
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            ];
            for (at, part) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(at), part);
            }
        }
    }
    to.into_remainder().copy_from_slice(from.remainder());
    // SAFETY: SSE is part of x86-64. The written bytes are visible to other threads before later writes of this thread.
    unsafe { _mm_sfence() };
}

/// Copies `from` to `to`.
///
/// # Panics
/// If the lengths differ.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub fn copy_past_cache(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_all_bytes_at_any_alignment() {
        let from: Vec<u8> = (0..1_000_u32).map(|at| (at * 7 % 251) as u8).collect();
        for first in 0..70 {
            for count in [0, 1, 15, 63, 64, 65, 200, 900] {
                let mut to = vec![0xff; 1_000];
                copy_past_cache(&mut to[first..first + count], &from[..count]);
                assert_eq!(to[first..first + count], from[..count], "{first}, {count}");
                let is_left = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0xff);
                assert!(is_left(&to[..first]) && is_left(&to[first + count..]), "{first}, {count}");
            }
        }
    }
}
