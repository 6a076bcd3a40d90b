//! What a check or a scrub found wrong.

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckProblem {
    /// What is wrong, and with which object where one is concerned.
    pub what: String,
    /// Where, as a block number.
    pub block: u64,
}
