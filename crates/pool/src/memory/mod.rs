//! The memory of the pool: frames, the list of free ones, and the requests that wait for one.

pub(crate) mod frame;
pub(crate) mod free;
pub(crate) mod starve;

use crate::sync;
