//! The write-ahead log: one ring of batches on the device.

pub(crate) mod commit;
pub(crate) mod format;
pub(crate) mod read;
pub(crate) mod ring;
