//! Settings of the allocator, mimalloc.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};

/// mimalloc's `mi_option_purge_delay`: the milliseconds for which freed memory is kept before it returns to the system.
const PURGE_DELAY: c_int = 15;

// SAFETY: the signature is that of `mimalloc.h`, whose enumeration is an int; mimalloc is linked as the global allocator.
unsafe extern "C" {
    /// Sets an option for the whole process, at any time.
    safe fn mi_option_set(option: c_int, value: c_long);
}

/// Returns freed memory to the system at once. In a process with a small memory limit, the memory that threads keep after they free
/// large values would be most of the total: a server in 128 MiB took 40 MiB more. The cost is some processor time for each large
/// value.
pub(crate) fn keep_nothing() {
    mi_option_set(PURGE_DELAY, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY: as above.
    unsafe extern "C" {
        safe fn mi_option_get(option: c_int) -> c_long;
    }

    #[test]
    fn the_option_has_its_number() {
        // The default of this option, in milliseconds, and of no other one.
        let has_default = |&option: &c_int| mi_option_get(option) == 1000;
        assert_eq!((0..30).filter(has_default).collect::<Vec<_>>(), [PURGE_DELAY]);
        keep_nothing();
        assert_eq!(mi_option_get(PURGE_DELAY), 0);
    }
}
