//! The server: what stands between a socket and the store.
//!
//! In reading order, which is the order in which a request passes: [`Server`] accepts connections, as `admission` says; `connection` speaks
//! HTTP on one and, with `tasks`, runs its requests, over TLS where `security` has a certificate; `dispatch` finds the route of a request, after `auth` has
//! admitted it; `route` turns frames into messages, or `unary` where the value must not be copied; one file a verb does
//! the work; `failure` says what went wrong, in one place for all of them, and `body` carries the answer. `web` and
//! `decode` speak to browsers and take off compression, which `pack` puts on. `flow` bounds the memory of what is under way, `frames` and
//! `patience` the time that a slow client may take. The rules of the protocol are in `docs/format/grpc.md`.

mod admission;
mod listen;
mod moving;
mod options;

mod connection;
mod cork;
mod decode;
mod dispatch;
mod frames;
mod messages;
mod route;
mod standard;
mod tasks;
mod unary;
mod web;

mod auth;
mod expiry;
mod security;

mod delete;
mod free_space;
mod get;
mod head;
mod key_value;
mod list;
mod multi_delete;
mod multi_get;
mod multi_put;
mod near;
mod operations;
mod put;
mod put_together;
mod stat;
mod stream;

mod asked;
mod assembly;
mod body;
mod convert;
mod failure;
mod flow;
mod line;
mod pack;
mod patience;
mod sending;

pub use auth::{Authenticated, Caller, Denied, Gate, Principal};
pub use listen::{ServeError, Server};
pub use options::{Limits, ServerOptions};
pub use security::{
    BadCredentials, Credentials, Security, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, TOKENS_MAX, TlsPem, Tokens,
};

#[cfg(test)]
mod malformed;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod testing_calls;
#[cfg(test)]
mod testing_frames;
