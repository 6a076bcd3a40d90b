//! Models of the threads on the way to an acknowledgement. Tests that need a store are in the engine (`testing/fence_tests.rs`).

mod models;
