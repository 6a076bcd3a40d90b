//! The face through real connections.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use shoal_redis::Sockets;

/// How the servers of these tests reach the network; `tests/uring.rs` is the same suite over an io_uring.
pub(crate) const SOCKETS: Sockets = Sockets::Epoll;

mod clients;
mod commands;
mod expiring;
mod limits;
mod once;
mod pipelines;
mod support;
mod values;
