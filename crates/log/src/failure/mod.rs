//! The reasons for which a log refuses writes: [`Poison`] after a failed write or flush, until a restart, and [`Room`] until the data file
//! has room again. The fence makes overlapping flushes share their failures.

mod fence;
mod poison;
mod room;

pub use poison::Poison;
pub use room::Room;

use shoal_common::event;

/// Locks under one name: the models of `tests/models.rs` replace them.
mod sync {
    pub(super) use shoal_base::sync::Mutex;
}
