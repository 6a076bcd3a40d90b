//! The allocators that the store's own is measured against: the seed's four and the tree that the seed compares with.
//!
//! They are complete, without persistence or moving, and stay off the live path. If the seed's text leaves the choice
//! open, the faster way is taken: a reference that loses should not lose for our clumsiness.

mod bitmap;
mod client_server;
mod grouped;
mod pooled;
#[cfg(test)]
mod tests;
mod tree;
mod words;

pub(crate) use bitmap::Bitmap;
pub(crate) use client_server::{CachedClient, Server};
pub(crate) use grouped::Grouped;
pub(crate) use pooled::{Pooled, Record};
pub(crate) use tree::Tree;
