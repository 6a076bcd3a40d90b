//! The space of the device: `survey` counts its free blocks by part and by size of runs, `map` draws them.

mod map;
mod survey;
#[cfg(test)]
mod testing;

pub(super) use self::map::{CELLS, RUNS_MAX, SpaceMaps, range};
