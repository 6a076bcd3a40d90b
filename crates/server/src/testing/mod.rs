//! The helpers that this crate's unit tests share.

pub(crate) mod calls;
pub(crate) mod frames;
mod malformed_tests;
mod search_tests;

/// An empty store in memory, of 512 MiB.
pub(crate) fn store() -> shoal_engine::Store {
    shoal_storekit::StoreKit::new(128 << 10).with_cache(64 << 20).in_memory()
}
