//! Resident units: the slots that describe them, the word that protects one, pins, and the waiters for latches.

pub(crate) mod latch;
pub(crate) mod pin;
pub(crate) mod slot;
pub(crate) mod word;

use crate::sync;
