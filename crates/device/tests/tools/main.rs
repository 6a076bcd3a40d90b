//! Devices of the kernel, and what the tools of the machine make. A test whose tool or device the machine lacks is skipped, and
//! says so.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod machine;
mod raw;
mod signatures;
// The kit uses this crate, so this crate takes a file of the kit.
#[expect(unreachable_pub)]
#[path = "../../../testkit/src/skipped.rs"]
mod skipped;
