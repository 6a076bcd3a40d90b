//! Devices of the kernel, and images made by the machine's tools. A test whose tool or device is missing on the machine is skipped, and
//! reports that.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod machine;
mod raw;
mod signatures;
// The kit uses this crate, so this crate takes a file of the kit.
#[expect(unreachable_pub)]
#[path = "../../../testkit/src/skipped.rs"]
mod skipped;
