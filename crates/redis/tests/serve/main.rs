//! The frontend through real connections.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod admission;
mod archived;
mod attributes;
mod backlog;
mod bits;
mod clients;
mod commands;
mod committing;
mod counted;
mod damaged;
mod dedup;
mod expiring;
mod introspection;
mod limits;
mod memory;
mod permissions;
mod pipelines;
mod support;
mod tls;
mod transactions;
mod values;
