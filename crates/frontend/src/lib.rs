//! The work of every frontend before a request reaches the store, in any protocol.
//!
//! [`listen_on_all`] takes the addresses of a name, and refuses an address that other machines reach if callers need not
//! authenticate. [`Admission`] bounds the connections, and prefers those with credentials. [`Security`] holds the current
//! credentials, and [`access`] decides what their holders may do. `certificate` reads the name and validity in a peer's certificate.
//! [`ArchiveLink`] is the server's archive.
//! [`MinRate`] is the minimum rate at which a peer sends the rest of a request.
//!
//! Nothing here knows the store, or runs a task.

pub mod access;
mod admission;
mod archive;
mod certificate;
mod credentials;
mod listen;
mod min_rate;

pub use admission::{Admission, Admitted, Connection};
pub use archive::{ArchiveFrontier, ArchiveLink};
pub use certificate::{name_of, rest_of_life};
pub use credentials::{
    BadCredentials, Credentials, Security, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, TOKENS_MAX, TlsPem, Tokens,
    is_same,
};
pub use listen::{BACKLOG, ListenError, Listeners, listen, listen_on_all};
pub use min_rate::{MinRate, Received, TooSlow};
