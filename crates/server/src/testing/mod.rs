//! The helpers that this crate's unit tests share.

pub(crate) mod calls;
pub(crate) mod frames;
mod malformed_tests;
mod store;

pub(crate) use self::store::store;
