//! The memory of the pool: frames, which of them are free, and who waits for one.

pub(crate) mod frame;
pub(crate) mod free;
pub(crate) mod starve;

use crate::sync;
