//! What is resident: the slots that describe units, the word that protects one, pins, and the lists of who waits for a latch.

pub(crate) mod latch;
pub(crate) mod pin;
pub(crate) mod slot;
pub(crate) mod word;

use crate::sync;
