//! The writer of a tree.

pub(crate) mod apply;
pub(crate) mod builder;
pub(crate) mod bulk;
pub(crate) mod levels;
