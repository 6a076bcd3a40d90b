//! The figures of each second: `reading` takes all counters at one moment; `window` keeps those of the last seconds; `sample` makes the
//! figures of a second of them, in the words of `document`, with its `warnings`. `sampler` does that once a second for all pages, while
//! there are any.

mod document;
mod reading;
mod sample;
mod sampler;
mod warnings;
mod window;

pub(crate) use self::reading::Sources;
pub(super) use self::sample::heat_edges_us;
pub(super) use self::sampler::{Sampler, Timing};
