//! The face through real connections.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use shoal_redis::Sockets;

/// How the servers of these tests reach the network; `tests/uring.rs` is the same suite over an io_uring.
pub(crate) const SOCKETS: Sockets = Sockets::Epoll;

mod admission;
mod backlog;
mod bits;
mod clients;
mod commands;
mod damaged;
mod expiring;
mod introspection;
mod limits;
mod once;
mod pipelines;
mod support;
mod tls;
mod transactions;
mod values;
