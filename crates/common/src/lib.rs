//! The vocabulary of the store, which the tree and the engine share: keys, objects, options, errors and problems, the
//! units of values in the pool, tools for tasks that wait, and the injected bugs of the laboratory.
//!
//! The crate does no I/O. Users find the public part re-exported by `shoal-engine`.

pub mod bucket;
pub mod damaged_range;
pub mod error;
pub mod event;
#[cfg(test)]
mod event_tests;
pub mod hidden_key;
pub mod injected_bug;
pub mod key;
pub mod leaf_entry;
pub mod object;
pub mod options;
pub mod problem;
pub mod units;
pub mod upload;

/// Locks, atomics and sleeping threads under one name: the engine's models replace them.
mod sync {
    pub(crate) use std::thread;

    pub(crate) use shoal_base::sync::{Mutex, atomic};
}
