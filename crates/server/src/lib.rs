//! The server: what stands between a socket and the store.
//!
//! In the order in which a request passes: [`Server`] (`listen`) accepts connections, as `admission` says. `connection` speaks
//! HTTP on one, over TLS where there is a certificate, and runs its requests. `dispatch` finds the method of a request, after
//! `auth` has admitted it. `call` turns frames into messages. `operations` do the work, a file each. `answer` carries what they
//! give, in pieces and in turn. `flow` bounds the memory of what is under way. `timing` counts
//! requests and their times. `failure` says what went wrong, in one place for
//! all of them; `wire` has the sizes of HTTP/2 and of gRPC's framing. The rules of the protocol are in `docs/format/grpc.md`.

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
pub use options::{Limits, ServerOptions};
pub use shoal_frontend::{
    BadCredentials, Credentials, ListenError, MinRate, Security, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN,
    TOKENS_MAX, TlsPem, Tokens,
};
