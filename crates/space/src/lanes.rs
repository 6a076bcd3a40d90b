//! All runs that lie within a group, compared at once: a bit for each. Never fewer of them, because a wrong guess at the end of
//! a short loop costs more than the whole loop. What lies behind the last run counts, too: callers know how many there are.
//!
//! With the vector instructions that every x86-64 processor has; the compiler does not find them by itself.
#![allow(unsafe_code)]

/// Runs that a group stores without memory of its own.
pub(crate) const RUNS_INLINE: usize = 13;

/// Those whose length minus one is `wanted`.
#[inline]
pub(crate) fn of_length(runs: &[u32; RUNS_INLINE], wanted: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: SSE2 is part of every x86-64 processor.
        unsafe { vector::of_length(runs, wanted) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        plain::of_length(runs, wanted)
    }
}

/// Those that start behind `start`.
#[inline]
pub(crate) fn behind(runs: &[u32; RUNS_INLINE], start: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: SSE2 is part of every x86-64 processor.
        unsafe { vector::behind(runs, start) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        plain::behind(runs, start)
    }
}

#[cfg(target_arch = "x86_64")]
mod vector {
    use std::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_cmpeq_epi32, _mm_cmpgt_epi32, _mm_movemask_epi8, _mm_packs_epi16,
        _mm_packs_epi32, _mm_set_epi32, _mm_set1_epi32, _mm_srli_epi32,
    };

    use super::RUNS_INLINE;

    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn of_length(runs: &[u32; RUNS_INLINE], wanted: u32) -> u32 {
        let (wanted, low) = (_mm_set1_epi32(wanted as i32), _mm_set1_epi32(0xFFFF));
        let fours = fours(runs);
        bits(
            _mm_cmpeq_epi32(_mm_and_si128(fours[0], low), wanted),
            _mm_cmpeq_epi32(_mm_and_si128(fours[1], low), wanted),
            _mm_cmpeq_epi32(_mm_and_si128(fours[2], low), wanted),
            _mm_cmpeq_epi32(_mm_and_si128(fours[3], low), wanted),
        )
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn behind(runs: &[u32; RUNS_INLINE], start: u32) -> u32 {
        let start = _mm_set1_epi32(start as i32);
        let fours = fours(runs);
        bits(
            _mm_cmpgt_epi32(_mm_srli_epi32::<16>(fours[0]), start),
            _mm_cmpgt_epi32(_mm_srli_epi32::<16>(fours[1]), start),
            _mm_cmpgt_epi32(_mm_srli_epi32::<16>(fours[2]), start),
            _mm_cmpgt_epi32(_mm_srli_epi32::<16>(fours[3]), start),
        )
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn fours(runs: &[u32; RUNS_INLINE]) -> [__m128i; 4] {
        let of = |lane: usize| runs[lane] as i32;
        [
            _mm_set_epi32(of(3), of(2), of(1), of(0)),
            _mm_set_epi32(of(7), of(6), of(5), of(4)),
            _mm_set_epi32(of(11), of(10), of(9), of(8)),
            _mm_set_epi32(0, 0, 0, of(12)),
        ]
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn bits(first: __m128i, second: __m128i, third: __m128i, fourth: __m128i) -> u32 {
        let halves = _mm_packs_epi16(_mm_packs_epi32(first, second), _mm_packs_epi32(third, fourth));
        _mm_movemask_epi8(halves) as u32 & ((1 << RUNS_INLINE) - 1)
    }
}

/// The same without vector instructions.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod plain {
    use super::RUNS_INLINE;

    pub(super) fn of_length(runs: &[u32; RUNS_INLINE], wanted: u32) -> u32 {
        bits(runs, |packed| packed & 0xFFFF == wanted)
    }

    pub(super) fn behind(runs: &[u32; RUNS_INLINE], start: u32) -> u32 {
        bits(runs, |packed| packed >> 16 > start)
    }

    fn bits(runs: &[u32; RUNS_INLINE], is_wanted: impl Fn(u32) -> bool) -> u32 {
        let bits = runs.iter().enumerate().map(|(lane, &packed)| u32::from(is_wanted(packed)) << lane);
        bits.fold(0, |all, bit| all | bit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn both_ways_find_the_same(runs in prop::array::uniform13(any::<u32>()), lane in 0..RUNS_INLINE, other in 0_u32..1 << 16) {
            for length in [runs[lane] & 0xFFFF, other] {
                prop_assert_eq!(of_length(&runs, length), plain::of_length(&runs, length));
            }
            for start in [runs[lane] >> 16, other, 0, 0xFFFF] {
                prop_assert_eq!(behind(&runs, start), plain::behind(&runs, start));
            }
        }
    }
}
