//! The parts that the whole engine shares: keys, objects, options, errors, and tools for tasks that wait.

pub(crate) mod counters;
pub(crate) mod damaged_range;
pub(crate) mod error;
pub(crate) mod event;
#[cfg(test)]
mod event_tests;
pub(crate) mod key;
pub(crate) mod object;
pub(crate) mod options;
pub(crate) mod problem;
pub(crate) mod units;
/// Locks under one name: the models of `testing/models.rs` replace them.
pub(crate) mod sync {
    pub(crate) use shoal_base::sync::Mutex;
}
