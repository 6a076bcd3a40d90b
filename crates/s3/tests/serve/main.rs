//! The S3 frontend over a loopback port, with a small client that signs.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

mod abuse;
mod access;
mod acls;
mod bodies;
mod buckets;
mod conditions;
mod cors;
mod forms;
mod lifecycle;
mod lists;
mod no_room;
mod objects;
mod permissions;
mod policies;
mod race;
mod support;
mod unread_settings;
mod upload_lists;
mod uploads;
mod websites;
