//! The S3 frontend over a loopback port, with a small client that signs.

mod abuse;
mod access;
mod bodies;
mod buckets;
mod conditions;
mod lists;
mod objects;
mod permissions;
mod race;
mod support;
