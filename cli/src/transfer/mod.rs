//! The parts that an import and an export share, whatever is at the other end.
//!
//! [`attributes`] says how mode and time are kept, [`report`] counts and tells the results, [`progress`] shows them meanwhile,
//! [`work`] is the queue between the thread that plans and those that work.

pub(crate) mod attributes;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod work;
