//! The server between a socket and the store.
//!
//! In the order in which a request passes: [`Server`] (`listen`) accepts connections, within the limits of `admission`.
//! `connection` speaks HTTP on one, over TLS if there is a certificate, and runs its requests. `dispatch` finds the
//! method of a request, after `auth` has admitted it. `call` turns frames into messages. `operations` do the work, one
//! file each. `answer` carries their answers, in pieces and in turn. `flow` bounds the memory of requests in flight.
//! `timing` counts requests and their times. `failure` has the errors of all of them in one place; `wire` has the
//! sizes of HTTP/2 and of gRPC's framing. The rules of the protocol are in `docs/format/grpc.md`.

mod admission;
mod answer;
mod auth;
mod call;
mod connection;
mod convert;
mod dispatch;
mod failure;
mod flow;
mod listen;
mod operations;
mod options;
mod read_cache;
#[cfg(test)]
mod testing;
mod timing;
mod wire;

pub use auth::{Authenticated, Caller, Denied, Gate, Principal};
pub use listen::{ServeError, Server};
pub use operations::report::ReportSource;
pub use options::{ServerLimits, ServerOptions};
pub use shoal_frontend::{
    BadCredentials, Credentials, ListenError, MinRate, Security, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN,
    TOKENS_MAX, TlsPem, Tokens,
};
