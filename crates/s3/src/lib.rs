//! The S3 frontend. Most of it is the protocol, without sockets and without a store: everything between the bytes of a request
//! and the operation that it asks for, and between the operation's result and the bytes of its answer. There, everything is a
//! function of its arguments: the time, the secrets of keys and the configuration of a bucket are passed in. `serve/` runs the
//! operations on the store.
//!
//! Bytes from outside are bounded and checked; a wrong request is an [`S3Error`], never a panic.
//!
//! # Reading order, the way of a request
//!
//! 1. `server.rs`: [`S3Server`] listens; `shoal-http` accepts connections, speaks HTTP on them and runs their requests.
//!    `serve/mod.rs` has the order of the steps below, and `state.rs` the state that requests share.
//! 2. `request/`: [`request::target`] (bucket and key), [`request::query`], [`request::headers`], and the table of operations,
//!    [`request::operation`]. A feature that is missing is refused by its name.
//! 3. `sign/`: [`sign::verify`] verifies the signature in the header or the query, [`sign::form`] that of a POST form.
//! 4. `access/`: [`access::policy`] judges a bucket's policy, [`access::acl`] has the canned ACLs, [`access::cors`] the rules for
//!    browsers.
//! 5. `body/`: [`body::claims`] reads the claims of a request about its body, and [`body::check`] checks them in one pass.
//!    `body/reader.rs` takes the bytes from the connection. [`body::form`] reads POST forms, [`body::xml`] documents.
//! 6. `object/` and `bucket/`: [`object::metadata`] has the stored attributes; [`object::conditions`], [`object::range`],
//!    [`object::etag`]. The operations are in files of their names, as `object/put.rs`, the documents of their requests in
//!    folders `documents`. [`bucket::lifecycle`] has the rules by which `bucket/sweep/` deletes, [`bucket::website`] those of the pages
//!    that `serve/website.rs` answers.
//! 7. `upload/`: uploads in parts; [`upload::join`] decides which object the parts make.
//! 8. `answer/`: [`answer::object`] decides status and headers of a GET, [`answer::list`] and [`answer::result`] write
//!    documents, `answer/body.rs` sends them.
//!
//! `service/`: [`S3Service`] is the same for callers that another frontend has let in, without signatures.
//!
//! `text.rs` and `time.rs` have the codings that all of them use.

pub mod access;
pub mod answer;
pub mod body;
pub mod bucket;
pub mod object;
mod options;
pub mod request;
mod serve;
mod server;
mod service;
pub mod sign;
mod state;
pub mod text;
pub mod time;
pub mod upload;

#[cfg(test)]
mod testing;

pub use options::{DEFAULT_REGION, S3Options, UPLOAD_LIFE};
pub use request::error::{ErrorCode, S3Error, S3Result};
pub use server::{S3ServeError, S3Server};
pub use service::{ObjectWalk, S3Service};
