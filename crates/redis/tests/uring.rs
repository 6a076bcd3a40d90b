//! The face through real connections, over an io_uring where the kernel has one: all of `serve`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use shoal_redis::Sockets;

/// How the servers of these tests reach the network.
pub(crate) const SOCKETS: Sockets = Sockets::Uring;

#[path = "serve/clients.rs"]
mod clients;
#[path = "serve/commands.rs"]
mod commands;
#[path = "serve/expiring.rs"]
mod expiring;
#[path = "serve/limits.rs"]
mod limits;
#[path = "serve/once.rs"]
mod once;
#[path = "serve/pipelines.rs"]
mod pipelines;
#[path = "serve/support.rs"]
mod support;
