//! Tests of `shoal-tablets` that need a whole store.

mod apply;
mod compaction;
mod fill;
mod grow;
mod hold_room;
mod longer_log;
mod map_room;
mod pace;
mod progress;
mod relocate;
mod sole_writer;
mod tree_io;
