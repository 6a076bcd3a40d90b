//! Sessions: sign-in, cookies, and their end.
//!
//! A session keeps the credential that its user has shown, and looks it up for each request: it has the grants of that moment, and is over
//! when the credential is revoked, rotated away or expired. If the server asks for no credentials, everybody on this machine is let in, as
//! by gRPC; a certificate that TLS has verified needs no sign-in either.

mod admit;
mod routes;
mod store;

pub(crate) use admit::Admitted;
pub(crate) use routes::{ROUTES, sign_in, signed_out};
pub(crate) use store::Sessions;
