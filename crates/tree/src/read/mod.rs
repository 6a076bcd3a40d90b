//! Readers of a tree.

pub(crate) mod cursor;
pub(crate) mod leaf_finder;
pub(crate) mod lookup;
pub(crate) mod walk;
