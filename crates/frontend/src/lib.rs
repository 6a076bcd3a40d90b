//! The work of every frontend before a request reaches the store, in whatever protocol.
//!
//! [`listen_on_all`] takes the addresses of a name, and refuses one that other machines reach where callers prove nothing. [`Admission`] bounds
//! the connections, and lets one with credentials in before those without. [`Security`] holds the credentials in force, with the [`Rights`] of
//! each token, and `certificate` reads what a peer's certificate says. [`MinRate`] bounds how slowly a peer may send the rest of a request.
//!
//! Nothing here knows the store, or runs a task.

mod admission;
mod certificate;
mod credentials;
mod listen;
mod min_rate;
mod rights;

pub use admission::{Admission, Admitted, Connection};
pub use certificate::{name_of, rest_of_life};
pub use credentials::{
    BadCredentials, Credentials, Security, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, TOKENS_MAX, TlsPem, Tokens,
    is_same,
};
pub use listen::{BACKLOG, ListenError, Listeners, listen, listen_on_all};
pub use min_rate::{MinRate, Received, TooSlow};
pub use rights::{BUCKETS_OF_TOKEN_MAX, NotAllowed, Rights};
