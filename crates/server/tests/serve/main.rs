//! The server and its client in one process, over the network, with a store in memory.

// Helpers of tests are not seen as tests.
#![allow(clippy::unwrap_used)]

mod admission;
mod backups;
mod counted;
mod credentials;
mod deadline;
mod dedup;
mod drain;
mod early;
mod expiring;
mod flood;
mod hostile;
mod key_value;
mod limits;
mod operations;
mod permissions;
mod pipeline;
mod revoked;
mod rights;
mod room;
mod slow;
mod standard;
mod streams;
mod support;
mod verbs;
mod waiting;
mod web;
