//! The message buffer: a logically linear byte array made of chunks (seeds 000 and 002).
//!
//! *Internal* chunks hold bytes that were copied in, the first few in storage that is built into the buffer, so that
//! a short message needs no allocation. *External* chunks refer to memory that somebody else owns (a pool frame, a
//! received message) and release it by dropping. A value travels from the pool to the socket as external chunks: it
//! is never copied.
//!
//! [`Buffer`] is the buffer itself, [`Reader`] gives it to code that consumes a [`bytes::Buf`].

mod buffer;
mod reader;

pub use buffer::{BUILT_IN_BYTES, Buffer, COPY_BYTES_MAX, OutOfRange, PREPEND_BYTES};
pub use reader::Reader;
