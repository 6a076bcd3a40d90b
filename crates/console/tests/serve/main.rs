//! The console over a loopback port, with a small client.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

mod archives;
mod dial;
mod figures;
mod keys;
mod objects;
mod pages;
mod sessions;
mod support;
mod tls;
