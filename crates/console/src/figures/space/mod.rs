//! The space of the device: `survey` counts its free blocks by part and by size of runs, `census` its used blocks by kind and the objects by
//! bucket, `map` draws them.

mod census;
mod map;
mod survey;
#[cfg(test)]
mod testing;

pub(super) use self::map::{CELLS, RUNS_MAX, SpaceMaps, range};
pub(super) use self::survey::PARTS_MAX;
