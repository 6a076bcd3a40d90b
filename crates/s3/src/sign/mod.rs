//! Signatures of version 4: of a request in its headers or its query, of the chunks of a body, and of POST forms.
//!
//! The order of checks does not depend on secrets, signatures are compared in constant time, and an unknown key id costs the
//! same work as a known one. A repeated request is accepted: clients repeat a request with its signature after a timeout, and
//! a presigned URL is made to be used several times.

mod canonical;
pub mod chunks;
pub mod form;
mod header;
pub mod key;
pub mod payload;
pub(crate) mod presigned;
pub mod verify;

#[cfg(test)]
pub(crate) mod vectors;
