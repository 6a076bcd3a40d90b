//! Errors of a run that is freed or taken.

use shoal_base::Run;

/// The reason why a run was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// A run to be freed is free already, wholly or partly.
    #[error("run {run} cannot be freed: {overlap} is free already")]
    AlreadyFree {
        /// The run that was to be freed.
        run: Run,
        /// Its first part that is free already.
        overlap: Run,
    },
    /// A run to be taken is in use, wholly or partly.
    #[error("run {run} cannot be taken: {overlap} is not free")]
    NotFree {
        /// The run that was to be taken.
        run: Run,
        /// Its first part that is in use.
        overlap: Run,
    },
    /// A run is empty or reaches past the end of the space.
    #[error("run {run} is empty or reaches past the end, block {blocks_max}")]
    Outside {
        /// The run.
        run: Run,
        /// The first block after the space.
        blocks_max: u64,
    },
}
