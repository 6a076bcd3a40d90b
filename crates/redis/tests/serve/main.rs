//! The face through real connections.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod clients;
mod commands;
mod expiring;
mod limits;
mod once;
mod pipelines;
mod support;
