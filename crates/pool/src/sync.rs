//! The atomics of the pin word and of the free list. The tests compile both a second time with the atomics of a model
//! checker in this place ([`crate::tests`], `models`).

pub(crate) use shoal_base::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
