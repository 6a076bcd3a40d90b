//! The parts that every import and export shares, with a folder, a tar or a server of Redis at its other end.
//!
//! [`attributes`] maps mode and time, [`extras`] are the parts of an object beyond a file's content, mode and time, and
//! their names outside of a store; [`filter`] selects the keys that take part; [`destination`] is the store that an
//! import fills; [`feed`] puts the values of a source that can be read only once; [`report`] counts and reports the
//! results, [`progress`] shows them meanwhile, [`work`] is the queue between the planning thread and the workers.

pub(crate) mod attributes;
pub(crate) mod destination;
pub(crate) mod extras;
pub(crate) mod feed;
pub(crate) mod filter;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod work;
