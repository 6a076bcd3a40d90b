//! From the head of a request to its row in the table of operations.

pub mod copy;
pub mod error;
pub mod headers;
pub mod id;
pub mod list;
pub mod operation;
pub mod query;
pub mod target;
pub mod words;
