//! The message buffer: a logically linear byte array made of chunks, after RAMCloud's Buffer (`docs/sources.md`).
//!
//! *Internal* chunks hold bytes that were copied in, the first thousand in storage that is built into the buffer, so that a short message
//! needs no allocation. *External* chunks refer to memory of another owner (a pool frame, a received message, a mapped file: any memory
//! that [`bytes::Bytes`] can own) and release it when they are dropped. A value travels from the pool to the socket as external chunks: it
//! is never copied.
//!
//! `buffer` is the buffer's memory and its critical paths, with all of the crate's `unsafe`; `range` builds on them; `body` passes a buffer
//! to code that consumes a [`bytes::Buf`] or an [`http_body::Body`].

mod body;
mod buffer;
mod range;
#[cfg(test)]
mod tests;

pub use buffer::{BUILT_IN_BYTES, Buffer, Chunks, PREPEND_BYTES};
pub use range::{COPY_BYTES_MAX, OutOfRange};
