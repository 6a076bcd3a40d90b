//! A hint to the processor that a cache line will be read soon.
#![allow(unsafe_code)]

/// Prefetches the cache line with the start of `place`. Only a hint.
#[inline(always)]
pub(crate) fn soon<T: ?Sized>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction is part of every x86-64 processor, never faults, and the address is that of a
        // live reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
