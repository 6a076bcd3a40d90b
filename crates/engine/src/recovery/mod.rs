//! Recovery: from a device to an open store, and what can be done where the device is damaged.

pub(crate) mod close;
pub(crate) mod format;
pub(crate) mod open;
pub(crate) mod open_path;
pub(crate) mod owners;
pub(crate) mod read;
pub(crate) mod rebuild;
pub(crate) mod recount;
pub(crate) mod repair;
pub(crate) mod report;
mod shared_device;
pub(crate) mod unfinished;
pub(crate) mod unread;
