//! Runs the built binary as people and programs do: [`harness`] starts servers and commands, [`usage`] is about wrong command
//! lines and configurations, [`objects`] about single objects, [`tree`] about whole folders, [`serve`] about the server.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

mod harness;
mod objects;
mod serve;
mod tree;
mod usage;
