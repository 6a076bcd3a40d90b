//! The S3 protocol without sockets and without a store: everything between the bytes of a request and the operation that it
//! asks for, and between the operation's result and the bytes of its answer.
//!
//! Everything is a function of its arguments: the time, the secrets of keys and the configuration of a bucket are passed in.
//! Bytes from outside are bounded and checked; a wrong request is an [`S3Error`], never a panic.
//!
//! # Reading order, the way of a request
//!
//! 1. `request/`: [`request::target`] (bucket and key), [`request::query`], [`request::headers`], and the table of operations,
//!    [`request::operation`]. A feature that is missing is refused by its name.
//! 2. `sign/`: [`sign::verify`] verifies the signature in the header or the query, [`sign::form`] that of a POST form.
//! 3. `access/`: [`access::policy`] judges a bucket's policy, [`access::acl`] has the canned ACLs, [`access::cors`] the rules for
//!    browsers. [`AccessAction`] is the permission that a row of the table asks for.
//! 4. `body/`: [`body::claims`] reads the claims of a request about its body, and [`body::check`] checks them in one pass.
//!    [`body::form`] reads POST forms, [`body::documents`] the XML of requests.
//! 5. `object/`: [`object::metadata`] is the stored form of metadata; [`object::conditions`], [`object::range`],
//!    [`object::etag`].
//! 6. `answer/`: [`answer::object`] decides status and headers of a GET, [`answer::list`] and [`answer::result`] write
//!    documents.
//!
//! `text.rs` and `time.rs` have the codings that all of them use.

pub mod access;
mod action;
pub mod answer;
pub mod body;
pub mod object;
pub mod request;
pub mod sign;
pub mod text;
pub mod time;

#[cfg(test)]
mod testing;

pub use action::AccessAction;
pub use request::error::{ErrorCode, S3Error, S3Result};
