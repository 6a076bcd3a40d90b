//! The problems that a check or a scrub finds.

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckProblem {
    /// The problem, with its object if it concerns one.
    pub what: String,
    /// Its block number.
    pub block: u64,
}
