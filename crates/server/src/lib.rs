//! The server: what stands between a socket and the store.
//!
//! In reading order, which is the order in which a request passes: [`Server`] accepts connections; `connection` speaks
//! HTTP/2 on one; `dispatch` finds the route of a request, after `auth` has admitted it; `route` turns frames into
//! messages; one file a verb does the work; `failure` says what went wrong, in one place for all of them. `flow` bounds
//! the memory of what is under way. The rules of the protocol are in `docs/format/grpc.md`.

mod listen;
mod moving;
mod options;

mod connection;
mod dispatch;
mod route;
mod standard;

mod auth;

mod delete;
mod free_space;
mod get;
mod head;
mod list;
mod multi;
mod operations;
mod put;
mod stat;
mod stream;

mod convert;
mod failure;
mod flow;

pub use auth::{Authenticated, Caller, Denied, Gate, Principal};
pub use listen::{ServeError, Server};
pub use options::{Limits, ServerOptions};

#[cfg(test)]
mod testing;
