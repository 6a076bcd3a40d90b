//! Planted bugs: each breaks one rule of the protocol at one place of the model, and a run of the checker finds it.
//!
//! P1 to P24 are numbered as in the design study; P10, P11, P16 and P17 break the implementation below the protocol. Q1 to Q9 are
//! mistakes that its rules left open, or that a property would miss without them.

use crate::properties::{NAMED, PREFIX, REJOINED, T1, T2, T4, T5, T7, T8};
use crate::runs::{CLAIMANTS, COLLECTION, HAND_OVER, REJOIN, RESTART, Run, SWEEP};

/// A planted bug; [`Bug::about`] describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    P1,
    P2,
    P3,
    P4,
    P5,
    P6,
    P7,
    P8,
    P9,
    P12,
    P13,
    P14,
    P15,
    P18,
    P19,
    P20,
    P21,
    P22,
    P23,
    P24,
    Q1,
    Q2,
    Q3,
    Q4,
    Q5,
    Q6,
    Q7,
    Q8,
    Q9,
}

impl Bug {
    pub const ALL: [Self; 29] = [
        Self::P1,
        Self::P2,
        Self::P3,
        Self::P4,
        Self::P5,
        Self::P6,
        Self::P7,
        Self::P8,
        Self::P9,
        Self::P12,
        Self::P13,
        Self::P14,
        Self::P15,
        Self::P18,
        Self::P19,
        Self::P20,
        Self::P21,
        Self::P22,
        Self::P23,
        Self::P24,
        Self::Q1,
        Self::Q2,
        Self::Q3,
        Self::Q4,
        Self::Q5,
        Self::Q6,
        Self::Q7,
        Self::Q8,
        Self::Q9,
    ];

    /// The mistake, the run in which the checker finds it, and the property that it violates there.
    pub fn about(self) -> (&'static str, Run, &'static str) {
        match self {
            Self::P1 => ("a collection deletes the tombstone", COLLECTION, T2),
            Self::P2 => ("seals before the claim, and claims with the ends", COLLECTION, T2),
            Self::P3 => ("looks for the free slot before the claim", COLLECTION, T1),
            Self::P4 => ("opens without the confirmation", CLAIMANTS, T5),
            Self::P5 => ("takes the last tombstone for the end", COLLECTION, NAMED),
            Self::P6 => ("counts a slot behind a gap as archived", COLLECTION, T1),
            Self::P7 => ("the lease runs from the answer", COLLECTION, T4),
            Self::P8 => ("the lease runs from a slot behind a gap", COLLECTION, T4),
            Self::P9 => ("a member object is the lease", COLLECTION, T4),
            Self::P12 => ("sends other bytes to a slot after a time-out", COLLECTION, T1),
            Self::P13 => ("two versions of the record are equal", SWEEP, NAMED),
            Self::P14 => ("the sweep reads the record, then lists", SWEEP, NAMED),
            Self::P15 => ("deletes before the CAS is confirmed", COLLECTION, T1),
            Self::P18 => ("answers a failed condition without a lease", COLLECTION, T4),
            Self::P19 => ("names a base before its last part", SWEEP, NAMED),
            Self::P20 => ("a new owner numbers on from the last version", COLLECTION, T7),
            Self::P21 => ("waits from the suspicion", COLLECTION, T4),
            Self::P22 => ("takes the claim of its dead incarnation for its own", RESTART, T1),
            Self::P23 => ("waits for its own option, not for the record's lease", COLLECTION, T4),
            Self::P24 => ("seals above h without the W slots below it", COLLECTION, NAMED),
            Self::Q1 => ("answers reads until the close is archived", HAND_OVER, T4),
            Self::Q2 => ("closes before its own wait is over", HAND_OVER, T4),
            Self::Q3 => ("waits for the logs only that it sealed itself", CLAIMANTS, T4),
            Self::Q4 => ("a restart does not wait although its log never served", RESTART, T4),
            Self::Q5 => ("sends a tail again although another log came between", REJOIN, PREFIX),
            Self::Q6 => ("a segment divides a write batch", COLLECTION, T8),
            Self::Q7 => ("a rejoin cuts at its own archived LSN", REJOIN, REJOINED),
            Self::Q8 => ("a restart forgets the jump of its last opening", REJOIN, T7),
            Self::Q9 => ("jumps from the last record, not from the last owner's first number", REJOIN, T7),
        }
    }
}
