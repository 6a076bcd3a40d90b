//! The runs: which accidents may happen, and how often. Each is explored completely.

use crate::state::Budget;

/// An exploration. The first process serves at its start, the other ones follow.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub name: &'static str,
    pub processes: u8,
    pub budget: Budget,
    /// States that the checker must reach, so that the run is not empty.
    pub reaches: &'static [&'static str],
}

const NONE: Budget = Budget {
    writes: 0,
    messages: 0,
    crashes: 0,
    restarts: 0,
    suspicions: 0,
    collections: 0,
    hand_overs: 0,
    rejoins: 0,
    uploads: 0,
    abandons: 0,
    sweeps: 0,
    slots: 2,
    later_slots: 2,
};

/// (1) Owner, claimant, collection.
pub const COLLECTION: Run = Run {
    name: "collection",
    processes: 2,
    budget: Budget { writes: 2, messages: 2, suspicions: 1, collections: 1, slots: 3, ..NONE },
    reaches: &["data in the tombstone window", "a zombie re-creates a dead slot", "async loss"],
};

/// (2) Two claimants.
pub const CLAIMANTS: Run = Run {
    name: "claimants",
    processes: 3,
    budget: Budget { writes: 1, messages: 1, crashes: 1, suspicions: 1, ..NONE },
    reaches: &["async loss"],
};

/// (2b) A claimant that restarts, while its requests of before are on their way.
pub const RESTART: Run = Run {
    name: "restart",
    processes: 2,
    budget: Budget { writes: 1, messages: 2, crashes: 1, restarts: 1, suspicions: 2, slots: 1, ..NONE },
    reaches: &["async loss"],
};

/// (3) Rejoin after a loss of async writes.
pub const REJOIN: Run = Run {
    name: "rejoin",
    processes: 2,
    budget: Budget { writes: 2, messages: 1, crashes: 1, restarts: 1, suspicions: 1, rejoins: 1, ..NONE },
    reaches: &["async loss", "a rejoin drops records"],
};

/// (4) Hand-over with a crash at each step.
pub const HAND_OVER: Run = Run {
    name: "hand-over",
    processes: 3,
    budget: Budget { crashes: 1, suspicions: 1, hand_overs: 1, slots: 3, ..NONE },
    reaches: &["hand-over without wait"],
};

/// (5) A sweep beside an upload.
pub const SWEEP: Run = Run {
    name: "sweep",
    processes: 2,
    budget: Budget { messages: 2, suspicions: 1, uploads: 1, abandons: 1, sweeps: 1, slots: 1, ..NONE },
    reaches: &["a sweep deletes a part"],
};
