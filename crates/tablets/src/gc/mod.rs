//! Garbage collection of values: packed runs with few live bytes are rewritten, and groups of blocks are emptied.
//!
//! Reading order: [`liveness`] (the live values of packed runs), [`rewrite`] (the choice of runs that an apply rewrites),
//! [`relocate`] (an apply that empties whole groups).

pub mod liveness;
pub mod relocate;
pub mod rewrite;
