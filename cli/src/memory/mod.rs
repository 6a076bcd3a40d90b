//! Memory: the limit of the process, its division among the parts of a server, and the allocator.

pub(crate) mod allocator;
pub(crate) mod budget;
pub(crate) mod check;
pub(crate) mod limit;
