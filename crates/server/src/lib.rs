//! The gRPC frontend: the layer between a socket with HTTP/2 and the store.
//!
//! The files that a request passes, in this order; `docs/life-of-a-get.md` has the functions, too:
//!
//! 1. `listen.rs`: [`Server`] accepts connections, within the limits of `admission`;
//! 2. `connection/mod.rs` speaks HTTP on one, over TLS if there is a certificate, and `connection/tasks.rs` runs its requests;
//! 3. `dispatch/mod.rs` has the table of methods, behind `auth`, which admits the caller;
//! 4. `call/unary.rs` or `call/streams.rs`: from frames to a message, and from an answer to a response;
//! 5. `operations/`: a file for each method, with its calls of the store;
//! 6. `answer/body.rs` hands the answer to HTTP/2, in pieces and in turn (`flow/sending.rs`).
//!
//! `flow` bounds the memory of requests in flight, `timing` counts requests and their times, `failure` has all errors, and `wire` the sizes
//! of HTTP/2 and of gRPC's framing. The rules of the protocol are in `docs/format/grpc.md`.

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
