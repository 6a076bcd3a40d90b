//! The gRPC frontend: the layer between HTTP/2 and the store.
//!
//! The files that a request passes, in this order; `docs/life-of-a-get.md` has the functions, too:
//!
//! 1. `listen.rs`: [`Server`] listens; `shoal-http` accepts connections, speaks HTTP on them and runs their requests;
//! 2. `dispatch/mod.rs` has the table of methods; `auth` admits the caller first;
//! 3. `call/unary.rs` or `call/streams.rs`: from frames to a message, and from an answer to a response;
//! 4. `operations/`: a file for each method, with its calls of the store;
//! 5. `answer/body.rs` hands the answer to HTTP/2, in pieces and in turn.
//!
//! `timing` names the operations for the metrics, `failure` has all errors, and `wire` gRPC's framing. The rules of the protocol are in
//! `docs/format/grpc.md`.

mod answer;
mod auth;
mod call;
mod convert;
mod dispatch;
mod failure;
mod listen;
mod operations;
mod options;
#[cfg(test)]
mod testing;
mod timing;
mod wire;

pub use auth::{Authenticated, Caller, Denied, Gate};
pub use listen::{ServeError, Server};
pub use operations::backup::{BackupRefused, BackupSending, Backups};
pub use operations::report::ReportSource;
pub use options::ServerOptions;
pub use shoal_frontend::access::{
    KeyEntry, KeyFile, Keys, Principal, PrincipalId, ROTATION_OVERLAP, seconds_of,
};
pub use shoal_frontend::{
    BadCredentials, Credentials, ListenError, MinRate, Security, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN,
    TOKENS_MAX, TlsPem, Tokens,
};
pub use shoal_http::ServerLimits;
