//! The console: pages for browsers on a store, and their small API.
//!
//! A session is a party with the grants that its key or token has for every frontend; without credentials, everybody on this machine is let
//! in, as by gRPC. Objects are read and changed by the operations of S3 ([`shoal_s3::S3Service`]), so there is no third way to the store.
//!
//! # Reading order, the way of a request
//!
//! 1. `server.rs`: [`ConsoleServer`] listens; `shoal-http` accepts connections, and runs their requests.
//! 2. `router.rs` has the order of the steps, and the table of routes. `state.rs` is the state that requests share, `call.rs` one request.
//! 3. `guard.rs` refuses requests of other sites; `session/` admits a party.
//! 4. `objects/`: objects, by the operations of S3.
//! 5. `keys.rs`: the keys of the file of keys.
//! 6. `figures/`: figures for the pages, live and of the last minutes; `operations.rs`: scrub, backup, relocation.
//! 7. `assets.rs`: the pages, which are part of the program; `docs.rs`: the documentation that they link to.
//! 8. `answer.rs`: documents of JSON, errors, and the headers that every answer has.

mod answer;
mod assets;
mod call;
mod docs;
mod figures;
mod guard;
mod keys;
mod objects;
mod operations;
mod options;
mod router;
mod server;
mod session;
mod state;

pub use figures::limits::{MEMORY_BYTES_MAX, MEMORY_BYTES_MIN};
pub use keys::{KeyBook, KeyBookError, KeyChange};
pub use options::{ConsoleOptions, ConsoleParts, ConsoleSources};
pub use server::{ConsoleError, ConsoleServer};
