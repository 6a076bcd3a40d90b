//! The same verbs over the Redis protocol, the store's low-latency face: pipelined, and sent to the server that has the key.
//!
//! `wire` has commands and replies as bytes, `session` one connection that many callers share, `finder` the cached map from hash
//! slots to sessions, `client` the verbs. Nothing here knows gRPC.

mod client;
mod finder;
mod session;
mod wire;

pub use client::{RespClient, RespOptions};
